"""Call a model, whatever executor runs it: `model(x)` returns new arrays; `set_input`, `run` and `get_output` reuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np

from tunesmith.runtime.compiled import Compiled
from tunesmith.runtime.executor.executor import Executor, TensorSpec
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.loaded_library import LibraryFiles
from tunesmith.runtime.model_function import MAIN, ModelFunction
from tunesmith.runtime.profile import Profile
from tunesmith.runtime.timing import Samples, TimingPolicy, measure
from tunesmith.support.errors import RunError


class Model(Compiled):
    """A model in this process: `model(x)` returns its results as numpy arrays, one or a tuple.  Its one function is `main`.

    Args:
        executor: runs the program of the model.
        native: the TVM-FFI function in the library of the model, if it has one.
    """

    def __init__(self, executor: Executor, native: tvm_ffi.Function | None = None) -> None:
        self.executor = executor
        self._main = ModelFunction(executor, native)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in order."""
        return self.executor.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in order."""
        return self.executor.outputs

    @property
    def functions(self) -> tuple[str, ...]:
        """`main`, the model."""
        return (MAIN,)

    def __getitem__(self, name: str) -> ModelFunction:
        """The function `main`, with the interface of the functions of modules; a model has no other.

        Raises:
            RunError: another name.
        """
        if name != MAIN:
            raise RunError(
                f"a compiled model is called as a whole, model(...) or model['main'](...), and has no callable function {name!r:.100}"
            )
        return self._main

    def __call__(self, *arrays: object, **named: object) -> np.ndarray | tuple[np.ndarray, ...]:
        """Compute the results of the inputs, by position or by name.  Raises RunError if an input does not match its parameter."""
        return self.executor(*arrays, **named)

    def bind(self, *arrays: object, name: str | None = None) -> Callable[[], np.ndarray | tuple[np.ndarray, ...]]:
        """A call of the model on these inputs, for repeated calls; the arrays are read at each call.

        Raises:
            RunError: `name` is not `main`; or, from the call, an input does not match its parameter.
        """
        return partial(self[MAIN if name is None else name], *arrays)

    def time(self, *arrays: object, name: str | None = None, repeats: int = 7, policy: TimingPolicy | None = None) -> Samples:
        """Time the model on these inputs.

        Args:
            arrays: the inputs, in order.
            name: `main`, or None.
            repeats: number of clean samples.
            policy: all timing parameters; by default `TimingPolicy(repeats=repeats)`.
        Raises:
            RunError: `name` is not `main`, or an input does not match its parameter.
            UserError: `repeats` is not a number of samples.
        """
        policy = policy or replace(TimingPolicy(), repeats=repeats)
        call = self.bind(*arrays, name=name)
        call()
        return measure(call, policy)

    def profile(self, *arrays: object, name: str | None = None, repeats: int = 10) -> Profile:
        """Microseconds of each call; as a string, a table sorted by decreasing time.

        Args:
            arrays: the inputs; if omitted, those that were set.
            name: `main`, or None.
            repeats: number of timed runs.
        Raises:
            RunError: `name` is not `main`, or an input does not match its parameter.
            UserError: `repeats` is not an integer of at least 1.
        """
        _ = self[MAIN if name is None else name]
        return self.executor.profile(*arrays, repeats=repeats)

    def set_input(self, which: str | int, array: object) -> None:
        """Set an input of `run`, by name or position."""
        self.executor.set_input(which, array)

    def run(self) -> None:
        """Compute the results of the inputs set."""
        self.executor.run()

    def get_output(self, which: str | int) -> np.ndarray:
        """A result of the last run: an array of the executor, overwritten by the next run."""
        return self.executor.get_output(which)

    def __repr__(self) -> str:
        return f"<model of {self.executor!r}>"


class LoadedModel(Model):
    """A model of a library.

    Args:
        executor: runs the program of the model.
        files: the library, and its parameters if they are in a file beside it.
        native: the TVM-FFI function of a model compiled ahead of time.
    """

    def __init__(self, executor: Executor, files: LibraryFiles, native: tvm_ffi.Function | None = None) -> None:
        super().__init__(executor, native)
        self._files = files

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Copy the library, and the parameters beside it, to `path` and `path` with `.params`; returns the path.

        Raises:
            RunError: the library was replaced or removed after it was loaded, or the copy cannot be written.
        """
        return self._files.copy(path)
