"""Validate virtual machine code when it is loaded, and split it into basic blocks.

In valid code all references are resolved: registers are defined once and before their use; inputs, outputs, constants, functions,
sizes and jump targets exist.  The instructions are documented in `runtime.executor.virtual_machine`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tunesmith.runtime.device.device import DEVICES
from tunesmith.runtime.executor.device_memory import HOST
from tunesmith.runtime.executor.executor import TensorSpec, unique_names
from tunesmith.runtime.executor.index_program import check_condition, check_index
from tunesmith.runtime.executor.program_data import dtype_of, field, int_of, list_of, text_of
from tunesmith.support.errors import RunError

Instruction = list[Any]


class Block(NamedTuple):
    """The instructions from `first` up to `last`, without jumps, and the successor blocks, as in `bound_program.Segment`."""

    first: int
    last: int
    condition: int | None
    then: int
    otherwise: int


@dataclass(frozen=True, slots=True)
class Code:
    """Validated code.

    Attributes:
        inputs: inputs of the program; extents are index expressions.
        outputs: outputs of the program.
        entry: the leading instructions size, check and require.
        body: all instructions.
        blocks: basic blocks of the body; the first is the entry.
        is_dynamic: whether sizes depend on the elements of tensors, or functions are invoked.
        devices: the kind of device of the registers that are not in host memory.
        functions: the code of the functions that are invoked, by name; it is empty in that code itself.
    """

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    entry: list[Instruction]
    body: list[Instruction]
    blocks: list[Block]
    is_dynamic: bool
    devices: dict[int, str]
    functions: dict[str, Code]


def read_code(program: dict[str, Any], constants: int, functions: Collection[str]) -> Code:
    """The code of a program.

    Args:
        program: in the format of `runtime.executor.virtual_machine`.
        constants: number of constants.
        functions: names of the functions that may be called.
    Raises:
        RunError: the code is malformed; the message names the instruction.
    """
    inner = program.get("functions", {})
    if not isinstance(inner, dict) or any(not isinstance(p, dict) for p in inner.values()):
        raise RunError("the functions of the program are malformed. Build it again")
    found = {name: _Reader(p, constants, functions, inner).code() for name, p in inner.items()}
    return replace(_Reader(program, constants, functions, inner).code(), functions=found)


class _Reader:
    def __init__(self, program: dict[str, Any], constants: int, functions: Collection[str], invoked: Mapping[str, Any]) -> None:
        self.body = [list_of(ins, f"instruction {i}", 1) for i, ins in enumerate(list_of(field(program, "code", "the program"), "code", 1))]
        self.sizes: list[str] = [
            ins[1] for ins in self.body if ins[0] in ("size", "read") and len(ins) in (3, 4) and isinstance(ins[1], str)
        ]
        self.inputs = self._specs(field(program, "inputs", "the program"), "input")
        self.outputs = self._specs(field(program, "outputs", "the program"), "output")
        self.constants, self.functions, self.invoked = constants, functions, invoked
        self.registers: dict[int, str] = {}
        self.devices: dict[int, str] = {}
        self.known: list[str] = []

    def code(self) -> Code:
        entry = 0
        for at, ins in enumerate(self.body):
            self._check(at, ins)
            if ins[0] in _ENTRY:
                if entry != at:
                    raise RunError(
                        f"instruction {at} ({ins[0]}) of the program is not at the start: sizes, checks and requirements come first"
                    )
                entry += 1
        if self.body[-1] != ["ret"]:
            raise RunError("the code of the program does not end with ret. Build it again")
        self._covered()
        dynamic = any(ins[0] in ("read", "invoke") for ins in self.body)
        return Code(self.inputs, self.outputs, self.body[:entry], self.body, _blocks(self.body), dynamic, self.devices, {})

    def _specs(self, rows: object, what: str) -> list[TensorSpec]:
        found = []
        for i, row in enumerate(list_of(rows, what)):
            name, dtype, shape = list_of(row, f"{what} {i}", 3, 3)
            for e in list_of(shape, f"{what} {i}: shape", 0, 32):
                check_index(e, self.sizes, f"{what} {i}")
            found.append(TensorSpec(text_of(name, f"{what} {i}"), dtype_of(dtype, f"{what} {i}"), tuple(shape)))
        unique_names([s.name for s in found], f"{what}s")
        return found

    def _check(self, at: int, ins: Instruction) -> None:
        op = ins[0]
        known = _OPERANDS.get(op) if isinstance(op, str) else None
        if known is None or len(ins) != 1 + len(known):
            raise RunError(f"instruction {at} of the program is unknown to this version, or has a wrong number of operands")
        what = f"instruction {at} ({op})"
        operands = sorted(zip(known, ins[1:], strict=True), key=lambda o: o[0] == "new")  # an instruction does not use what it defines
        for role, value in operands:
            getattr(self, f"_{role}")(value, what, at)
        if op == "place":
            self.devices[ins[1]] = ins[2]
        if op in ("size", "check"):
            i, axis = ins[2:4] if op == "size" else ins[1:3]
            int_of(axis, f"{what}: axis", 0, len(self.inputs[i].shape) - 1)

    def _covered(self) -> None:
        """RunError unless every extent of an input defines a size or is checked."""
        seen = {(ins[2], ins[3]) if ins[0] == "size" else (ins[1], ins[2]) for ins in self.body if ins[0] in ("size", "check")}
        for i, spec in enumerate(self.inputs):
            missing = [axis for axis in range(len(spec.shape)) if (i, axis) not in seen]
            if missing:
                raise RunError(f"the program does not check axis {missing[0]} of input {i} ({spec.name}). Build it again")

    # ---- one check per role of an operand -----------------------------------------------------------------------------------

    def _name(self, value: object, what: str, at: int) -> None:
        name = text_of(value, what)
        if name in self.known:
            raise RunError(f"{what}: the size {name!r} is defined twice")
        self.known.append(name)

    def _input(self, value: object, what: str, at: int) -> None:
        int_of(value, f"{what}: input", 0, len(self.inputs) - 1)

    def _output(self, value: object, what: str, at: int) -> None:
        int_of(value, f"{what}: output", 0, len(self.outputs) - 1)

    def _constant(self, value: object, what: str, at: int) -> None:
        int_of(value, f"{what}: constant", 0, self.constants - 1)

    def _axis(self, value: object, what: str, at: int) -> None:
        int_of(value, f"{what}: axis", 0)

    def _index(self, value: object, what: str, at: int) -> None:
        check_index(value, self.known, what)

    def _condition(self, value: object, what: str, at: int) -> None:
        check_condition(value, self.known, what)

    def _dtype(self, value: object, what: str, at: int) -> None:
        dtype_of(value, what)

    def _shape(self, value: object, what: str, at: int) -> None:
        for e in list_of(value, f"{what}: shape", 0, 32):
            self._index(e, what, at)

    def _sizes(self, value: object, what: str, at: int) -> None:
        for e in list_of(value, f"{what}: sizes"):
            self._index(e, what, at)

    def _new(self, value: object, what: str, at: int) -> None:
        r = int_of(value, f"{what}: register", 0)
        if r in self.registers:
            raise RunError(f"{what}: register {r} is defined twice")
        self.registers[r] = self.body[at][0]

    def _future(self, value: object, what: str, at: int) -> None:
        r = int_of(value, f"{what}: register", 0)
        if r in self.registers or r in self.devices:
            raise RunError(f"{what}: register {r} is defined, or placed, before")

    def _device(self, value: object, what: str, at: int) -> None:
        if not isinstance(value, str) or value not in DEVICES or value == HOST:
            raise RunError(f"{what}: {value!r:.100} is not a kind of device; known are {', '.join(d for d in DEVICES if d != HOST)}")

    def _old(self, value: object, what: str, at: int) -> None:
        if int_of(value, f"{what}: register") not in self.registers:
            raise RunError(f"{what}: register {value} is not defined")

    def _registers(self, value: object, what: str, at: int) -> None:
        for r in list_of(value, f"{what}: registers"):
            self._old(r, what, at)

    def _allocated(self, value: object, what: str, at: int) -> None:
        self._old(value, what, at)
        if self.registers[int_of(value, what)] != "alloc":
            raise RunError(f"{what}: register {value} is not an alloc, or is already freed")
        self.registers[int_of(value, what)] = "free"

    def _earlier(self, value: object, what: str, at: int) -> None:
        if self.body[int_of(value, f"{what}: target", 0, at)][0] in _ENTRY:
            raise RunError(f"{what} of the program jumps to the sizes and checks at its start")

    def _function(self, value: object, what: str, at: int) -> None:
        if text_of(value, f"{what}: function") not in self.functions:
            names = ", ".join(sorted(self.functions)) or "none"
            raise RunError(f"{what}: the library has no function {value!r}, which the program calls. It has: {names}")

    def _invoked(self, value: object, what: str, at: int) -> None:
        name = text_of(value, f"{what}: function")
        if name not in self.invoked:
            raise RunError(f"{what}: the program has no function {name!r}. It has: {', '.join(sorted(self.invoked)) or 'none'}")
        for key, registers in (("inputs", self.body[at][2]), ("outputs", self.body[at][3])):
            expected = len(list_of(field(self.invoked[name], key, f"{what}: {name}"), f"{what}: {name}: {key}"))
            if len(list_of(registers, f"{what}: {key}")) != expected:
                raise RunError(f"{what}: {name} has {expected} {key}, and is invoked with {len(registers)}")

    def _target(self, value: object, what: str, at: int) -> None:
        int_of(value, f"{what}: target (jumps go forward)", at + 1, len(self.body) - 1)


_ENTRY = ("size", "check", "require")
_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "size": ("name", "input", "axis"),
    "check": ("input", "axis", "index"),
    "require": ("condition",),
    "place": ("future", "device"),
    "input": ("new", "input"),
    "output": ("new", "output"),
    "constant": ("new", "constant", "dtype", "shape"),
    "alloc": ("new", "dtype", "shape"),
    "view": ("new", "old", "shape"),
    "free": ("allocated",),
    "call": ("function", "registers", "registers", "sizes"),
    "invoke": ("invoked", "registers", "registers"),
    "copy": ("old", "old"),
    "if": ("old", "target"),
    "goto": ("target",),
    "again": ("earlier",),
    "read": ("name", "old"),
    "limit": ("index", "index"),
    "ret": (),
}
"""Instruction -> roles of its operands."""


def _blocks(body: list[Instruction]) -> list[Block]:
    """The body, split after each jump and before each jump target; it ends with ret."""
    jumps = [at for at, ins in enumerate(body) if ins[0] in ("if", "goto", "again", "ret")]
    starts = sorted({0, *[at + 1 for at in jumps], *[body[at][-1] for at in jumps if body[at][0] != "ret"]} - {len(body)})
    number = {start: k for k, start in enumerate(starts)}
    found = []
    for start, stop in zip(starts, [*starts[1:], len(body)], strict=True):
        ins, following = body[stop - 1], number.get(stop, -1)
        if ins[0] == "if":
            found.append(Block(start, stop - 1, ins[1], following, number[ins[2]]))
        elif ins[0] in ("goto", "again"):
            found.append(Block(start, stop - 1, None, number[ins[1]], -1))
        elif ins[0] == "ret":
            found.append(Block(start, stop - 1, None, -1, -1))
        else:
            found.append(Block(start, stop, None, following, -1))
    return found
