"""The interface of compiled things: functions of a CPU or a device, and models, compiled in this process or loaded from a library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.profile import Profile, ProfileRow
from tunesmith.runtime.timing import Samples
from tunesmith.support.errors import RunError


class CompiledCallable(Protocol):
    """A function of any compiled thing."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def ffi(self) -> tvm_ffi.Function:
        """The type-erased function of TVM-FFI: `ffi(inputs..., outputs...)` writes the outputs; it takes tensors of any language."""

    def __call__(self, *arguments: Any) -> Any:
        """Run it.  RunError if an argument does not match its parameter."""

    def bind(self, *arguments: Any) -> Callable[[], Any]:
        """A call on these arguments, for repeated calls."""


class Compiled(ABC):
    """Compiled functions or a compiled model, in this process.

        lib["matmul"](a, b, c)             # one function by name; a model is "main"
        lib(a, b, c)                       # the only function, or the model
        lib["matmul"].ffi                  # the function for C++ and other languages
        lib.bind(a, b, c)()                # for repeated calls on the same arguments
        lib.time(a, b, c).median           # seconds per call
        print(lib.profile(a, b, c))        # microseconds of each part
        lib.export_library("lib.so")       # for tunesmith.load_module

    Iterating gives the names, as does `functions`: `"matmul" in lib`.
    """

    @property
    @abstractmethod
    def functions(self) -> tuple[str, ...]:
        """Names of all functions, sorted."""

    @abstractmethod
    def __getitem__(self, name: str) -> CompiledCallable:
        """The function `name`.  RunError if there is none."""

    @abstractmethod
    def bind(self, *arguments: object, name: str | None = None) -> Callable[[], Any]:
        """Bind a function to its arguments, for repeated calls.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
        Raises:
            RunError: there are several functions, or none of this name; an argument does not match its parameter.
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
            RunError: there are several functions, or none of this name; an argument does not match its parameter.
        """

    @abstractmethod
    def export_library(self, path: str | PathLike[str]) -> Path:
        """Write a shared library that `load_module` loads, with or without tunesmith installed; returns the path.

        Choose a name that is no Python module of the folder, such as `libfused.so`: beside `fused.py`, `import fused` would load
        `fused.so` in its place, and fail.

        Raises:
            UserError: the library cannot be linked or written.
        """

    def __call__(self, *arguments: object) -> Any:
        """Call the only function, or the model.

        Raises:
            RunError: there are several functions, or an argument does not match its parameter.
        """
        return self[self.function_name()](*arguments)

    def profile(self, *arguments: object, name: str | None = None, repeats: int = 10) -> Profile:
        """Microseconds of each call of the program; as a string, a table sorted by decreasing time.

        A function is one call.

        Args:
            arguments: arguments of the function, in order.
            name: name of the function; optional if there is only one.
            repeats: number of samples.
        Raises:
            RunError: there are several functions, or none of this name; an argument does not match its parameter.
        """
        name = self.function_name(name)
        return Profile([ProfileRow(0, name, self.time(*arguments, name=name, repeats=repeats).median * 1e6, repeats)])

    def function_name(self, name: str | None = None) -> str:
        """`name` if there is such a function, or the name of the only function.

        Raises:
            RunError: there are several functions, or none of this name.
        """
        names = self.functions
        if name is None and len(names) != 1:
            raise RunError(
                f"{self!r} has several functions: call one of them, as in module[{names[0]!r}](...), or choose it with the argument "
                f"name={names[0]!r} of bind, time and profile"
            )
        if name is not None and not isinstance(name, str):
            raise RunError(f"a function is named by a string, got {type(name).__name__}. There are: {', '.join(names)}")
        if name is not None and name not in names:
            raise RunError(f"{self!r} has no function {name!r:.100}. It has: {', '.join(names)}")
        return names[0] if name is None else name

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> object:
            """Refuse what only the result of `tunesmith.compile` has."""
            if name in ("coverage", "remarks"):
                raise AttributeError(f"{name} belongs to the result of tunesmith.compile; a loaded library does not store it")
            return super().__getattribute__(name)

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is code of this process, which cannot be pickled or copied: write a library with export_library(path)")
