"""Schedule functions with too many pointwise blocks for one expression: inline them into stages of bounded size.

Expressions are trees: a chain of 1,000 additions is 1,000 levels deep, and a chain of 30 functions that read their argument twice has 2**30
nodes.  Used only for functions that exceed `block_classes.INLINED` after full inlining.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.expression_size import ExpressionSize
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules import fallback, pointwise
from tunesmith.search.space.rules.block_classes import INLINED, has_own_nests, inlined_sizes, is_output, is_pointwise, is_within

Named = tuple[str, Callable[[Schedule], None]]

STAGE = ExpressionSize(256, 40)
"""Size limit of an inlined expression; a block with a larger one keeps its loops and its buffer."""


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for a function of several blocks that is too large to be inlined completely."""
    if not has_own_nests(func) or all(is_within(size, INLINED) for size in inlined_sizes(func).values()):
        return []
    return [("stages", lambda s: schedule(s, target))]


def schedule(s: Schedule, target: Target) -> None:
    """Inline up to `STAGE`, vectorise pointwise blocks along the last axis, and parallelise the spatial loops."""
    sizes = inlined_sizes(s.func, STAGE)
    for b in blocks_under(s.func.body):
        if is_pointwise(b) and not is_output(s.func, b) and is_within(sizes[b.name], STAGE):
            s.compute_inline(s.get_block(b.name))
    for b in s.blocks():
        if is_pointwise(b) and b.iters:
            pointwise.tile(s, b.name, target, True)
        else:
            fallback.tile(s, b.name, target, True)
