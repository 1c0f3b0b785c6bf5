"""Describe the register tile of a block for the analytic cost: its loops, its vectors, the slots of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith.costmodel.analysis.operation_kinds import COUNTS
from tunesmith.costmodel.analysis.program_analysis import Loop, Store
from tunesmith.costmodel.formulas.expr_graph import Num
from tunesmith.ir.buffer import TILE_SCOPE
from tunesmith.ir.stmt import TENSORIZED
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS, TensorIntrinsic

DIVISION = 16.0
"""Slots of a vector division; multiply-adds have two pipes, division less than one."""
MASK = 0.25
"""Slots of a select on positions: most become loop bounds, some masked loads."""
CALL = 1.2
"""Slots of an operation inside an intrinsic: half of them are fused to multiply-adds."""
REGISTER_SCOPES = ("register", TILE_SCOPE)
"""Scopes of buffers that occupy no memory."""


@dataclass(frozen=True, slots=True)
class Width:
    """The vectorised loop of a tile: its extent, its number of vectors, and their lanes.

    `inside` are all loops of the tensor intrinsic of the tile, from the innermost outwards; its outermost loop is `loop`.  It is empty if
    the tile is made of vector operations.
    """

    loop: Loop | None
    size: Num
    vectors: Num
    lanes: int
    inside: tuple[Loop, ...] = ()

    @property
    def groups(self) -> tuple[Loop, ...]:
        """The loops of the tensor intrinsic inside its outermost loop."""
        return self.inside[:-1]

    @property
    def intrinsic(self) -> TensorIntrinsic | None:
        """The tensor intrinsic of the tile; None if it is made of vector operations."""
        return TENSOR_INTRINSICS.get(self.inside[0].intrinsic) if self.inside else None


def tile_loops(s: Store) -> list[Loop]:
    """The loops of the register tile: tensorized, vectorised and unrolled loops from the innermost outwards."""
    out = []
    for x in s.loops:
        if x.kind not in ("vectorized", "unrolled", TENSORIZED):
            break
        out.append(x)
    return out


def slots_of(counts: Mapping[str, int]) -> float:
    """Slots of one vector of operations; an addition and a multiplication are fused."""
    c = dict.fromkeys(COUNTS, 0) | dict(counts)
    simple = max(c["add"], c["mul"]) + c["max"] + c["select"] + c["cast"] + c["integer"]
    return simple + MASK * c["mask"] + DIVISION * c["div"] + CALL * c["call"]
