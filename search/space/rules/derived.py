"""Derive schedules for any graph of blocks on CPUs: fuse groups of blocks, and give each block the structure of its class.

The rule enumerates plans (which blocks are inlined, and which are computed in nests of their own) and builds each group of blocks as one
nest with symbolic tile sizes (`search.space.derive`).  It applies to functions for which no rule of a family has a schedule.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.lower.fallback.default_schedule import is_unscheduled
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.nest import Nest
from tunesmith.search.space.derive.plans import Plan, is_regular, members, plans
from tunesmith.search.space.rules import fallback, pointwise, reductions
from tunesmith.search.space.rules.block_classes import is_output, is_pointwise, is_reduction
from tunesmith.search.space.rules.single_reduction import is_of_everything

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for each plan of a function with constant sizes."""
    blocks = blocks_under(func.body)
    if not is_unscheduled(func) or any(it.extent.const is None for b in blocks for it in b.iters):
        return []
    return [(p.name, lambda s, p=p: schedule(s, p, target)) for p in plans(func, target)]  # type: ignore[misc]


def schedule(s: Schedule, plan: Plan, target: Target) -> None:
    """Build the nests of a plan."""
    for b in [b.name for b in s.blocks() if b.name in plan.inlined]:
        s.compute_inline(s.get_block(b))
    order = [b.name for b in s.blocks()]
    anchors = [b.name for b in s.blocks() if b.name in plan.apart or is_output(s.func, b)]
    for group in [members(s.func, a, s.blocks(), anchors) for a in anchors]:
        names = sorted(group, key=order.index)
        if len(names) > 1:
            Nest(s, names, plan, target).build()
        else:
            alone(s, names[0], plan, target)


def alone(s: Schedule, name: str, plan: Plan, target: Target) -> None:
    """Schedule a block in a nest of its own by its class."""
    b = s.block(s.get_block(name))
    if not b.iters:
        return
    if is_pointwise(b):
        pointwise.tile(s, name, target, plan.threads)
    elif is_reduction(b) and is_of_everything(b):
        loops = [x for x, it in zip(s.get_loops(s.get_block(name)), b.iters, strict=True) if it.kind == "R"]
        reductions.in_ranges(s, loops, target, plan.threads)
    elif is_regular(b):
        Nest(s, [name], plan, target).build()
    else:
        fallback.tile(s, name, plan.threads)
