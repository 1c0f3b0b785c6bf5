"""Describe an argument of a compiled function: name, element type and constant shape.

Generated host entry points check arguments against it, and modules display it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import BuildError


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A tensor argument: contiguous, row-major, in the memory of the device that runs the function.

    Args:
        name: name for error messages; any text.
        dtype: a scalar type of `support.dtype` ("float32", "bfloat16", "bool", ...).
        shape: extents, outermost first; () is one element.
        written: the function writes to the argument.  Kernels assume that their pointers do not alias, so a written
            argument must not share memory with another one: the entry point checks this.
    Raises:
        BuildError: the type is a vector, or an extent is not an integer >= 0.
        ScriptError: the type is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    written: bool = False

    def __post_init__(self) -> None:
        if dtypes.lanes(self.dtype) != 1:
            raise BuildError(f"argument {self.name}: a buffer of {self.dtype}. An argument holds scalars: use {dtypes.element(self.dtype)}")
        for extent in self.shape:
            if not isinstance(extent, int) or extent < 0:
                raise BuildError(
                    f"argument {self.name}: extent {extent!r} of shape {list(self.shape)!r} is not a number >= 0. "
                    "Compiled functions have constant shapes: bind the symbolic extents before building"
                )

    @property
    def nbytes(self) -> int:
        """Size of the argument in bytes; 0 if it is empty."""
        return math.prod(self.shape) * dtypes.nbytes(self.dtype)

    def __str__(self) -> str:
        """`float32[512, 512]`, as error messages show it."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
