"""Calls of functions whose constants were packed ahead: the packing runs once, when the call is prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.codegen.artifact import Code
from tunesmith.measure.guarded_memory import GuardedArray
from tunesmith.runtime.module import Module


def load_call(code: Code, arguments: Sequence[object]) -> Callable[[], object]:
    """A call of compiled code on the arguments of the unscheduled function; constants among them are packed now.

    The packed copies live as long as the call; that they are written again is a segmentation fault.

    Raises:
        RunError: the code cannot be loaded, has no such function, or does not take the arguments.
    """
    module = Module.from_object(code.data)
    given = list(arguments)
    arrays: list[GuardedArray] = []
    for pack in code.packs:
        copy = GuardedArray(pack.spec.dtype, pack.spec.shape)
        module[pack.function](given[pack.position], copy.argument())
        copy.seal()
        given[pack.position] = copy.argument()
        arrays.append(copy)
    return _Call(module[code.function].bind(*given), arrays)


class _Call:
    """The call, and the memory that it works on."""

    __slots__ = ("_arrays", "_call")

    def __init__(self, call: Callable[[], object], arrays: list[GuardedArray]) -> None:
        self._call, self._arrays = call, arrays

    def __call__(self) -> object:
        return self._call()
