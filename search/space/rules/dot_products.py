"""Schedule products of bytes and of bfloat16 on CPUs by dot-product instructions: AVX-512 VNNI, AVX-VNNI, AVX512-BF16.

The nest is that of `contraction`, with two differences.  The register tile consists of vectors of the instruction, whose lanes sum groups
of neighbouring elements of the reduction.  One operand is packed so that the groups of the lanes of a vector are adjacent: [vectors, other
axes, groups, lanes, elements of a group].  The other operand is broadcast, group by group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import Access, reads
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Cast
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, product
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.visit import blocks_under
from tunesmith.lower.code_size import UNROLLED
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.layout import Layout
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import (
    consumers,
    has_own_nests,
    is_contraction,
    is_output,
    is_pointwise,
    producers,
    vector_axis,
)
from tunesmith.search.space.rules.contraction import epilogue_size, mark_epilogue, pad
from tunesmith.search.space.rules.tile_domains import ROWS, middle_tiles, outer_tiles

Named = tuple[str, Callable[[Schedule], None]]

INSTRUCTIONS = {
    ("uint8", "int8", "int32"): ("vpdpbusd", 4),
    ("int8", "int8", "int32"): ("vpdpbusd_s8s8", 4),
    ("bfloat16", "bfloat16", "float32"): ("vdpbf16ps", 2),
}
"""By the types of the broadcast operand, the packed operand and the result: the instruction, and the elements of a group."""


@dataclass(frozen=True, slots=True)
class Dot:
    """How a block uses a dot-product instruction.

    Attributes:
        intrinsic: name of the tensor intrinsic.
        lanes: of a vector of accumulators.
        group: elements of the reduction that a lane sums.
        vector: position of the vector axis among the iteration variables.
        reduced: position of the reduction variable whose neighbours form groups.
        packed: the read of the packed operand.
    """

    intrinsic: str
    lanes: int
    group: int
    vector: int
    reduced: int
    packed: Access


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules for a function with exactly one contraction that an instruction of the target computes; none for others."""
    if target.base != "llvm" or not has_own_nests(func):
        return []
    blocks = blocks_under(func.body)
    mains = [b for b in blocks if is_contraction(b)]
    dot = dot_of(mains[0], target) if len(mains) == 1 else None
    if dot is None:
        return []
    main = mains[0]
    pads = [p.name for p in producers(func, main) if is_pointwise(p)]
    others = [b for b in blocks if b is not main and b.name not in pads]
    if not all(is_pointwise(b) for b in others) or epilogue_size(func, others) * target.vector_registers > UNROLLED:
        return []
    out: list[Named] = []
    for first, threads in itertools.product((False, True), (True, False) if worth_serial(func, target) else (True,)):
        name = " ".join(["dot", "vec-rows" if first else "rows-vec", *(() if threads else ("serial",))])
        out.append((name, lambda s, first=first, threads=threads: _schedule(s, main.name, pads, dot, first, threads, target)))  # type: ignore[misc]
    return out


def dot_of(b: Block, target: Target) -> Dot | None:
    """How the block uses an instruction that the target has; None if it cannot."""
    update, vector = reassociable_update(b), vector_axis(b)
    if update is None or vector is None or update.op != "add" or not isinstance(update.term, Binary) or update.term.op != "mul":
        return None
    out = update.store.buffer.dtype
    for left, right in ((update.term.a, update.term.b), (update.term.b, update.term.a)):
        if not all(isinstance(x, Cast) and x.dtype == out and isinstance(x.a, BufferLoad) for x in (left, right)):
            continue
        a, p = (next(r for r in reads(b) if r.buffer is x.a.buffer and r.indices == x.a.indices) for x in (left, right))  # type: ignore[attr-defined]
        found = INSTRUCTIONS.get((a.buffer.dtype, p.buffer.dtype, out))
        if found is None or a.buffer is p.buffer:
            continue
        axis = b.iters[vector].var
        if any(axis in e.vars for e in a.indices) or not any(e.as_var() is axis for e in p.indices):
            continue
        for n, it in enumerate(b.iters):
            neighbours = it.kind == "R" and (it.extent.const or 1) % found[1] == 0 and step_of(a.indices[-1], it.var) == ONE
            if neighbours and not any(it.var in e.vars for e in a.indices[:-1]) and any(e.as_var() is it.var for e in p.indices):
                for bits in (512, 256, 128):
                    name = f"x86.{found[0]}.{bits}"
                    if bits <= target.vector_bits and TENSOR_INTRINSICS.get(name).is_available(target.features):
                        return Dot(name, bits // 32, found[1], vector, n, p)
    return None


def _schedule(s: Schedule, main: str, pads: list[str], dot: Dot, vector_first: bool, threads: bool, target: Target) -> None:
    for b in [b.name for b in s.blocks() if is_pointwise(b) and b.name not in pads and b.name != main and not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))
    block = s.get_block(main)
    readers = [c.name for c in consumers(s.func, s.block(block))]
    depth = target.tile_structure.count("S")
    levels: list[list[LoopRV]] = [[] for _ in range(depth)]
    rows: list[IntRV] = []
    reduction: list[LoopRV] = []
    for n, (it, loop) in enumerate(zip(s.block(block).iters, s.get_loops(block), strict=True)):
        extent = it.extent.const or 1
        if n == dot.reduced:
            over, group = s.split(loop, [None, dot.group])
            reduction.append(over)
        elif it.kind == "R":
            reduction.append(loop)
        elif n == dot.vector:
            vectors = -(-extent // dot.lanes)
            inner = tuple(v for v in range(1, 7) if v <= vectors)
            domains = [*[outer_tiles(vectors)] * (depth - 3), middle_tiles(vectors, inner), inner, (dot.lanes,)]
            *factors, _ = s.sample_tile(loop, depth + 1, loop.var.name, domains, slack=dot.lanes)
            # The number of lanes as a literal: the packed operand is addressed by vectors of this length.
            *parts, lane = s.split(loop, [None, *factors, dot.lanes])
            width = factors[-1]
            for level, x in zip(levels, parts, strict=True):
                level.insert(0, x)
        elif extent == 1:
            levels[0].append(loop)
        else:
            inner = tuple(r for r in ROWS if r <= extent)
            factors = s.sample_tile(
                loop, depth, loop.var.name, [*[outer_tiles(extent)] * (depth - 3), middle_tiles(extent, inner), inner], slack=4
            )
            rows.append(factors[-1])
            for level, x in zip(levels, s.split(loop, [None, *factors]), strict=True):
                level.append(x)
    panel = levels[1][0]
    vector_loop = levels[0].pop(0)
    levels[0].append(vector_loop)
    if not vector_first:
        levels[-2] = [*levels[-2][1:], levels[-2][0]]
    tile = [*levels[-1][1:], levels[-1][0]]
    s.reorder([*itertools.chain(*levels[:-1]), *reduction, *tile, lane, group])
    s.step = "register budget"
    accumulators = product([r.expr for r in rows]) * width.expr
    # A vector of the packed operand for each column, for signed bytes also its product with 128, and the broadcast groups.
    held = 2 if "s8s8" in dot.intrinsic else 1
    over = accumulators + width.expr * held + held - target.vector_registers
    s.require("le0", over, "register-budget", "the register tile does not fit the registers")
    if readers:
        s.set_scope(block, "register")
        epilogue = s.get_block(readers[0])
    else:
        epilogue = s.cache_write(block, "register")
    s.reverse_compute_at(epilogue, levels[-2][-1])
    _pack(s, block, dot, panel, threads)
    for p in pads:
        pad(s, s.get_block(p), None, target.vector_lanes("float32"), threads)
    for x in tile:
        s.unroll(x)
    mark_epilogue(s, epilogue)
    init = s.decompose_reduction(block, reduction[0])
    s.vectorize(s.get_loops(init)[-1])
    s.tensorize(lane, dot.intrinsic)
    tasks = s.fuse(levels[0])
    if threads:
        s.parallel(tasks)


def _pack(s: Schedule, block: BlockRV, dot: Dot, at: LoopRV, threads: bool) -> None:
    """Pack an operand into panels of one vector: [vectors, other axes, groups, lanes, elements of a group]."""
    b = s.block(block)
    indices = next(a.indices for a in reads(b) if a.buffer is dot.packed.buffer)
    lane, element = (next(d for d, e in enumerate(indices) if e.as_var() is b.iters[n].var) for n in (dot.vector, dot.reduced))
    rest = [d for d in range(len(indices)) if d not in (lane, element)]
    layout: Layout = [[lane, "/", dot.lanes], *rest, [element, "/", dot.group], [lane, "%", dot.lanes], [element, "%", dot.group]]
    name = dot.packed.buffer.name
    constant = name in s.func.constants
    copy = s.cache_read(block, name, "global" if constant else "workspace", layout)
    if constant:
        s.annotate(copy, "pack_constant", name)
        if threads:
            s.parallel(s.get_loops(copy)[0])
    else:
        s.compute_at(copy, at)
    s.vectorize(s.get_loops(copy)[-1])
