"""Run models compiled ahead of time to a single C function: check the arrays and call it.

The program:

    {"version": 1,
     "name": prefix of the names of its C functions,
     "target": target it was compiled for, informational,
     "inputs": [[name, dtype, shape]], "outputs": [[name, dtype, shape]],
     "workspace": bytes for intermediate tensors}

Two of the C functions (`codegen.llvm.aot`) are called here: `<name>_run_with`, and `<name>_signature`, with which code, program and
constants are checked to belong together.  They do not use TVM-FFI: a C program runs the model in the same way.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import ALIGNMENT, at_address, empty, placed, storage_dtype
from tunesmith.runtime.executor.bound_program import INPUT, OUTPUT, BoundProgram, Functions, Segment, Step, TensorSlot
from tunesmith.runtime.executor.device_memory import Array
from tunesmith.runtime.executor.executable import NamedArrays, payload_of, table
from tunesmith.runtime.executor.executor import Executor, Shape, TensorSpec
from tunesmith.runtime.executor.graph_executor import static_shape, static_specs
from tunesmith.runtime.executor.program_data import field, int_of, text_of
from tunesmith.runtime.thread_support import FORKED_TEXT
from tunesmith.support.errors import RunError

RUN_WITH, SIGNATURE = "_run_with", "_signature"
"""Suffixes of the function names."""
NULL_POINTER, MISALIGNED, NO_MEMORY, FORKED = 1, 2, 3, 4
"""Status codes; 0 is success."""

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
STATUS_TEXTS = {
    NULL_POINTER: "a pointer is null",
    MISALIGNED: f"a tensor is not aligned to its elements, or parameters or workspace not to {ALIGNMENT} bytes",
    NO_MEMORY: "there is no memory for intermediate tensors",
    FORKED: FORKED_TEXT,
}
"""Status code -> its cause."""
_RunWith = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Signature = ctypes.CFUNCTYPE(ctypes.c_uint64)


class NativeModel:
    """The C functions of a model loaded in this process.

    Args:
        name: prefix of their names.
        address: returns the address of a symbol, or raises RunError; the code stays loaded while this is referenced.
    """

    __slots__ = ("_address", "_run", "name", "signature")

    def __init__(self, name: str, address: Callable[[str], int]) -> None:
        self.name = name
        self.signature = int(_Signature(address(name + SIGNATURE))())
        """Signature of the program and constants for which the code was generated."""
        self._run = _RunWith(address(name + RUN_WITH))
        self._address = address

    def __call__(self, parameters: int, inputs: object, outputs: object, workspace: int) -> None:
        """Run the model; the arguments are addresses, and arrays of addresses.  Releases the interpreter lock.

        Raises:
            RunError: the model returned an error status.
        """
        status = self._run(parameters, inputs, outputs, workspace)
        if status:
            raise RunError(f"{self.name}{RUN_WITH} returned {status}: {STATUS_TEXTS.get(status, 'unknown to this tunesmith')}")

    def __repr__(self) -> str:
        return f"<native model {self.name}>"


class AotExecutor(Executor):
    """Runs a program of kind "aot".

    Args:
        program: in the format of the module docstring.
        constants: names and storage.  They are copied into one block, unless they form one already, as in a library.
        functions: the model under its name: `native_functions`.
    Raises:
        RunError: the program is malformed, or does not belong to the code.
    """

    kind = "aot"

    def __init__(self, program: dict[str, Any], constants: NamedArrays, functions: Functions) -> None:
        name = program_name(program)
        inputs = static_specs(field(program, "inputs", "the program"), "inputs")
        outputs = static_specs(field(program, "outputs", "the program"), "outputs")
        super().__init__(inputs, outputs, functions)
        size = int_of(field(program, "workspace", "the program"), "workspace", 0)
        model = functions.get(name)
        if not isinstance(model, NativeModel) or model.signature != signature(program, constants):
            raise RunError(f"the program of the model {name} does not belong to this code: tensors or constants differ. Build it again")
        self._input_shapes, self._output_shapes = [static_shape(s) for s in inputs], [static_shape(s) for s in outputs]
        self._program = _ModelCall(model, inputs, outputs, constants_block(constants), empty(size))

    def _bound_program(self, arrays: Sequence[Array]) -> tuple[BoundProgram, Sequence[Shape]]:
        for i, array in enumerate(arrays):
            if array.shape != self._input_shapes[i]:
                raise self._wrong_shape(i, array)
        return self._program, self._output_shapes


class _ModelCall(BoundProgram):
    """The bound program of one model call, whose arguments are arrays of addresses of the caller's arrays."""

    def __init__(
        self,
        model: NativeModel,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        parameters: np.ndarray,
        workspace: np.ndarray,
    ) -> None:
        self._model, self._split = model, len(inputs)
        self._parameters, self._workspace = parameters, workspace
        # Empty arrays have arbitrary addresses; a null pointer is accepted for them.
        self._memory = [a.ctypes.data if a.nbytes else 0 for a in (parameters, workspace)]
        slots = [
            TensorSlot(storage, i, s.dtype, static_shape(s))
            for storage, specs in ((INPUT, inputs), (OUTPUT, outputs))
            for i, s in enumerate(specs)
        ]
        numbers = tuple(range(len(slots)))
        step = Step(model.name, numbers[: self._split], numbers[self._split :])
        super().__init__(slots, [step], [Segment((0,))], (), empty(0), {model.name: model})

    def _prepare(self, n: int) -> None:
        if any(a is None for a in self._arrays):
            return
        inputs, outputs = _addresses(self._arrays[: self._split]), _addresses(self._arrays[self._split :])
        parameters, workspace = self._memory
        self._calls[0][n] = partial(self._model, parameters, inputs, outputs, workspace)


def native_functions(program: dict[str, Any], address: Callable[[str], int]) -> Functions:
    """The `functions` argument of an `AotExecutor`; `address` as in `NativeModel`.  RunError if the program is malformed."""
    name = program_name(program)
    return {name: NativeModel(name, address)}


def program_name(program: dict[str, Any]) -> str:
    """The name of the model.  RunError if it is not a C identifier."""
    name = text_of(field(program, "name", "the program"), "name")
    if not _IDENTIFIER.fullmatch(name):
        raise RunError(f"name: {name!r} cannot start the names of C functions: use letters, digits and underscores, a letter first")
    return name


def signature(program: dict[str, Any], constants: NamedArrays) -> int:
    """A 64-bit digest of the interface of a model and its table of constants; equal in every process."""
    facts = [[program[key] for key in ("name", "inputs", "outputs", "workspace")], table(constants)]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def constants_block(constants: NamedArrays) -> np.ndarray:
    """The constants in one block, laid out as in `executable.table`: their own memory if it has this layout, else a copy."""
    rows = table(constants)
    _, size = payload_of(constants)
    arrays = [array for _, array in constants]
    start = arrays[0].ctypes.data if arrays else 0
    in_place = [a.flags.c_contiguous and a.ctypes.data == start + row["offset"] for a, row in zip(arrays, rows, strict=True)]
    if size and start % ALIGNMENT == 0 and all(in_place):
        return at_address(start, size, arrays)
    block = empty(size)
    for array, row in zip(arrays, rows, strict=True):
        placed(block, row["offset"], storage_dtype(row["dtype"]).name, array.shape)[...] = array
    return block


def _addresses(arrays: Sequence[Any]) -> object:
    return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
