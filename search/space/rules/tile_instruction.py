"""Find the product of tiles that computes a contraction: AMX.  Its rows, columns and reduction have constant extents.

The instruction multiplies 16 rows of one operand, in memory at equal distances, by a packed tile of 16 columns of the other, along 16
groups of the reduction.  All three axes are padded to whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import Access, reads, writes
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.intrinsics import BYTE_PRODUCTS
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.tile_products import TILE_ROWS
from tunesmith.schedule.layout import Layout
from tunesmith.search.space.rules.block_classes import vector_axis
from tunesmith.search.space.rules.dot_instruction import contiguous_reductions, operands_of

INSTRUCTIONS = {
    ("bfloat16", "bfloat16", "float32"): ("tdpbf16ps", 2),
    **{(left, right, "int32"): (name, 4) for name, left, right in BYTE_PRODUCTS},
}
"""By the types of the operand with rows, the packed operand and the sums: the instruction, and the elements of a group."""


@dataclass(frozen=True, slots=True)
class TileProduct:
    """How a block uses a product of tiles.

    Attributes:
        instruction: name of the tensor intrinsic.
        suffix: of the intrinsics that clear, load and store the sums.
        group: elements of a group of the reduction.
        rows: position of the iteration variable whose values are the rows of a tile.
        columns: position of the one whose values are the columns.
        reduced: position of the reduction variable whose neighbours form groups.
        left: the read of the operand with rows.
        packed: the read of the packed operand.
        padding: a factor for each iteration variable, to whose multiple its extent is padded.
    """

    instruction: str
    suffix: str
    group: int
    rows: int
    columns: int
    reduced: int
    left: Access
    packed: Access
    padding: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        """Whether an extent is no multiple of that of the instruction."""
        return any(p > 1 for p in self.padding)


def tile_product_of(b: Block, target: Target) -> TileProduct | None:
    """How the block uses a product of tiles that the target has; None if it cannot."""
    columns, (result, *_) = vector_axis(b), writes(b)
    if columns is None or any(e.as_var() is None for e in result.indices) or b.iters[columns].extent.const is None:
        return None
    for (name, group), left, packed in operands_of(b, columns, INSTRUCTIONS):
        if not TENSOR_INTRINSICS.get(f"x86.{name}").is_available(target.features):
            continue
        reduced = _reduced(b, left, packed, group)
        rows = _rows(b, left, packed, columns)
        if reduced is None or rows is None:
            continue
        multiples = {rows: TILE_ROWS, columns: TILE_ROWS, reduced: TILE_ROWS * group}
        padding = tuple([multiples[n] if n in multiples and (it.extent.const or 1) % multiples[n] else 1 for n, it in enumerate(b.iters)])
        suffix = "f32" if result.buffer.dtype == "float32" else "s32"
        return TileProduct(f"x86.{name}", suffix, group, rows, columns, reduced, left, packed, padding)
    return None


def _reduced(b: Block, left: Access, packed: Access, group: int) -> int | None:
    """The reduction variable along which the operand with rows is contiguous, which is one index of the packed operand."""
    for n in contiguous_reductions(b, left, packed, group):
        it = b.iters[n]
        # pad_einsum needs operands indexed by variables.
        if (it.extent.const or 1) % (TILE_ROWS * group) == 0 or any(e.as_var() is it.var for e in left.indices):
            return n
    return None


def _rows(b: Block, left: Access, packed: Access, columns: int) -> int | None:
    """The spatial variable of the operand with rows, and not of the other, with the largest part of whole tiles; the last of several."""
    best: tuple[float, int] | None = None
    for n, it in enumerate(b.iters):
        extent = it.extent.const or 1
        if it.kind != "S" or n == columns or extent == 1 or any(it.var in e.vars for e in packed.indices):
            continue
        used = [e for e in left.indices if it.var in e.vars]
        if len(used) != 1 or used[0] is left.indices[-1] or step_of(used[0], it.var) is None:
            continue
        useful = extent / (-(-extent // TILE_ROWS) * TILE_ROWS)
        if best is None or useful >= best[0]:
            best = useful, n
    return None if best is None else best[1]


def rows_layout(t: TileProduct, b: Block, name: str) -> Layout | None:
    """The layout of the operand with rows in tiles: [other axes, tiles of rows, tiles of the reduction, rows, elements of a row].

    None if its indices are not variables.
    """
    indices = next(a.indices for a in reads(b) if a.buffer.name == name)
    if any(e.as_var() is None for e in indices):
        return None
    row, element = (next(d for d, e in enumerate(indices) if e.as_var() is b.iters[n].var) for n in (t.rows, t.reduced))
    rest = [d for d in range(len(indices)) if d not in (row, element)]
    return [*rest, [row, "/", TILE_ROWS], [element, "/", TILE_ROWS * t.group], [row, "%", TILE_ROWS], [element, "%", TILE_ROWS * t.group]]
