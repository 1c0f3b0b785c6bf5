"""Check that a function is in the stage of lowering that a pass promises."""

from __future__ import annotations

from collections.abc import Iterator

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import TENSORIZED, Block, BufferStore, For
from tunesmith.ir.visit import walk_objects
from tunesmith.support.errors import InternalError

STAGES = ("SCHEDULED", "OPAQUE", "FLAT", "VECTOR")
"""SCHEDULED: loops around blocks.  OPAQUE: no blocks.  FLAT: accesses of one dimension.  VECTOR: no vectorized, unrolled or tensorized
loops."""


def check_stage(func: PrimFunc, stage: str, after: str) -> None:
    """Check that a function is in `stage`.

    Args:
        func: the function.
        stage: one of `STAGES`; a function in a later stage is in all earlier ones.
        after: the pass that produced the function, for the message.
    Raises:
        InternalError: the function has a node that the stage does not allow; the message names the node.
    """
    for limit, fault in _faults(func):
        if STAGES.index(stage) > STAGES.index(limit):
            raise InternalError(f"{func.name}: after the pass {after} the function is in stage {stage}, which does not allow {fault}")


def stage_of(func: PrimFunc) -> str:
    """The latest stage whose conditions the function meets."""
    return min((limit for limit, _ in _faults(func)), key=STAGES.index, default=STAGES[-1])


def _faults(func: PrimFunc) -> Iterator[tuple[str, str]]:
    """Nodes that are not allowed after some stage: (the last stage that allows the node, its description)."""
    for n in walk_objects(func.body):
        kind = type(n)
        if kind is Block:
            yield "SCHEDULED", f"the block {n.name}"
        elif kind in (BufferLoad, BufferStore) and len(n.indices) != 1:
            yield "OPAQUE", f"an access of {n.buffer.name} with {len(n.indices)} indices"
        elif kind is For and n.kind in ("vectorized", "unrolled", TENSORIZED):
            yield "FLAT", f"the {n.kind} loop {n.var}"
