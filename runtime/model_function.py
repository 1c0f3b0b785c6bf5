"""Call a model as one function, from Python and through TVM-FFI, whatever executor runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tunesmith.runtime import dlpack
from tunesmith.runtime.arrays import at_address, nbytes, storage_dtype, typed
from tunesmith.runtime.checker.call_arguments import CallArguments
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.executor.executor import Executor, Shape
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.ffi_callback import ffi_function
from tunesmith.support import dtype as dt

MAIN = "main"
"""Name of the function of every model."""


@dataclass(frozen=True, slots=True)
class ModelParameter:
    """An input or output of a model; extents that depend on the inputs are strings."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    written: bool

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class ModelFunction:
    """The function `main` of a model.

        y = f(x)        # new arrays
        f(x, y)         # destination-passing: arrays for the outputs follow the inputs, and are written
        f.ffi(x, y)     # the same function for C++ and other languages

    In destination-passing style, all tensors are contiguous and in host memory, and outputs share memory with no other tensor, as for
    compiled functions.

    Args:
        executor: runs the model.
        native: the TVM-FFI function in the library of the model; None if there is none, and Python runs the executor.
    """

    __slots__ = ("_arguments", "_ffi", "executor", "name")

    def __init__(self, executor: Executor, native: tvm_ffi.Function | None = None) -> None:
        self.name = MAIN
        self.executor = executor
        params = [ModelParameter(s.name, s.dtype, s.shape, False) for s in executor.inputs]
        params += [ModelParameter(s.name, s.dtype, s.shape, True) for s in executor.outputs]
        self._arguments = CallArguments(MAIN, params)
        self._ffi = native

    @property
    def ffi(self) -> tvm_ffi.Function:
        """The TVM-FFI function `main(inputs..., outputs...)`, whose result is None; it keeps the model alive."""
        if self._ffi is None:
            self._ffi = ffi_function(partial(_run_into, self.executor, self._arguments))
        return self._ffi

    def __call__(self, *arrays: object) -> Any:
        """Run the model.

        Args:
            arrays: the inputs, in order; or the inputs and an array for each output.
        Returns:
            The output, or a tuple if there are several, as new numpy arrays; None if arrays for the outputs were given.
        Raises:
            RunError: an argument does not match its parameter.
        """
        if self.executor.outputs and len(arrays) == len(self._arguments.params):
            return _run_into(self.executor, self._arguments, *arrays)
        return self.executor(*arrays)

    def bind(self, *arrays: object) -> Callable[[], Any]:
        """A call on these arrays, which are read at each call."""
        return partial(self, *arrays)

    def __repr__(self) -> str:
        return f"<function {self._arguments} of {self.executor!r}>"


def _run_into(executor: Executor, arguments: CallArguments, *arrays: object) -> None:
    """Check inputs and outputs, and run the model.  RunError if an argument is invalid; the message names it."""
    arguments.check_count(arrays)
    views = [_view(arguments, i, array) for i, array in enumerate(arrays)]
    memory = [(v.address, v.address + nbytes(v.dtype, v.shape)) for v in views]
    for i, (begin, end) in enumerate(memory):
        for j, (first, last) in enumerate(memory[:i]):
            if begin < end and first < last and begin < last and first < end:
                arguments.refuse_shared(i, j)
    n = len(executor.inputs)

    def outputs(shapes: Sequence[Shape]) -> list[np.ndarray]:
        for i, (view, shape) in enumerate(zip(views[n:], shapes, strict=True), n):
            if view.shape != tuple(shape):
                raise arguments.refusal(i, f"got shape {list(view.shape)}, and these inputs give {list(shape)}")
        return [_storage(view) for view in views[n:]]

    executor.run_into([typed(_storage(view), view.dtype) for view in views[:n]], outputs)


def _view(arguments: CallArguments, i: int, array: object) -> TensorView:
    view = arguments.view(i, array)
    arguments.check_type(i, view.dtype, view.shape)
    arguments.check_layout(i, view)
    kind, index = view.device
    if kind != dlpack.CPU:
        raise arguments.refusal(
            i, f"got memory of DLPack device type {kind}, index {index}: pass a tensor in CPU memory (device type {dlpack.CPU})"
        )
    arguments.check_address(i, view, dt.nbytes(view.dtype), "the element size ")
    return view


def _storage(view: TensorView) -> np.ndarray:
    """The memory of a view, kept alive by the result, as an array of the storage type."""
    size, dtype = nbytes(view.dtype, view.shape), storage_dtype(view.dtype)
    if not size:
        return np.empty(view.shape, dtype)
    return at_address(view.address, size, view).view(dtype).reshape(view.shape)
