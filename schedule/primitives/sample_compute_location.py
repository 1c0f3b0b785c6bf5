"""Sample the loop in which a producer is computed."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.schedule.handles import INLINE, ROOT, BlockRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.compute_at import compute_at
from tunesmith.schedule.primitives.compute_inline import compute_inline
from tunesmith.schedule.state import ScheduleState


@primitive
def sample_compute_location(s: ScheduleState, block: BlockRV, decision: Sequence[int] | None = None) -> LoopRV:
    """A loop for `compute_at(block, loop)`, drawn from those that it accepts; or two choices without a loop.

    Args:
        block: the producer.
        decision: n for the n-th loop around the consumers, outermost first; -1 to leave the block; -2 to inline it.  `compute_at` carries
            out each of them.
    Requires:
        concrete: the schedule has no open sizes, because programs with the block at different places are different sketches: a rule makes
            one for each element of `compute_locations`.
        decision: a given decision is one integer of `compute_locations`.
        block-exists: the block is still in the program.
    """
    locations = compute_locations(s, block)
    if s.parametric:
        what = "a location cannot stay open, like a size: make a sketch for each element of compute_locations"
        raise s.refuse("concrete", f"{what}, here {', '.join(map(str, locations))}", s.block(block))
    s.sample(["location"], [locations], decision, least=INLINE_LOCATION)
    assert s.decision is not None
    (chosen,) = s.decision
    if chosen not in locations:
        raise s.refuse("decision", f"location {chosen} is not one of {', '.join(map(str, locations))}", s.block(block))
    if chosen < 0:
        return s.new_loop(ROOT if chosen == ROOT_LOCATION else INLINE)
    return s.new_loop(s.loops_of(_consumers(s, block)[0])[chosen].var)


ROOT_LOCATION, INLINE_LOCATION = -1, -2
"""Decisions without a loop, as in TVM."""


def compute_locations(s: ScheduleState, block: BlockRV) -> list[int]:
    """Where `block` may be computed: -2 if it may be inlined, -1 for its present place, n for the n-th loop around all its consumers.

    Only loops that `compute_at` accepts are included; they are those of `get_loops` of any consumer.
    """
    s.block(block)
    found = [INLINE_LOCATION] if s.accepts(lambda: compute_inline(s, block)) else []
    found.append(ROOT_LOCATION)
    around = [s.loops_of(name) for name in _consumers(s, block)]
    shared = [f for f in around[0] if all(f in x for x in around)] if around else []
    return [*found, *[n for n, f in enumerate(shared) if s.accepts(lambda f=f: compute_at(s, block, LoopRV("", s.number, f.var)))]]  # type: ignore[misc]


def _consumers(s: ScheduleState, block: BlockRV) -> list[str]:
    b = s.block(block)
    made = {w.buffer for w in writes(b)}
    return [c.name for c in s.blocks() if c is not b and any(a.buffer in made for a in reads(c))]
