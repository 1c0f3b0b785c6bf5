"""The interface of compiled things: functions of a CPU or a device and models answer to the same calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.runtime.executor.executor import Profile, ProfileRow
from tunesmith.runtime.timing import Samples
from tunesmith.support.errors import UserError


class Compiled(ABC):
    """Compiled functions or a compiled model, in this process.

        lib["matmul"](a, b, c)             # one function by name; a model is "main"
        lib(a, b, c)                       # the only function, or the model
        lib.bind(a, b, c)()                # for repeated calls on the same arguments
        lib.time(a, b, c).median           # seconds per call
        print(lib.profile(a, b, c))        # microseconds of each part
        lib.export_library("lib.so")       # for tunesmith.load_module

    Attributes:
        coverage: the result of the record lookup, for each function looked up.
        remarks: warnings about the programs, for example an accumulation into an argument; see `ir.remarks`.
    """

    coverage: tuple[Coverage, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def functions(self) -> tuple[str, ...]:
        """Names of all functions, sorted."""

    @abstractmethod
    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The function `name`.  UserError if there is none."""

    @abstractmethod
    def __call__(self, *arguments: object) -> Any:
        """Call the only function, or the model.

        Raises:
            UserError: there are several functions.
            RunError: an argument does not match its parameter.
        """

    @abstractmethod
    def bind(self, *arguments: object, name: str | None = None) -> Callable[[], Any]:
        """Bind a function to its arguments, for repeated calls.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument does not match its parameter.
        """

    @abstractmethod
    def time(self, *arguments: object, name: str | None = None, repeats: int = 7) -> Samples:
        """Time a function on these arguments; its outputs are overwritten as in any call.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
            repeats: number of samples.
        Returns:
            Seconds per call of each sample.
        Raises:
            UserError: there are several functions, or none of this name.
            RunError: an argument does not match its parameter.
        """

    @abstractmethod
    def profile(self, *arguments: object, repeats: int = 10) -> Profile:
        """Microseconds of each call of the program; as a string, a table sorted by decreasing time."""

    @abstractmethod
    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Raises:
            BuildError: the library cannot be linked or written.
        """


class CompiledModule(Compiled):
    """Compiled functions by name.

    Attributes:
        artifact: the code, as data.
    """

    artifact: Artifact

    def __call__(self, *arguments: object) -> Any:
        """Call the only function.

        Raises:
            UserError: there are several functions.
            RunError: an argument does not match its parameter.
        """
        return self[self.function_name(None)](*arguments)

    def profile(self, *arguments: object, repeats: int = 10) -> Profile:
        """Microseconds of the only function, as a profile with one row.

        Raises:
            UserError: there are several functions.
            RunError: an argument does not match its parameter.
        """
        name = self.function_name(None)
        return Profile([ProfileRow(0, name, self.time(*arguments, repeats=repeats).median * 1e6, repeats)])

    def function_name(self, name: str | None) -> str:
        """`name` if there is such a function, or the name of the only function.

        Raises:
            UserError: there are several functions, or none of this name.
        """
        names = self.artifact.functions
        if name is None and len(names) != 1:
            raise UserError(f"the module has the functions {', '.join(names)}: call one of them, as module[name](...)")
        if name is not None and name not in names:
            raise UserError(f"the module has no function {name!r}; it has {', '.join(names)}")
        return names[0] if name is None else name
