"""Declare buffers (named, shaped, typed memory in a storage scope) and loads from them.

Buffers are compared by identity; names are for readers and need not be unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tunesmith.ir.expr import Expr
from tunesmith.ir.node import node
from tunesmith.ir.poly import ONE, Index, Poly, mod, poly, product
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

TILE_SCOPE = "amx.tile"
SCOPES = ("global", "workspace", "register", TILE_SCOPE, "shared", "shared.dyn", "local")
"""Storage scopes.

`workspace`: scratch private to a thread, one arena sized at compile time.  `register`: becomes SSA values, so every access must have
constant indices once loops are unrolled and vectorized.  `amx.tile`: the eight tile registers of AMX, 16 rows of 64 bytes each; only tensor
intrinsics access them, a whole tile at a constant index.  The last three are GPU scopes.

Buffers of every scope but `global` lose their contents between iterations of a parallel loop and at its ends.  Lowering rejects a buffer
that is used inside such a loop and live outside it; the interpreter poisons it in each iteration when it checks races."""


class Alignment(NamedTuple):
    """A stride with a given remainder: the stride of a dimension is `offset` plus a multiple of `factor`, in elements.

    Attributes:
        axis: the dimension, counted from the end: -2 is that of rows.  It stays the same if dimensions are added in front.
    """

    axis: int
    factor: Poly
    offset: Poly


class Buffer:
    """A multi-dimensional array in row-major order.

    Args:
        name: for readers; need not be unique.
        shape: extent of each dimension, ints or index expressions.
        dtype: scalar element type.
        scope: one of `SCOPES`.
        pad: unused elements after each run of the last dimension, so that the rows of a shared-memory tile begin in different banks.
        align: dimensions whose strides are enlarged to a remainder.  They hold for the shape that lowering leaves of the buffer.
    """

    __slots__ = ("__weakref__", "align", "dtype", "name", "pad", "scope", "shape")

    def __init__(
        self,
        name: str,
        shape: Iterable[Index],
        dtype: str = "float32",
        scope: str = "global",
        pad: Index = 0,
        align: Iterable[tuple[int, Index, Index]] = (),
    ) -> None:
        if scope not in SCOPES:
            raise ScriptError(f"buffer {name}: unknown storage scope {scope!r}; scopes are {', '.join(SCOPES)}")
        if dt.lanes(dtype) != 1:
            raise ScriptError(f"buffer {name}: element type must be a scalar, got {dtype}")
        self.name = name
        self.shape = tuple(poly(s) for s in shape)
        self.dtype = dtype
        self.scope = scope
        self.pad = poly(pad)
        self.align = tuple(sorted([Alignment(axis, poly(factor), poly(offset)) for axis, factor, offset in align], key=lambda a: a.axis))

    @property
    def sizes(self) -> tuple[Poly, ...]:
        """All numbers of the declaration: the shape, and what determines the strides."""
        return (*self.shape, self.pad, *[x for a in self.align for x in (poly(a.axis), a.factor, a.offset)])

    def with_sizes(self, sizes: Sequence[Poly]) -> Buffer:
        """A new buffer with other `sizes`, in the same order."""
        n = len(self.shape)
        align = [(a.axis, *sizes[n + 2 + 3 * i : n + 4 + 3 * i]) for i, a in enumerate(self.align)]
        return self.like(shape=sizes[:n], pad=sizes[n], align=align)  # type: ignore[arg-type]

    @property
    def strides(self) -> tuple[Poly, ...]:
        """Stride of each dimension, in elements."""
        out = [ONE] * len(self.shape)
        for d in range(len(out) - 2, -1, -1):
            out[d] = out[d + 1] * self.shape[d + 1]
            if d == len(out) - 2:
                out[d] = out[d] + self.pad
            for a in self.align:
                if a.axis == d - len(out):
                    out[d] = out[d] + mod(a.offset - out[d], a.factor)
        return tuple(out)

    @property
    def size(self) -> Poly:
        """Number of elements, including those between the rows."""
        return product(self.shape) if len(self.shape) < 2 else self.strides[0] * self.shape[0]

    @property
    def nbytes(self) -> Poly:
        """Size in bytes."""
        return self.size * dt.nbytes(self.dtype)

    def like(
        self,
        name: str | None = None,
        shape: Iterable[Index] | None = None,
        scope: str | None = None,
        pad: Index | None = None,
        dtype: str | None = None,
        align: Iterable[tuple[int, Index, Index]] | None = None,
    ) -> Buffer:
        """A new buffer with the given properties replaced."""
        return Buffer(
            name or self.name,
            self.shape if shape is None else shape,
            dtype or self.dtype,
            scope or self.scope,
            self.pad if pad is None else pad,
            self.align if align is None else align,
        )

    def __getitem__(self, indices: Index | tuple[Index, ...]) -> BufferLoad:
        return load(self, *(indices if isinstance(indices, tuple) else (indices,)))

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(repr, self.shape))}]"


@node
class BufferLoad(Expr):
    """The element at `indices`, or a vector if `lanes` > 1: lane l is `stride` * l elements further along the last dimension.

    `mask` is the number of leading lanes that are read.  The other lanes are zero; for a `register` buffer they are unspecified.
    """

    buffer: Buffer
    indices: tuple[Poly, ...]
    lanes: int = 1
    stride: Poly | None = None
    mask: Poly | None = None

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return dt.vector(self.buffer.dtype, self.lanes)


def load(buffer: Buffer, *indices: Index) -> BufferLoad:
    """The element of `buffer` at `indices`, one index per dimension."""
    if len(indices) != len(buffer.shape):
        raise ScriptError(f"buffer {buffer.name} has {len(buffer.shape)} dimensions and was indexed with {len(indices)}")
    return BufferLoad(buffer, tuple([poly(i) for i in indices]))
