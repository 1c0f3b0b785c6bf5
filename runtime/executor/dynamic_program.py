"""Run programs whose shapes depend on the elements of tensors, or that call themselves: memory is allocated while the program runs.

A program without recursion whose shapes depend on the shapes of the inputs alone is bound in advance instead (`bound_program`), which
costs less per call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import empty, nbytes, placed, storage_dtype, tensor, typed, writable
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device, DeviceLost
from tunesmith.runtime.executor.bound_program import COPY, Functions
from tunesmith.runtime.executor.device_memory import HOST, Array, DeviceConstants, copier, kind_of_memory, new_array
from tunesmith.runtime.executor.entry_sizes import entry_sizes, known_extents
from tunesmith.runtime.executor.executor import Shape
from tunesmith.runtime.executor.index_program import evaluate
from tunesmith.runtime.executor.vm_code import Code, Instruction
from tunesmith.support.errors import RunError

DEEPEST = 10_000
"""Maximum number of nested invocations of functions."""


class Tensor:
    """A register: an array, its element type, and the form in which compiled functions take it, made when it is needed first."""

    __slots__ = ("_argument", "array", "block", "dtype")

    def __init__(self, array: Array, dtype: str, block: Array | None = None) -> None:
        self.array, self.dtype, self.block = array, dtype, block
        self._argument: object = None

    @property
    def argument(self) -> object:
        """The argument of a compiled function of the host."""
        if self._argument is None:
            assert isinstance(self.array, np.ndarray)
            self._argument = tensor(self.array, self.dtype)
        return self._argument

    @property
    def device(self) -> str:
        """The kind of device that holds the array."""
        return kind_of_memory(self.array)

    def view(self, shape: Shape) -> Tensor:
        """The same elements in another shape."""
        made = self.array.view(shape, self.dtype) if isinstance(self.array, DeviceArray) else self.array.reshape(shape)
        return Tensor(made, self.dtype)


Watch = Callable[[int, Callable[[], object], Sequence[Tensor], Sequence[Tensor]], None]
"""Takes the number of a step, its call, its operands and its results; it must make the call."""


class Memory:
    """Memory of a program: its constants, and blocks that runs take and give back.

    Blocks that were not in use during a whole run are released after it.

    Args:
        constants: storage of the constants in host memory.
        devices: the constants on each device.
    """

    def __init__(self, constants: Sequence[np.ndarray], devices: Mapping[str, DeviceConstants]) -> None:
        self._constants, self._devices = constants, devices
        self._free: dict[tuple[str, int], list[tuple[Array, int]]] = {}
        self._run = 0

    def constant(self, number: int, shape: Shape, dtype: str, device: str) -> Array:
        """A constant in the memory of a device."""
        array = self._constants[number]
        if array.dtype != storage_dtype(dtype) or array.size != math.prod(shape):
            raise RunError(f"constant {number} is {array.dtype}{list(array.shape)}, and the program takes it as {dtype}{list(shape)}")
        return writable(array).reshape(shape) if device == HOST else self._devices[device].array(number, dtype).view(shape, dtype)

    def tensor(self, dtype: str, shape: Shape, device: str) -> Tensor:
        """A new tensor in a block."""
        size = _rounded(nbytes(dtype, shape))
        free = self._free.get((device, size))
        if free:
            block = free.pop()[0]
        else:
            block = empty(size) if device == HOST else DeviceArray(Device(device), (size,), "uint8")
        array = block.view(shape, dtype) if isinstance(block, DeviceArray) else placed(block, 0, dtype, shape)
        return Tensor(array, dtype, block)

    def give(self, block: Array) -> None:
        """Give the block of a tensor back."""
        self._free.setdefault((kind_of_memory(block), block.nbytes), []).append((block, self._run))

    def end_run(self) -> None:
        """Release the blocks that were not in use during the last run."""
        self._free = {key: kept for key, free in self._free.items() if (kept := [f for f in free if f[1] == self._run])}
        self._run += 1


def _rounded(size: int) -> int:
    """The size, rounded up to an eighth of its power of two, so that tensors of similar sizes share blocks."""
    step = max(64, 1 << max(size.bit_length() - 4, 0))
    return -(-max(size, 1) // step) * step


class DynamicProgram:
    """A program of the virtual machine with sizes that are read from tensors, or with functions that are invoked.

    Args:
        code: the program.
        constants: storage of the constants.
        functions: by name, as in `bound_program.BoundProgram`.
        devices: constants on each device.
    """

    def __init__(self, code: Code, constants: Sequence[np.ndarray], functions: Functions, devices: Mapping[str, DeviceConstants]) -> None:
        self._code, self._memory, self._functions = code, Memory(constants, devices), functions
        codes = [code, *code.functions.values()]
        steps = [(id(c), at) for c in codes for at, ins in enumerate(c.body) if ins[0] in ("call", "copy")]
        self._steps = {key: n for n, key in enumerate(steps)}
        self.functions = [ins[1] if ins[0] == "call" else COPY for c in codes for ins in c.body if ins[0] in ("call", "copy")]
        """Name of the function of each step."""
        invocations = [at for at, ins in enumerate(code.body) if ins[0] == "invoke"]
        self._invocations = {at: ~k for k, at in enumerate(invocations)}
        self.invoked = [code.body[at][1] for at in invocations]
        """Name of the function of each invocation of the program itself."""
        self._inputs: Sequence[Array] = ()
        self._given: Sequence[Array | None] = ()
        self.outputs: Sequence[Array] = ()
        """The outputs of the last run."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        """Bind the program to these arrays, already checked by the caller; an output without an array is allocated by each run."""
        self._inputs, self._given = inputs, outputs

    def run(self) -> None:
        """Run the program; its results are in `outputs` afterwards.

        Raises:
            RunError: a function rejected its arguments or failed, a size that is read is negative, or functions are nested too deeply.
        """
        self._execute(_run)

    def profile(self, repeats: int) -> list[list[float]]:
        """Run the program `repeats` times; the seconds of each execution of each step.  Errors as in `run`."""
        taken: list[list[float]] = [[] for _ in self._steps]

        def timed(n: int, call: Callable[[], object], operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
            start = time.perf_counter_ns()
            call()
            for device in {t.device for t in (*operands, *results)} - {HOST}:
                api = Device(device).api
                api.synchronise(0, api.current_stream(0))
            taken[n].append((time.perf_counter_ns() - start) * 1e-9)

        for _ in range(repeats):
            self._execute(timed)
        return taken

    def trace(self) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """Run the program once; the number of each step that ran, in order, with copies of its results.  Errors as in `run`.

        Steps of functions that are invoked are left out; the invocations of the program itself have the numbers -1, -2, ...
        """
        found: list[tuple[int, tuple[np.ndarray, ...]]] = []
        own = sum([ins[0] in ("call", "copy") for ins in self._code.body])

        def kept(n: int, call: Callable[[], object], operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
            call()
            if n >= own:
                return
            arrays = [(r.array.numpy() if isinstance(r.array, DeviceArray) else r.array.copy(), r.dtype) for r in results]
            found.append((n, tuple([typed(a, d) for a, d in arrays])))

        self._execute(kept, kept)
        return found

    def _execute(self, watch: Watch, ended: Watch | None = None) -> None:
        """Run the program; `ended` is called after each invocation of the program itself, with nothing to call."""
        first = Frame(self._code, self._memory, self._inputs, self._given)
        frames = [first]
        try:
            while frames:
                pause = frames[-1].proceed()
                if pause is None:
                    frames.pop().check_outputs()
                    if len(frames) == 1 and ended is not None:
                        self._invocation_ended(first, ended)
                elif pause[0] == "invoke":
                    if len(frames) == DEEPEST:
                        raise RunError(f"{pause[1]} calls itself more than {DEEPEST} times: does its recursion end?")
                    inputs, outputs = [[frames[-1].register(r) for r in group] for group in pause[2:]]
                    frames.append(_invoked(pause[1], self._code.functions[pause[1]], self._memory, inputs, outputs))
                else:
                    self._step(frames[-1], pause, watch)
        finally:
            self._memory.end_run()
        self.outputs = first.outputs

    def _invocation_ended(self, frame: Frame, ended: Watch) -> None:
        at = frame.at - 1
        operands, results = [[frame.register(r) for r in group] for group in self._code.body[at][2:]]
        ended(self._invocations[at], _nothing, operands, results)

    def _step(self, frame: Frame, ins: Instruction, watch: Watch) -> None:
        if ins[0] == "copy":
            results, operands = [frame.register(ins[1])], [frame.register(ins[2])]
            frame.check_copy(operands[0], results[0])
            call = _copy_call(operands[0].array, results[0].array)
        else:
            operands, results = [[frame.register(r) for r in group] for group in (ins[2], ins[3])]
            call = _call(self._functions[ins[1]], [*operands, *results], [frame.index(e) for e in ins[4]])
        if all(0 in r.array.shape for r in results):
            call = _nothing  # functions with many sizes, or with divisions by a size, refuse a size of 0
        try:
            watch(self._steps[id(frame.code), frame.at - 1], call, operands, results)
        except DeviceLost:
            raise
        except Exception as error:  # functions raise exceptions of any type
            raise RunError(f"a call of the program failed: {error}") from error


def _nothing() -> None:
    """Compute results without elements."""


class Frame:
    """A call of a function of the program, and its registers.

    Args:
        code: the function.
        memory: memory of the program.
        inputs: the inputs of the call.
        given: arrays for the outputs; None if the call allocates the output.
    Attributes:
        code: the function.
        at: the next instruction.
        sizes: the sizes that are known so far.
    """

    def __init__(self, code: Code, memory: Memory, inputs: Sequence[Array], given: Sequence[Array | None]) -> None:
        self.code, self.at = code, 0
        self._memory, self._inputs, self._given = memory, inputs, given
        self.sizes = entry_sizes(code, [tuple(a.shape) for a in inputs])
        self._registers: dict[int, Tensor] = {}
        self._made: dict[int, Tensor] = {}

    @property
    def outputs(self) -> list[Array]:
        """The outputs in the memory that the caller expects them in."""
        return [self._delivered(i, self._made[i]) for i in range(len(self.code.outputs))]

    def proceed(self) -> Instruction | None:
        """Run up to the next call, copy or invocation, and return it; None at the end of the function."""
        body = self.code.body
        while True:
            ins = body[self.at]
            op = ins[0]
            self.at += 1
            if op in ("call", "copy", "invoke"):
                return ins
            if op == "if":
                if not self._scalar(ins[1], "bool"):
                    self.at = ins[2]
            elif op in ("goto", "again"):
                self.at = ins[1]
            elif op == "ret":
                return None
            elif op == "read":
                found = self._scalar(ins[2], "int64")
                if found < 0:
                    raise RunError(f"the size {ins[1]} is read from a tensor, which must be at least 0, and is {found}")
                self.sizes[ins[1]] = found
            elif op == "limit":
                found, most = self.index(ins[1]), self.index(ins[2])
                if found > most:
                    raise RunError(f"the size {ins[1]} is read from a tensor, which must be at most {most}, and is {found}")
            elif op == "free":
                self._free(ins[1])
            elif op not in ("size", "check", "require", "place"):
                made = self._tensor(ins)
                self._free(ins[1])  # of the iteration before
                self._registers[ins[1]] = made

    def check_outputs(self) -> None:
        """RunError if the function has ended without an output."""
        missing = [spec.name for i, spec in enumerate(self.code.outputs) if i not in self._made]
        if missing:
            raise RunError(f"the program ends without its output {', '.join(missing)}. Build it again")

    def check_copy(self, source: Tensor, target: Tensor) -> None:
        """RunError if two tensors differ in type or size."""
        sizes = [(t.dtype, nbytes(t.dtype, t.array.shape)) for t in (source, target)]
        if sizes[0] != sizes[1]:
            raise RunError(f"{self._what} is a copy between tensors that differ")

    def register(self, r: int) -> Tensor:
        """The tensor in a register.  RunError if none is."""
        if r not in self._registers:
            raise RunError(f"{self._what} uses register {r}, which was not defined on the way there. Build it again")
        return self._registers[r]

    def index(self, e: Any) -> int:
        """The value of an index expression.  RunError if a size is not known."""
        try:
            return evaluate(e, self.sizes)
        except KeyError as error:
            raise RunError(f"{self._what} uses the size {error}, which was not read on the way there. Build it again") from None

    @property
    def _what(self) -> str:
        return f"instruction {self.at - 1} ({self.code.body[self.at - 1][0]}) of the program"

    def _free(self, r: int) -> None:
        freed = self._registers.pop(r, None)
        if freed is not None and freed.block is not None:
            self._memory.give(freed.block)

    def _scalar(self, r: int, dtype: str) -> Any:
        found, given = self.register(r).array, self.register(r).dtype
        if not isinstance(found, np.ndarray) or found.size != 1 or given != dtype:
            raise RunError(f"{self._what} does not read one element of type {dtype} in host memory")
        return found.item()

    def _shape(self, shape: Sequence[Any]) -> Shape:
        found = tuple([self.index(e) for e in shape])
        if any(e < 0 for e in found):
            raise RunError(f"{self._what} has the negative extents {list(found)}")
        return found

    def _tensor(self, ins: Instruction) -> Tensor:
        """The tensor that an instruction defines."""
        op, r, *rest = ins
        device = self.code.devices.get(r, HOST)
        if op == "input":
            return self._input(rest[0], device)
        if op == "output":
            return self._output(rest[0], device)
        shape = self._shape(rest[-1])
        if op == "constant":
            return Tensor(self._memory.constant(rest[0], shape, rest[1], device), rest[1])
        if op == "alloc":
            return self._memory.tensor(rest[0], shape, device)
        source = self.register(rest[0])
        if nbytes(source.dtype, shape) != nbytes(source.dtype, source.array.shape):
            raise RunError(f"{self._what}: {list(shape)} is not a view of {list(source.array.shape)}")
        return source.view(shape)

    def _input(self, number: int, device: str) -> Tensor:
        array, dtype = self._inputs[number], self.code.inputs[number].dtype
        if kind_of_memory(array) == device:
            return Tensor(array, dtype)
        made = self._memory.tensor(dtype, tuple(array.shape), device)
        copier(array, made.array, wait=device == HOST)()
        return made

    def _output(self, number: int, device: str) -> Tensor:
        """The array of the caller, or new memory for an output."""
        spec, given = self.code.outputs[number], self._given[number]
        array = given if given is not None and kind_of_memory(given) == device else new_array(self._shape(spec.shape), spec.dtype, device)
        self._made[number] = Tensor(array, spec.dtype)
        return self._made[number]

    def _delivered(self, number: int, made: Tensor) -> Array:
        """An output, copied to the array of the caller, or to the memory of the inputs, if it was computed in other memory."""
        target = self._given[number]
        if target is None:
            wanted = next((a.device.kind for a in self._inputs if isinstance(a, DeviceArray)), HOST)
            target = made.array if wanted == made.device else new_array(tuple(made.array.shape), made.dtype, wanted)
        if target is not made.array:
            copier(made.array, target, wait=True)()
        return target


def _invoked(name: str, code: Code, memory: Memory, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Frame:
    """The call of a function.  RunError if types or shapes of the tensors are not those of its inputs and outputs."""
    for what, specs, given in (("input", code.inputs, inputs), ("output", code.outputs, outputs)):
        for i, (spec, t) in enumerate(zip(specs, given, strict=True)):
            if t.dtype != spec.dtype or len(t.array.shape) != len(spec.shape) or t.device != HOST:
                raise RunError(f"{name} is invoked with {t.dtype}{list(t.array.shape)} on {t.device} as {what} {i}, which is {spec}")
    frame = Frame(code, memory, [t.array for t in inputs], [t.array for t in outputs])
    for i, t in enumerate(outputs):
        if known_extents(code.outputs[i].shape, frame.sizes, f"output {i} of {name}") != tuple(t.array.shape):
            raise RunError(f"{name} is invoked with {list(t.array.shape)} as output {i}, which is {code.outputs[i]} with {frame.sizes}")
    return frame


def _run(n: int, call: Callable[[], object], operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    call()


def _call(function: Callable[..., object], tensors: Sequence[Tensor], sizes: Sequence[int]) -> Callable[[], object]:
    compiled = getattr(function, "ffi", None) if all(t.device == HOST for t in tensors) else None
    if compiled is not None:
        return partial(compiled, *[t.argument for t in tensors], *sizes)
    return partial(function, *[t.array for t in tensors], *sizes)


def _copy_call(source: Array, target: Array) -> Callable[[], object]:
    if isinstance(source, np.ndarray) and isinstance(target, np.ndarray):
        return partial(np.copyto, target, source.reshape(target.shape))
    return copier(source, target, wait=HOST in (kind_of_memory(source), kind_of_memory(target)))
