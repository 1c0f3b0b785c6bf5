"""Check the arguments of functions that run in Python, with the messages of `runtime.checker.argument_checker`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tunesmith.runtime import dlpack
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.lazy_negation import is_negated, negation
from tunesmith.support.errors import RunError


class Parameter(Protocol):
    """A parameter: its name, element type and shape, and whether the function writes it.  As a string, `float32[4, n]`.

    Extents that are strings depend on the call, and are not compared.
    """

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def dtype(self) -> str:
        """A scalar type of `support.dtype`."""

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Extents, outermost first."""

    @property
    def written(self) -> bool:
        """Whether the function writes to the argument."""


@dataclass(frozen=True, slots=True)
class UnusableValue:
    """An argument of a C caller that is not a tensor.

    Attributes:
        text: what it is, for the message.
    """

    text: str


class CallArguments:
    """The arguments of one function.

    Args:
        name: name of the function.
        params: its parameters.
    """

    def __init__(self, name: str, params: Sequence[Parameter]) -> None:
        self.name = name
        self.params: Sequence[Parameter] = params

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.name}: {p}' for p in self.params)})"

    def check_count(self, arguments: Sequence[object]) -> None:
        """Raise RunError if there are more or fewer arguments than parameters."""
        if len(arguments) != len(self.params):
            raise RunError(f"{self.name}: expected {len(self.params)} argument(s), got {len(arguments)}; signature: {self}")

    def view(self, i: int, argument: Any, stream: int | None = None) -> TensorView:
        """A view of an argument of any library.

        Args:
            i: number of the argument.
            argument: numpy array, any other array with DLPack, or a view.
            stream: for CUDA arrays, the DLPack number of the stream of the call.
        Raises:
            RunError: the argument is not an array, cannot be exported, or is read-only and is written.
        """
        if isinstance(argument, UnusableValue):
            raise self.refusal(i, f"got {argument.text}")
        found = argument if isinstance(argument, TensorView) else self._exported(i, argument, stream)
        if self.params[i].written and found.read_only:
            raise self.refusal(i, "got a read-only array, and it is written: pass a writable copy")
        return found

    def _exported(self, i: int, argument: Any, stream: int | None) -> TensorView:
        if isinstance(argument, np.ndarray):
            return dlpack.numpy_view(argument)
        kind = f"{type(argument).__module__}.{type(argument).__name__}".removeprefix("builtins.")
        if not hasattr(argument, "__dlpack__") or not hasattr(argument, "__dlpack_device__"):
            raise self.refusal(i, f"got a value of type {kind}: pass an array (numpy, torch or any other with DLPack)")
        if is_negated(argument):
            raise negation(f"{self.name}: argument {i} ({self.params[i].name})", argument)
        try:
            on_gpu = int(argument.__dlpack_device__()[0]) == dlpack.CUDA
            return dlpack.read(argument, stream if on_gpu else None)
        except Exception as error:  # libraries raise exceptions of any type
            raise self.refusal(i, f"got a {kind} that cannot be passed through DLPack: {error}") from error

    def check_type(self, i: int, dtype: str, shape: Sequence[int]) -> None:
        """Raise RunError if element type or shape differ from those of parameter `i`."""
        if dtype != self.params[i].dtype:
            raise self.refusal(i, f"got dtype {dtype}")
        expected = self.params[i].shape
        if len(shape) != len(expected) or any(e != n for e, n in zip(expected, shape, strict=True) if not isinstance(e, str)):
            raise self.refusal(i, f"got shape {list(shape)}")

    def check_layout(self, i: int, view: TensorView) -> None:
        """Raise RunError if a view is not contiguous and row-major."""
        if not dlpack.contiguous(view.shape, view.strides):
            hint = "it must be contiguous and row-major, pass a copy (numpy.ascontiguousarray)"
            raise self.refusal(i, f"got strides {list(view.strides or ())} (in elements): {hint}")

    def check_address(self, i: int, view: TensorView, alignment: int, unit: str = "") -> None:
        """Raise RunError if the address of a view with elements is null, or not a multiple of `alignment`, which `unit` explains."""
        if 0 in view.shape:
            return
        if not view.address:
            raise self.refusal(i, "got a null pointer")
        if view.address % alignment:
            raise self.refusal(i, f"got the address {view.address:#x}, which is not a multiple of {unit}{alignment}: pass a copy")

    def refuse_shared(self, i: int, j: int) -> None:
        """Raise RunError, because arguments `i` and `j` share memory, if one of the two is written."""
        if self.params[i].written or self.params[j].written:
            shared = f"got memory that it shares with argument {j} ({self.params[j].name})"
            raise self.refusal(i, f"{shared}, and one of the two is written: pass separate arrays")

    def refusal(self, i: int, got: str) -> RunError:
        """The error that names argument `i`."""
        return RunError(f"{self.name}: argument {i} ({self.params[i].name}): expected {self.params[i]}, {got}")
