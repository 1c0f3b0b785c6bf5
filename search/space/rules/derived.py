"""Derive schedules for any graph of blocks on CPUs: fuse groups of blocks, and give each block the structure of its class.

The rule enumerates plans (which blocks are inlined, and which are computed in nests of their own) and builds each group of blocks as one
nest with symbolic tile sizes (`search.space.derive`).  It applies to functions for which no rule of a family has a schedule.  Chains of
convolutions are also computed by blocks of rows (`search.space.rules.row_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block, Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.lower.code_size import UNROLLED
from tunesmith.lower.fallback.default_schedule import is_unscheduled
from tunesmith.schedule.outside import acts_outside_of_blocks
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive import scans, scatters
from tunesmith.search.space.derive.axes import AxisClasses
from tunesmith.search.space.derive.nest import Nest
from tunesmith.search.space.derive.normal_form import scheduled
from tunesmith.search.space.derive.packing import packed_operand
from tunesmith.search.space.derive.plans import Plan, members, plans, rows_of
from tunesmith.search.space.derive.regular import is_regular
from tunesmith.search.space.rules import contraction, fallback, pointwise, reductions, row_blocks
from tunesmith.search.space.rules.block_classes import is_contraction, is_output, is_pointwise, is_reduction, vector_axis
from tunesmith.search.space.rules.code_budget import epilogue_size
from tunesmith.search.space.rules.single_reduction import is_of_everything

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for each plan of the blocks with nests of their own and constant sizes; the loops of other blocks are parallelised."""
    blocks = blocks_under(func.body)
    if any(it.extent.const is None for b in blocks for it in b.iters) or scheduled(func):
        return []
    names = [b.name for b in _with_own_nests(func)]
    others = [b.name for b in blocks if b.name not in names]
    if not names:
        return []

    def made(plan: Plan) -> Callable[[Schedule], None]:
        def steps(s: Schedule) -> None:
            schedule(s, plan, target, names if others else None)
            fallback.tile_all(s, others, target, plan.threads)

        return steps

    return [*row_blocks.sketches(func, target), *[(p.name, made(p)) for p in plans(func, target, names if others else None)]]


def _with_own_nests(func: PrimFunc) -> list[Block]:
    """The blocks with nests of their own; none if statements are outside of blocks, because plans consider only accesses of blocks."""
    if acts_outside_of_blocks(func.body):
        return []
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    return [b for n in nests if is_unscheduled(func.with_(body=n)) for b in blocks_under(n)]


def schedule(s: Schedule, plan: Plan, target: Target, names: Collection[str] | None = None) -> None:
    """Build the nests of a plan; `names` are the blocks that were planned, by default all."""
    kept = set() if names is None else {b.name for b in s.blocks()} - set(names)
    for b in [b.name for b in s.blocks() if b.name in plan.inlined]:
        s.compute_inline(s.get_block(b))
    left = [b for b in s.blocks() if b.name not in kept]
    order = [b.name for b in left]
    anchors = [b.name for b in left if b.name in plan.apart or is_output(s.func, b)]
    for group in [members(s.func, a, left, anchors) for a in anchors]:
        names = sorted(group, key=order.index)
        main = contraction_of(s, names, target)
        if main is not None:
            contraction_alone(s, main, names, plan, target)
        elif len(names) > 1:
            Nest(s, names, plan, target).build()
        else:
            alone(s, names[0], plan, target)


def contraction_of(s: Schedule, names: Sequence[str], target: Target) -> str | None:
    """The contraction of a group that contains nothing else but elementwise blocks over its result; None for other groups."""
    first, *others = [s.block(s.get_block(n)) for n in names]
    if not is_contraction(first) or not rows_of(first) or vector_axis(first) is None:
        return None
    axes = AxisClasses(s.blocks())
    if not all(is_pointwise(b) and axes.axes(b.name) == set(axes.spatial(first.name)) for b in others):
        return None
    used = {a.buffer for b in others for a in reads(b)}
    blocks = s.blocks()
    between = blocks[blocks.index(first) + 1 : blocks.index(others[-1])] if others else []
    if any(w.buffer in used for b in between if b not in others for w in writes(b)):
        return None  # the epilogue cannot move to the contraction, before what it reads
    return first.name if epilogue_size(s.func, others) * target.vector_registers <= UNROLLED else None


def contraction_alone(s: Schedule, main: str, names: Sequence[str], plan: Plan, target: Target) -> None:
    """Schedule a contraction and its epilogue in a nest of their own."""
    for n in names[1:-1]:
        s.compute_inline(s.get_block(n))
    b = s.block(s.get_block(main))
    axis = vector_axis(b)
    assert axis is not None
    operand = packed_operand(b, axis, plan.pack, {w.buffer for n in names for w in writes(s.block(s.get_block(n)))})
    chosen = contraction.Plan(
        plan.vector_first,
        None if operand is None else operand.buffer.name,
        operand is not None and operand.buffer.name in s.func.constants,
        None,
        any(it.kind == "R" and 1 < (it.extent.const or 0) <= contraction.WINDOW for it in b.iters),
        axis=axis,
        threads=plan.threads,
    )
    contraction.nest(s, main, names[-1:] if len(names) > 1 else [], [], chosen, target)


def alone(s: Schedule, name: str, plan: Plan, target: Target) -> None:
    """Schedule a block in a nest of its own by its class."""
    b = s.block(s.get_block(name))
    if not b.iters:
        return
    if is_pointwise(b):
        pointwise.tile(s, name, target, plan.threads)
    elif is_reduction(b) and is_of_everything(b):
        reductions.in_ranges(s, name, target, plan.threads)
    elif scans.scan_axis(b) is not None:
        scans.nest(s, name, target, plan.threads)
    elif scatters.is_scatter(b):
        scatters.nest(s, name, target, plan.threads)
    elif is_regular(b):
        Nest(s, [name], plan, target).build()
    else:
        fallback.tile(s, name, target, plan.threads)
