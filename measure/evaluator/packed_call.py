"""Prepare calls of functions whose constants are packed ahead: packing runs once, before the call is timed.

In a model, the weights of a layer are evicted from the caches between two executions.  `PackedCall.cold` reproduces this: each call reads
its constants from another address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import numpy as np

from tunesmith.codegen.artifact import Code
from tunesmith.measure.evaluator.guard_pages import Array, GuardedArray, argument_of
from tunesmith.runtime.arrays import ALIGNMENT, aligned, nbytes, storage_dtype
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.module import CompiledFunction, Module
from tunesmith.support.errors import RunError

_MOST_COPIES = 64
"""Limit of copies of the constants in rotation: even small constants then exceed the first-level cache."""
_FILL_BYTE = 0x3C
"""Byte whose repetition is an ordinary number in every dtype, so that arithmetic has its usual speed."""


def load_call(code: Code, arguments: Sequence[object]) -> PackedCall:
    """Bind compiled code to the arguments of the unscheduled function and to the sizes of the code, and pack the constants among them.

    The call owns the packed copies, which are read-only: writing to them is a segmentation fault.

    Raises:
        RunError: the code cannot be loaded, lacks the function, or does not accept the arguments.
    """
    module = Module.from_object(code.data)
    given = [*arguments, *code.sizes]
    arrays: dict[int, GuardedArray] = {}
    for pack in code.packs:
        if pack.position >= len(arguments):
            raise RunError(f"{code.function}: got {len(arguments)} argument(s), but argument {pack.position} is a constant to be packed")
        copy = GuardedArray(pack.spec.dtype, pack.spec.shape)
        module[pack.function](given[pack.position], copy.argument())
        copy.seal()
        given[pack.position] = copy.argument()
        arrays[pack.position] = copy
    return PackedCall(module[code.function], given, arrays)


def cold_memory(size: int) -> Array:
    """Memory of `size` bytes for the constants of `PackedCall.cold`."""
    return np.full(size, _FILL_BYTE, np.uint8)


class PackedCall:
    """A compiled function bound to its arguments and packed constants."""

    __slots__ = ("_arrays", "_call", "_function", "_given")

    def __init__(self, function: CompiledFunction, given: Sequence[object], arrays: Mapping[int, GuardedArray]) -> None:
        self._function, self._given, self._arrays = function, list(given), dict(arrays)
        self._call = function.prepared(*given)

    def __call__(self) -> object:
        """Run the function.  Raises RunError if it does not accept the arguments."""
        try:
            return self._call()
        except Exception as error:
            raise self._function.refusal(self._given, error) from error

    def cold(self, constants: Sequence[ParamSpec | None], memory: Array) -> Callable[[], object]:
        """The same call, but each execution reads its constants from another position in `memory`, with other values.

        Args:
            constants: for each argument, its dtype and shape if it is constant, else None; packed constants may be None.
            memory: see `cold_memory`; calls share it.
        """
        specs = {i: (a.dtype, a.shape) for i, a in self._arrays.items()}
        specs |= {i: (p.dtype, p.shape) for i, p in enumerate(constants) if p is not None and i not in specs}
        starts, size = {}, 0
        for i, (dtype, shape) in specs.items():
            starts[i] = size
            size += aligned(nbytes(dtype, shape))
        base = -memory.ctypes.data % ALIGNMENT
        copies = min((memory.nbytes - base) // size, _MOST_COPIES) if size else 0
        if copies < 2:  # no constants, or so large that they are cold anyway
            return self
        calls = []
        for k in range(copies):
            given = list(self._given)
            for i, (dtype, shape) in specs.items():
                at = base + k * size + starts[i]
                given[i] = argument_of(dtype, memory[at : at + nbytes(dtype, shape)].view(storage_dtype(dtype)).reshape(shape))
            calls.append(self._function.prepared(*given))
        rotation = cycle(calls)
        return lambda: next(rotation)()
