"""Enumerate the structural plans of a function: which blocks are inlined, which are computed in nests of their own, packing, order.

A plan partitions the blocks into groups.  The last block of a group is its anchor: the others are computed inside the anchor's loops, over
the part of their output that one iteration needs.  A block in a group has all its consumers there.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tunesmith.ir.analysis.access_regions import accesses, writes
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.search.space.derive.axes import AxisClasses
from tunesmith.search.space.derive.regular import is_regular
from tunesmith.search.space.rules.block_classes import (
    INLINED,
    consumers,
    inlined_sizes,
    is_contraction,
    is_output,
    is_pointwise,
    is_within,
    operands,
    producers,
    vector_axis,
)

TASKS_PER_CORE = 2
"""Minimum number of iterations of the shared loops of a group for each core: with fewer, the group is divided."""
CHOICES = 2
"""Maximum number of blocks that are inlined in some plans only; of more, all or none are."""
SEPARATE = 3
"""Maximum number of groups of the plan without any fusion: with more, its sketch has too many tile sizes of little effect."""
COMBINED = 7
"""Maximum number of blocks of functions whose choices are combined; in larger ones, each plan chooses all or nothing."""
LISTED = 100
"""Maximum number of characters of a list of blocks in a name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        apart: blocks that are anchors although they are no outputs.
        inlined: elementwise blocks that are inlined into their consumers.
        pack: operands of contractions that are contiguous along the vector axis are packed, too; others always are.
        vector_first: the register tiles of a task are iterated along the vector axis in the outermost loop.
        threads: the outermost loops are parallel.
    """

    apart: frozenset[str] = frozenset()
    inlined: frozenset[str] = frozenset()
    pack: bool = False
    vector_first: bool = False
    threads: bool = True

    @property
    def name(self) -> str:
        """A readable name, unique among the plans of a function."""
        parts = [f"{key}({_listed(names)})" for key, names in (("apart", self.apart), ("inline", self.inlined)) if names]
        marks = [mark for mark, on in (("vec-rows", self.vector_first), ("pack", self.pack), ("serial", not self.threads)) if on]
        return " ".join(["derived", *parts, *marks])


def _listed(names: Iterable[str]) -> str:
    """The names in order; a long list is cut, and ends with its digest: records have names of at most 256 characters."""
    text = ",".join(sorted(names))
    return text if len(text) <= LISTED else f"{text[: LISTED - 20]}..{blake2b(text.encode(), digest_size=4).hexdigest()}"


def plans(func: PrimFunc, target: Target, names: Collection[str] | None = None) -> list[Plan]:
    """The plans of a function with constant sizes, or only of some of its blocks, which have one loop for each variable.

    Args:
        func: the function.
        target: the machine.
        names: the blocks that are planned, by default all; the others are scheduled already, and stay as they are.
    """
    blocks = [b for b in blocks_under(func.body) if names is None or b.name in names]
    axes = AxisClasses(blocks)
    always, sometimes = _inlined(func, blocks, axes)
    tiled = [b for b in blocks if is_contraction(b) and rows_of(b)]
    packing = (False, True) if any(_has_contiguous_operand(b) for b in tiled) else (False,)
    large = len(blocks) - len(always) > COMBINED
    if not tiled:
        tilings = [(False, False)]
    elif large:
        tilings = [(False, False), (packing[-1], True)]
    else:
        tilings = list(itertools.product(packing, (False, True)))
    out: dict[str, Plan] = {}
    for extra in _subsets(sometimes, 1 if large else CHOICES):
        inlined = frozenset((*always, *extra))
        for apart in _partitions(func, [b for b in blocks if b.name not in inlined], inlined, axes, target):
            for pack, first in tilings:
                plan = Plan(apart, inlined, pack, first)
                out.setdefault(plan.name, plan)
    if worth_serial(func, target):
        out |= {p.name: p for p in [replace(p, threads=False) for p in out.values()]}
    return list(out.values())


def _has_contiguous_operand(b: Block) -> bool:
    """Whether an operand that rows reuse is contiguous along the vector axis, so that packing it is a choice."""
    axis = vector_axis(b)
    rows = {b.iters[n].var for n in rows_of(b)}
    return axis is not None and any(b.iters[axis].var in o.contiguous and not rows <= o.iters for o in operands(b))


def _subsets(names: Sequence[str], most: int) -> Iterable[tuple[str, ...]]:
    if len(names) > most:
        return [(), tuple(names)]
    return itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1))


# ---- inlining ---------------------------------------------------------------------------------------------------------


def _inlined(func: PrimFunc, blocks: Sequence[Block], axes: AxisClasses) -> tuple[list[str], list[str]]:
    """Elementwise blocks that are inlined always, and those that are inlined in some plans.

    A block whose consumer has more axes would be recomputed along them.  That can pay off if the block is cheap.
    """
    always: list[str] = []
    sometimes: list[str] = []
    small = inlined_sizes(func)
    planned = {b.name for b in blocks}
    several = _written_by_several(blocks_under(func.body))
    for b in blocks:
        if not is_pointwise(b) or is_output(func, b) or not is_within(small[b.name], INLINED) or _is_looked_up(func, b):
            continue
        if any(w.buffer in several for w in writes(b)):
            continue  # a scatter updates what its initial block writes
        readers = consumers(func, b)
        if any(c.name not in planned for c in readers):
            continue  # inlining would change a block that is scheduled already
        same = all(axes.axes(c.name) <= axes.axes(b.name) for c in readers)
        if is_copy(b) or (len(readers) == 1 and same and not is_contraction(readers[0])):
            always.append(b.name)
        elif is_cheap(b) and (same or len(readers) == 1):
            sometimes.append(b.name)
    return always, sometimes


def _written_by_several(blocks: Sequence[Block]) -> set[Buffer]:
    """The buffers that more than one block writes."""
    writers = Counter(buffer for b in blocks for buffer in {w.buffer for w in writes(b)})
    return {buffer for buffer, n in writers.items() if n > 1}


def is_copy(b: Block) -> bool:
    """Whether the block only moves elements: a reshape, a transpose, a slice, a broadcast."""
    body = b.body
    return is_pointwise(b) and type(getattr(body, "value", None)) is BufferLoad


def is_cheap(b: Block) -> bool:
    """Whether the block has no call and no division."""
    return not any(type(n) is Call or (type(n) is Binary and n.op in ("div", "floordiv", "mod")) for n in walk(b.body))


def _is_looked_up(func: PrimFunc, b: Block) -> bool:
    """Whether a consumer reads the block's values at indices from memory."""
    made = {w.buffer for w in writes(b)}
    return any(
        a.buffer in made and any(isinstance(v, IndirectVar) for e in a.indices for v in e.vars)
        for c in consumers(func, b)
        for a in accesses(c)
    )


# ---- groups -----------------------------------------------------------------------------------------------------------


def members(func: PrimFunc, anchor: str, candidates: Sequence[Block], apart: Iterable[str], inlined: Iterable[str] = ()) -> list[str]:
    """The blocks of the anchor's group, the anchor first: those whose consumers, through inlined blocks, are all in the group."""
    by_name = {b.name: b for b in blocks_under(func.body)}
    through = set(inlined)

    def readers(name: str) -> set[str]:
        out: set[str] = set()
        for c in consumers(func, by_name[name]):
            out |= readers(c.name) if c.name in through else {c.name}
        return out

    group = [anchor]
    fixed = set(apart)
    for b in reversed(candidates):
        if b.name not in group and b.name not in fixed:
            found = readers(b.name)
            if found and found <= set(group):
                group.append(b.name)
    return group


def _partitions(
    func: PrimFunc, blocks: Sequence[Block], inlined: frozenset[str], axes: AxisClasses, target: Target
) -> list[frozenset[str]]:
    """Sets of blocks apart: as few as possible; also the producers of contractions; and, of few blocks, all."""
    names = [b.name for b in blocks]
    outputs = {b.name for b in blocks if is_output(func, b)}
    several = _written_by_several(blocks_under(func.body))
    fixed = {b.name for b in blocks if not is_regular(b) or _is_looked_up(func, b) or any(w.buffer in several for w in writes(b))}
    fixed |= axes.read_apart & set(names)
    before = {p.name for b in blocks if is_contraction(b) for p in producers(func, b) if p.name in names}
    wanted = [fixed, fixed | before]
    if len(names) <= SEPARATE:
        wanted.append(set(names))
    out: list[frozenset[str]] = []
    for apart in wanted:
        found = frozenset(_closed(func, blocks, apart | outputs, inlined, axes, target) - outputs)
        if found not in out:
            out.append(found)
    return out


def _closed(
    func: PrimFunc, blocks: Sequence[Block], apart: set[str], inlined: frozenset[str], axes: AxisClasses, target: Target
) -> set[str]:
    """The anchors, with those added that no group can contain, and those that would leave too few parallel iterations."""
    apart = set(apart)
    irregular = {b.name for b in blocks if not is_regular(b)}
    fewest = TASKS_PER_CORE * (target.num_cores or 1)
    while True:
        groups = [members(func, b.name, blocks, apart, inlined) for b in blocks if b.name in apart]
        grouped = set(itertools.chain(*groups))
        loose = [b.name for b in blocks if b.name not in grouped]
        if loose:
            apart.add(loose[-1])
            continue
        excess = next((x for x in [_beyond(g, axes, fewest, irregular) for g in groups] if x is not None), None)
        if excess is None:
            return apart
        apart.add(excess)


def _beyond(group: Sequence[str], axes: AxisClasses, fewest: int, irregular: Collection[str]) -> str | None:
    """The first member that leaves the group without shared axes, or with too few shared iterations.

    An anchor without tiles, such as a scan, has no members.
    """
    if group[0] in irregular and len(group) > 1:
        return group[1]
    for n in range(2, len(group) + 1):
        shared = axes.shared(group[:n])
        if not shared or math.prod(shared.values()) < min(fewest, math.prod(axes.spatial(group[0]).values())):
            return group[n - 1]
    return None


# ---- reductions -------------------------------------------------------------------------------------------------------


def rows_of(b: Block) -> list[int]:
    """The spatial variables that reuse a streamed operand: they become rows of a register tile."""
    last = vector_axis(b)
    reduced = {it.var for it in b.iters if it.kind == "R"}
    streamed = [o for o in operands(b) if o.iters & reduced]
    return [
        n
        for n, it in enumerate(b.iters)
        if it.kind == "S" and n != last and it.extent.const != 1 and any(it.var not in o.iters for o in streamed)
    ]
