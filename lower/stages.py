"""Check that a function is in the stage of lowering that a pass promises."""

from __future__ import annotations

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block, BufferStore, For
from tunesmith.ir.visit import walk_objects
from tunesmith.support.errors import InternalError

STAGES = ("SCHEDULED", "OPAQUE", "FLAT", "VECTOR")
"""SCHEDULED: loops around blocks.  OPAQUE: no blocks.  FLAT: accesses of one dimension.  VECTOR: no vectorized or unrolled loops."""


def check_stage(func: PrimFunc, stage: str, after: str) -> None:
    """Refuse a function that is not in `stage`.

    Args:
        func: the function.
        stage: one of `STAGES`; a function in a later stage is in all earlier ones.
        after: the pass that made it, for the message.
    Raises:
        InternalError: with the node that does not belong there.
    """
    level = STAGES.index(stage)
    for n in walk_objects(func.body):
        kind = type(n)
        fault = None
        if kind is Block and level >= STAGES.index("OPAQUE"):
            fault = f"the block {n.name}"
        elif kind in (BufferLoad, BufferStore) and len(n.indices) != 1 and level >= STAGES.index("FLAT"):
            fault = f"an access of {n.buffer.name} with {len(n.indices)} indices"
        elif kind is For and n.kind in ("vectorized", "unrolled") and level >= STAGES.index("VECTOR"):
            fault = f"the {n.kind} loop {n.var}"
        if fault is not None:
            raise InternalError(f"{func.name}: after the pass {after} the function is in stage {stage}, which has no place for {fault}")
