"""Define views: names of a script for a part of a buffer, or for its elements in another shape.

Every access of a view becomes one of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly

Item = Expr | int | float
"""An index as the parser has it: a polynomial, a number, or an integer value."""
Combine = Callable[[str, Item, Item], Item]
"""Combines two indices with an operation, as `combine` of the parser does."""


def held(b: Buffer | BufferView) -> Buffer:
    """The buffer that holds the elements of a buffer or a view."""
    return b if isinstance(b, Buffer) else b.buffer


@dataclass(frozen=True, slots=True)
class BufferView:
    """A view of a buffer; a view without dimensions is the name of a single element.

    Attributes:
        of: the buffer, or another view.
        shape: the extents of the view.
        starts: of a region, its first index in each dimension of `of`; None for the elements of `of` in row-major order.
    """

    of: Buffer | BufferView
    shape: tuple[Poly, ...]
    starts: tuple[Item, ...] | None

    @property
    def buffer(self) -> Buffer:
        """The buffer that holds the elements."""
        return held(self.of)

    @property
    def dtype(self) -> str:
        """The element type."""
        return self.buffer.dtype

    def place(self, indices: Sequence[Item], combine: Combine) -> list[Item]:
        """The indices into the buffer of an element of the view, one for each of its dimensions."""
        if self.starts is None:
            inner = self._reshaped(indices, combine)
        else:
            skipped = len(self.starts) - len(indices)  # a view leaves out leading dimensions of extent 1
            inner = [*self.starts[:skipped], *[combine("add", x, i) for x, i in zip(self.starts[skipped:], indices, strict=True)]]
        return inner if isinstance(self.of, Buffer) else self.of.place(inner, combine)

    def _reshaped(self, indices: Sequence[Item], combine: Combine) -> list[Item]:
        flat: Item = 0
        for i, extent in zip(indices, self.shape, strict=True):
            flat = combine("add", combine("mul", flat, extent), i)
        out: list[Item] = []
        for extent in reversed(self.of.shape[1:]):
            out.insert(0, combine("mod", flat, extent))
            flat = combine("floordiv", flat, extent)
        return [flat, *out] if self.of.shape else []
