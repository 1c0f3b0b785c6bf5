"""Calls of functions whose constants were packed ahead: the packing runs once, when the call is prepared.

In a model, the weights of a layer have left the caches when its turn comes again.  `PackedCall.cold` gives a call that takes its
constants from another place each time.
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

_MOST_PLACES = 64
"""Calls in a row that find their constants elsewhere: of small ones too many to stay in a cache of the first level."""
_COMMON = 0x3C
"""Bytes of which every type makes an ordinary number, so that arithmetic takes its usual time."""


def load_call(code: Code, arguments: Sequence[object]) -> PackedCall:
    """A call of compiled code on the arguments of the unscheduled function; constants among them are packed now.

    The packed copies live as long as the call; that they are written again is a segmentation fault.

    Raises:
        RunError: the code cannot be loaded, has no such function, or does not take the arguments.
    """
    module = Module.from_object(code.data)
    given = list(arguments)
    arrays: dict[int, GuardedArray] = {}
    for pack in code.packs:
        if pack.position >= len(given):
            raise RunError(f"{code.function}: got {len(given)} argument(s), and argument {pack.position} is a constant to be packed")
        copy = GuardedArray(pack.spec.dtype, pack.spec.shape)
        module[pack.function](given[pack.position], copy.argument())
        copy.seal()
        given[pack.position] = copy.argument()
        arrays[pack.position] = copy
    return PackedCall(module[code.function], given, arrays)


def cold_memory(size: int) -> Array:
    """So many bytes for constants of `PackedCall.cold`."""
    return np.full(size, _COMMON, np.uint8)


class PackedCall:
    """A call, and the memory that it works on."""

    __slots__ = ("_arrays", "_call", "_function", "_given")

    def __init__(self, function: CompiledFunction, given: Sequence[object], arrays: Mapping[int, GuardedArray]) -> None:
        self._function, self._given, self._arrays = function, list(given), dict(arrays)
        self._call = function.prepared(*given)

    def __call__(self) -> object:
        """Raises RunError: the function does not take the arguments."""
        try:
            return self._call()
        except Exception as error:
            raise self._function.refusal(self._given, error) from error

    def cold(self, constants: Sequence[ParamSpec | None], memory: Array) -> Callable[[], object]:
        """The same call, with constants that are somewhere else in `memory` each time, and hold other numbers.

        Args:
            constants: for each argument its type and shape if it is constant; those of packed ones are known.
            memory: see `cold_memory`; calls share it.
        """
        specs = {i: (a.dtype, a.shape) for i, a in self._arrays.items()}
        specs |= {i: (p.dtype, p.shape) for i, p in enumerate(constants) if p is not None and i not in specs}
        starts, size = {}, 0
        for i, (dtype, shape) in specs.items():
            starts[i] = size
            size += aligned(nbytes(dtype, shape))
        base = -memory.ctypes.data % ALIGNMENT
        places = min((memory.nbytes - base) // size, _MOST_PLACES) if size else 0
        if places < 2:  # there is nothing to be cold, or so much that it is cold anyway
            return self
        calls = []
        for k in range(places):
            given = list(self._given)
            for i, (dtype, shape) in specs.items():
                at = base + k * size + starts[i]
                given[i] = argument_of(dtype, memory[at : at + nbytes(dtype, shape)].view(storage_dtype(dtype)).reshape(shape))
            calls.append(self._function.prepared(*given))
        turns = cycle(calls)
        return lambda: next(turns)()
