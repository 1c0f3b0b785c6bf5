"""Schedule matrix products and convolutions on CPUs: register tiles, cache blocks, packing, fused epilogues, padding.

The loop nests of docs/design/003-cpu-space.md.  The target's `tile_structure` has their levels, by default `SSSRS`: spatial loops in four
levels with the reduction between the third and the fourth.  The last level is the register tile, whose accumulators stay in registers
during the reduction.  A second R splits the longest reduction loop into blocks.  An operand may be packed into a
thread's workspace in panels of the tile's width.  The epilogue reads the accumulators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, reads, writes
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Op, Param, Poly, Var, ceildiv, poly, product
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.lower.code_size import UNROLLED
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.layout import Layout
from tunesmith.schedule.primitives.sample import covers
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import (
    Operand,
    access_to_pack,
    consumers,
    has_own_nests,
    is_contraction,
    is_output,
    is_pointwise,
    last_index,
    operands,
    producers,
    vector_axis,
)
from tunesmith.search.space.rules.code_budget import bound_code, epilogue_size
from tunesmith.search.space.rules.dot_instruction import Dot, grouped_layout, vectorize_groups
from tunesmith.search.space.rules.tile_domains import ROWS, VECTORS, middle_tiles, outer_tiles, vector_widths

WINDOW = 8
"""Maximum extent of a reduction loop that may be unrolled: the window of a convolution, not its channels."""

SHORT_BLOCKS = (2, 4, 8, 16, 32)
"""More block sizes where the target's structure asks for blocks, so that short reductions have them, too."""

BLOCKS = (64, 96, 128, 192, 256, 384, 512, 768)
"""Block sizes of a blocked reduction."""

Named = tuple[str, Callable[[Schedule], None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        vector_first: iterate the register tiles of a block along the vector axis in the outermost loop.
        pack: name of the operand to pack; None for none.
        constant: the packed operand is a weight: it is packed outside the nest, once before all calls if they are known to share it.
        pad: "inline", "block" (each task copies its part into its workspace) or "root" (the whole input is copied first).
        unroll_window: unroll the innermost short reduction loop (the window of a convolution).
        axis: position of the vector axis among the iteration variables.
        transposed: the vector axis is not the output's last axis, so the tile is transposed when written back.
        threads: the outermost loops are parallel.
        blocked: split the longest reduction loop into blocks outside the register tiles, so that a packed block stays in a cache.
        dot: the dot-product instruction that computes the register tile; None for multiply-adds.
    """

    vector_first: bool
    pack: str | None
    constant: bool
    pad: str | None
    unroll_window: bool
    blocked: bool = False
    axis: int = -1
    transposed: bool = False
    threads: bool = True
    dot: Dot | None = None

    @property
    def name(self) -> str:
        """A readable, unique name."""
        parts = ["tile" if self.dot is None else "dot", "vec-rows" if self.vector_first else "rows-vec"]
        if self.pack:
            parts.append(f"pack({self.pack}{' const' if self.constant else ''})")
        if self.pad:
            parts.append(f"pad({self.pad})")
        if self.unroll_window:
            parts.append("window")
        if self.blocked:
            parts.append("blocked")
        if self.transposed:
            parts.append("across")
        if not self.threads:
            parts.append("serial")
        return " ".join(parts)


@dataclass(slots=True)
class _Levels:
    """Loops and tile factors by level during the construction of a nest."""

    loops: list[list[LoopRV]]
    rows: list[IntRV] = field(default_factory=list)
    vector: IntRV | None = None
    vector_loops: list[LoopRV] = field(default_factory=list)
    instruction: list[LoopRV] = field(default_factory=list)
    """The loops of a dot-product instruction, over lanes and the elements of a group; empty for multiply-adds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function that one nest computes.

    Attributes:
        main: its only contraction.
        pads: elementwise blocks that compute operands of the contraction.
        followed: elementwise blocks read its result.
    """

    main: Block
    pads: tuple[str, ...]
    followed: bool


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules for a function with exactly one contraction; none for others."""
    found = candidate(func, target)
    last = None if found is None else vector_axis(found.main)
    if found is None or last is None:
        return []
    return [x for axis in [last, *_axes_across(found.main, last)] for x in named(found, plans(func, found, target, axis), target)]


def candidate(func: PrimFunc, target: Target) -> Candidate | None:
    """The contraction of a function and the blocks around it; None if one nest cannot compute the function."""
    if not has_own_nests(func):
        return None
    blocks = blocks_under(func.body)
    mains = [b for b in blocks if is_contraction(b)]
    if len(mains) != 1:
        return None
    pads = [p.name for p in producers(func, mains[0]) if is_pointwise(p)]
    others = [b for b in blocks if b is not mains[0] and b.name not in pads]
    if not all(is_pointwise(b) for b in others) or epilogue_size(func, others) * target.vector_registers > UNROLLED:
        return None
    return Candidate(mains[0], tuple(pads), bool(others))


def named(found: Candidate, plans: Sequence[Plan], target: Target) -> list[Named]:
    """The plans with their names, as functions that schedule."""
    return [(plan.name, lambda s, plan=plan: schedule(s, found.main.name, found.pads, plan, target)) for plan in plans]  # type: ignore[misc]


def _axes_across(main: Block, last: int) -> list[int]:
    """Other candidates for the vector axis: spatial axes that are the only spatial variable of an operand, so that packing it makes the
    axis contiguous (for example, the output channels of a convolution in NCHW).  Others may occur in remainders, as in a transposed
    convolution, whose operand is as small."""
    spatial = [n for n, it in enumerate(main.iters) if it.kind == "S" and n != last and (it.extent.const or 0) > 1]
    if len(spatial) < 2:
        return []  # a matrix product: this would be its transpose, without any gain
    reduced = {it.var for it in main.iters if it.kind == "R"}
    kinds = {it.var for it in main.iters if it.kind == "S"}
    strided = [frozenset(v for e in a.indices for v in _outside_of_remainders(e)) for a in reads(main)]
    return [
        n
        for n in spatial
        if any(own & kinds == {main.iters[n].var} and o.iters & reduced for own, o in zip(strided, operands(main), strict=True))
    ]


def _outside_of_remainders(e: Poly) -> set[Var]:
    """The variables of an index that are not only in remainders by a number."""
    out: set[Var] = set()
    for monomial, _ in e.terms:
        for atom in monomial:
            if not isinstance(atom, Op):
                out.add(atom)
            elif atom.op in ("min", "max"):
                out |= {v for arg in atom.args for v in _outside_of_remainders(arg)}
            elif atom.op != "mod" or atom.args[1].const is None:
                out |= set(atom.vars)
    return out


def plans(func: PrimFunc, found: Candidate, target: Target, axis: int, dot: Dot | None = None) -> list[Plan]:
    """The structural choices for a vector axis, given as its position, with multiply-adds or a dot-product instruction."""
    main, padded = found.main, bool(found.pads)
    across = axis != vector_axis(main)
    vector = main.iters[axis].var
    if dot is None:
        packable = [o for o in operands(main) if vector in o.iters and o.buffer in func.params]
        packs: list[tuple[str | None, bool]] = []
        if all(vector in o.contiguous for o in packable):
            packs.append((None, False))
        # An operand that is read twice is packed once.
        known = [(o, o.buffer.name in func.constants) for o in packable]
        packs += dict.fromkeys([(o.buffer.name, constant) for o, constant in known if packs_well(main, o, vector, constant)])
    else:
        packs = [(dot.packed.buffer.name, dot.packed.buffer.name in func.constants)]
    windows = [False, True] if any(i.kind == "R" and 1 < (i.extent.const or 0) <= WINDOW for i in main.iters) else [False]
    longest = max([i.extent.const or 0 for i in main.iters if i.kind == "R"], default=0) // (1 if dot is None else dot.group)
    padded = padded or (dot is not None and dot.tail)
    cuts = (False, True) if _has_blocks(longest) and not (found.followed or padded or across) else (False,)
    paddings: tuple[str | None, ...] = ("inline", "block", "root") if padded else (None,)
    if dot is not None and padded:
        paddings = ("block", "root")  # the instruction reads groups of neighbours without conditions
    if target.tile_structure.count("R") == 2 and longest > SHORT_BLOCKS[0] and not (found.followed or across):
        cuts, paddings = (True,), paddings[:1]
        windows = windows if longest > WINDOW else [False]
    threading = (True, False) if worth_serial(func, target) else (True,)
    return [
        Plan(first, pack, constant, pad, window, cut, axis, across, threads, dot)
        for first, (pack, constant), pad, window, cut, threads in itertools.product(
            (False, True), packs, paddings, windows, cuts, threading
        )
    ]


def _has_blocks(extent: int) -> bool:
    """Whether a reduction has at least two blocks, of a size that `sample_tile` accepts."""
    return extent >= BLOCKS[0] * 2 and any(covers(extent, n) for n in BLOCKS if n < extent)


def packs_well(main: Block, o: Operand, vector: Var, constant: bool = False) -> bool:
    """Whether the operand has the vector variable as an index, and is constant, reused by rows, or not contiguous along the vector axis.

    A constant is packed once, and its panels are read in the order of memory.
    """
    if not any(a.buffer is o.buffer and any(e.as_var() is vector for e in a.indices) for a in reads(main)):
        return False
    rows = [i.var for i in main.iters if i.kind == "S" and i.var is not vector and i.extent.const != 1]
    return constant or vector not in o.contiguous or any(v not in o.iters for v in rows)


def schedule(s: Schedule, main: str, pads: Sequence[str], plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    inline_elementwise(s, main, pads)
    if plan.pad == "inline":
        for p in pads:
            s.compute_inline(s.get_block(p))
    if plan.dot is not None and plan.dot.tail:
        copies = s.pad_einsum(s.get_block(main), [plan.dot.group if n == plan.dot.reduced else 1 for n in range(len(s.block(main).iters))])
        pads = [c.name for c in map(s.block, copies) if plan.pack not in [a.buffer.name for a in reads(c)]]
    block = next(b for b in s.blocks() if b.name == main)
    nest(s, main, [c.name for c in consumers(s.func, block)], pads, plan, target)


def inline_elementwise(s: Schedule, main: str, pads: Sequence[str]) -> None:
    """Inline the elementwise blocks, except for outputs and those that pad operands of the contraction."""
    for b in [b.name for b in s.blocks() if is_pointwise(b) and b.name not in pads and b.name != main and not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))


def split_longest(s: Schedule, reduction: list[LoopRV], sizes: Sequence[int], name: str | None = None) -> LoopRV:
    """Split the longest reduction loop into blocks of a sampled size; returns the loop over blocks.

    Args:
        s: the schedule.
        reduction: the reduction loops.  The loop over the iterations of a block replaces the longest.
        sizes: sizes of a block, of which those below the extent are tried.
        name: prefix of the parameter's name, by default the name of the loop and `_block`.
    """
    longest = max(reduction, key=lambda x: s.loop(x).extent.const or 0)
    extent = s.loop(longest).extent.const or 1
    length = s.sample_tile(longest, 2, name or f"{longest.var.name}_block", [tuple(n for n in sizes if n < extent)])
    over, inside = s.split(longest, [None, *length])
    reduction[reduction.index(longest)] = inside
    return over


def nest(s: Schedule, main: str, readers: Sequence[str], pads: Sequence[str], plan: Plan, target: Target) -> None:
    """Build the nest of a contraction whose elementwise producers and epilogue are inlined.

    Args:
        s: the schedule.
        main: the contraction.
        readers: the blocks that read the accumulators; empty if they are written as they are.
        pads: blocks that pad an operand and are not inlined.
        plan: the structural choices.
        target: the machine.
    """
    block = s.get_block(main)
    lanes, registers = target.vector_lanes("float32"), target.vector_registers
    structure = target.tile_structure
    levels, reduction, window = _tile(s, block, plan, structure.count("S"), lanes, registers)
    innermost = levels.instruction
    vec1 = levels.vector_loops[1]
    *outer, (vec2, *rows2), (vec3, *rows3) = [
        [v, *[x for x in loops if x is not v]] for v, loops in zip(levels.vector_loops[1:], levels.loops[1:], strict=True)
    ]
    over_tiles = [vec2, *rows2] if plan.vector_first else [*rows2, vec2]
    between = [levels.loops[0], *outer, over_tiles]
    cut: list[LoopRV] = []
    if plan.blocked:
        cut = [split_longest(s, reduction, (*SHORT_BLOCKS, *BLOCKS) if structure.count("R") == 2 else BLOCKS)]
        # In a structure with one R, the blocks are those of the loops over register tiles.
        at = structure.index("R") if structure.count("R") == 2 else len(between) - 1
        between.insert(at, cut)
    s.reorder([*itertools.chain(*between), *reduction, *rows3, vec3, *innermost])
    _budget(s, levels, plan.dot, lanes, registers)
    if plan.dot is None:
        assert levels.vector is not None
        bound_code(s, block, plan.axis, levels.vector, levels.rows, window, lanes)
    if plan.blocked:
        fill, epilogue = s.cache_reduction(block, over_tiles[-1], "register")
        mark_epilogue(s, fill)
    else:
        epilogue = _epilogue(s, block, readers, plan)
        for b in [epilogue, *map(s.get_block, readers[1:])]:
            s.reverse_compute_at(b, over_tiles[-1])
    if plan.pack is not None:
        copy = _pack(s, block, plan, levels, cut[0] if cut else vec1)
        if plan.constant:
            # Weights come from main memory at about the rate of use, so the next panel is prefetched during the work on the current one.
            s.annotate(vec1, "prefetch_operand", writes(s.block(copy))[0].buffer.name)
            s.annotate(vec1, "prefetch_ahead", s.sample_categorical((0, 1), "prefetch"))
    for p in pads if plan.pad in ("block", "root") else []:
        pad(s, s.get_block(p), levels.loops[0][-1] if plan.pad == "block" else None, target, plan.threads)
    if not innermost:
        s.vectorize(vec3)
    for x in [*rows3, vec3] if innermost else rows3:
        s.unroll(x)
    if window is not None:
        s.unroll(window)
    for b in [epilogue, *map(s.get_block, readers[1:])]:  # a second `get_block`, as in the traces of stored records
        mark_epilogue(s, b)
    init = None if plan.blocked else s.decompose_reduction(block, reduction[0])
    if plan.dot is not None:
        if init is not None:
            s.vectorize(s.get_loops(init)[-1])
        s.tensorize(innermost[0], plan.dot.intrinsic)
    tasks = s.fuse(levels.loops[0])
    if plan.threads:
        s.parallel(tasks)


def _tile(s: Schedule, block: BlockRV, plan: Plan, depth: int, lanes: int, registers: int) -> tuple[_Levels, list[LoopRV], LoopRV | None]:
    """Sample and split into `depth` levels: (spatial loops by level, reduction loops in order, the reduction loop to unroll)."""
    levels = _Levels([[] for _ in range(depth)])
    reduction: list[LoopRV] = []
    window: LoopRV | None = None
    lane: LoopRV | None = None
    group: LoopRV | None = None
    for n, (it, loop) in enumerate(zip(s.block(block).iters, s.get_loops(block), strict=True)):
        extent = it.extent.const or 1
        if plan.dot is not None and n == plan.dot.reduced:
            over, group = s.split(loop, [None, plan.dot.group])
            reduction.append(over)
            continue
        if it.kind == "R":
            reduction.append(loop)
            if plan.unroll_window and 1 < extent <= WINDOW:
                window = loop
            continue
        if n != plan.axis and extent == 1:
            levels.loops[0].append(loop)
            continue
        if plan.dot is not None and n == plan.axis:
            vectors = -(-extent // plan.dot.lanes)
            inner = tuple(v for v in VECTORS if v <= vectors)
            domains = [*[outer_tiles(vectors)] * (depth - 3), middle_tiles(vectors, inner), inner, (plan.dot.lanes,)]
            *factors, _ = s.sample_tile(loop, depth + 1, loop.var.name, domains, slack=plan.dot.lanes)
            # The number of lanes as a literal: the packed operand is addressed by vectors of this length.
            *parts, lane = s.split(loop, [None, *factors, plan.dot.lanes])
            levels.vector, levels.vector_loops = factors[-1], parts
            for at, x in enumerate(parts):
                levels.loops[at].append(x)
            continue
        inner = vector_widths(s.block(block), n, lanes, registers) if n == plan.axis else tuple([r for r in ROWS if r <= extent])
        domains = [*[outer_tiles(extent)] * (depth - 3), middle_tiles(extent, inner), inner]
        factors = s.sample_tile(loop, depth, loop.var.name, domains, slack=lanes if n == plan.axis else 4)
        parts = s.split(loop, [None, *factors])
        for at, x in enumerate(parts):
            levels.loops[at].append(x)
        if n == plan.axis:
            levels.vector, levels.vector_loops = factors[-1], parts
        else:
            levels.rows.append(factors[-1])
    if lane is not None and group is not None:
        levels.instruction = [lane, group]
    return levels, reduction, window


def _epilogue(s: Schedule, block: BlockRV, readers: Sequence[str], plan: Plan) -> BlockRV:
    """Keep the accumulators in registers; returns the block that reads them.  In a transposed plan their last axis is the vector axis."""
    if not plan.transposed:
        if not readers:
            return s.cache_write(block, "register")
        s.set_scope(block, "register")
        return s.get_block(readers[0])
    b = s.block(block)
    indices = writes(b)[0].indices
    at = next(d for d, e in enumerate(indices) if e.as_var() is b.iters[plan.axis].var)
    copy = s.cache_write(block, "register", [*[d for d in range(len(indices)) if d != at], at])
    if not readers:
        return copy
    s.compute_inline(copy)
    return s.get_block(readers[0])


def _budget(s: Schedule, levels: _Levels, dot: Dot | None, lanes: int, registers: int) -> None:
    """Require that accumulators, one row of the vector operand and one broadcast fit the registers: rows * nv + nv + 1 <= registers."""
    assert levels.vector is not None
    v = levels.vector.expr
    if dot is None and any(n % lanes for p in v.vars if isinstance(p, Param) for n in p.domain):
        v = ceildiv(v, poly(lanes)) * lanes
    rows = product([r.expr for r in levels.rows])
    over = rows * v + v + lanes - registers * lanes if dot is None else rows * v + v * dot.held + dot.held - registers
    s.step = "register budget"
    s.require("le0", over, "register-budget", "the register tile does not fit the registers")


def _pack(s: Schedule, block: BlockRV, plan: Plan, levels: _Levels, at: LoopRV) -> BlockRV:
    """Pack an operand into panels of the register tile's width, or into vectors of the instruction; returns the copying block."""
    assert plan.pack is not None and levels.vector is not None
    b = s.block(block)
    name = f"{plan.pack}_pad" if plan.dot and plan.dot.tail else plan.pack
    layout, whole, access = _panels(b, plan, levels.vector) if plan.dot is None else (_groups(b, name, plan.dot), False, {})
    copy = s.cache_read(block, name, "global" if plan.constant or whole else "workspace", layout, **access)
    if name != plan.pack:
        s.compute_inline(s.get_block(name))
    if not plan.constant and not whole:
        s.compute_at(copy, at)
    if plan.dot:
        vectorize_groups(s, copy)
    else:
        s.vectorize(s.get_loops(copy)[-1])
    if plan.constant:
        s.annotate(copy, "pack_constant", plan.pack)
    if (plan.constant or whole) and plan.threads:
        s.parallel(s.get_loops(copy)[0])
    return copy


def _groups(b: Block, name: str, dot: Dot) -> Layout:
    return grouped_layout(b, name, dot.vector, dot.reduced, dot.lanes, dot.group)


def _panels(b: Block, plan: Plan, width: IntRV) -> tuple[Layout, bool, dict[str, int]]:
    """The layout of a packed operand: [vector axis / tile, the other axes, vector axis % tile]; whether it must be packed as a whole; and
    the access that is packed."""
    axis = b.iters[plan.axis].var
    buffer = next(a.buffer for a in reads(b) if a.buffer.name == plan.pack)
    access, indices = access_to_pack(b, buffer, axis)
    vector = next(i for i, e in enumerate(indices) if e.as_var() is axis)
    rest = [d for d in range(len(indices)) if d != vector]
    order = {it.var: n for n, it in enumerate(b.iters)}
    rest.sort(key=lambda d: max([order[v] for v in indices[d].vars if v in order], default=0))
    spatial = {it.var for it in b.iters if it.kind == "S"}
    # A remainder takes all of its values in every tile, so that each tile would pack the whole operand.
    whole = any(not (e.vars & spatial) <= _outside_of_remainders(e) for e in indices)
    return [[vector, "/", width], *rest, [vector, "%", width]], whole, access


def pad(s: Schedule, pad: BlockRV, at: LoopRV | None, target: Target, threads: bool) -> None:
    """Copy the padded input, vectorised along its last axis of more than one element."""
    if at is not None:
        s.set_scope(pad, "workspace")
        s.compute_at(pad, at)
    loops = s.get_loops(pad)
    axis = max((i for i, x in enumerate(loops) if s.loop(x).extent != 1), default=len(loops) - 1)
    lanes, extent = target.vector_lanes(writes(s.block(pad))[0].buffer.dtype), s.loop(loops[axis]).extent.const
    while extent is not None and lanes // 2 >= extent:
        lanes //= 2
    s.vectorize(s.split(loops[axis], [None, lanes])[1])
    if at is None and threads and axis:
        s.parallel(s.fuse(loops[:axis]))


def mark_epilogue(s: Schedule, epilogue: BlockRV) -> None:
    """Vectorise a block that accesses the register tile along the tile's last dimension, and unroll the other dimensions."""
    b = s.block(epilogue)
    tile = next(a for a in accesses(b) if a.buffer.scope == "register")
    contiguous = last_index(tile)
    vector = None if contiguous is None else plain_iter(contiguous, b)
    assert vector is not None
    spatial = [i for i, it in enumerate(b.iters) if it.kind == "S"]
    loops = dict(zip(spatial, s.get_loops(epilogue)[-len(spatial) :], strict=True))
    rows = [x for i, x in loops.items() if i != vector]
    if vector != spatial[-1]:
        s.reorder([*rows, loops[vector]])
    s.vectorize(loops[vector])
    for x in rows:
        s.unroll(x)
