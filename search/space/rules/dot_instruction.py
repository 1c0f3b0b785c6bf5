"""Find the dot-product instruction that computes a contraction: AVX-512 VNNI, AVX-VNNI, AVX512-BF16.

A lane of the instruction sums a group of products of neighbouring elements of the reduction.  One operand is packed so that the groups of
the lanes of a vector are adjacent: [vectors, other axes, groups, lanes, elements of a group].  The other operand is broadcast, group by
group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import Access, reads
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Cast
from tunesmith.ir.poly import ONE
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.layout import Layout
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import last_index, vector_axis

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
        tail: the extent of the reduction is no multiple of the group, so that the operands are padded with zeros.
        held: registers besides the accumulators: for each vector of the tile, and for the broadcast operand.
    """

    intrinsic: str
    lanes: int
    group: int
    vector: int
    reduced: int
    packed: Access
    held: int
    tail: bool = False


def dot_of(b: Block, target: Target) -> Dot | None:
    """How the block uses an instruction that the target has; None if it cannot."""
    vector = vector_axis(b)
    if vector is None or b.iters[vector].extent == ONE:  # no tile would be whole
        return None
    for found, a, p in operands_of(b, vector, INSTRUCTIONS):
        for n in contiguous_reductions(b, a, p, found[1]):
            # The compensation of signed bytes needs the product of the packed operand with 128, and one more broadcast.
            held = 2 if found[0] == "vpdpbusd_s8s8" else 1
            tail = bool((b.iters[n].extent.const or 1) % found[1])
            if tail and not all(e.as_var() is not None for r in (a, p) for e in r.indices):
                continue  # pad_einsum needs operands indexed by variables
            for bits in (512, 256, 128):
                name = f"x86.{found[0]}.{bits}"
                if bits <= target.vector_bits and TENSOR_INTRINSICS.get(name).is_available(target.features):
                    return Dot(name, bits // 32, found[1], vector, n, p, held, tail)
    return None


def operands_of(
    b: Block, columns: int, instructions: Mapping[tuple[str, str, str], tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], Access, Access]]:
    """The instructions whose types are those of a sum of products of converted elements, with the reads of both operands.

    Args:
        b: the block.
        columns: position of the iteration variable along which the second operand is packed, and which the first one does not have.
        instructions: by the types of the operands and of the sum.
    """
    update = reassociable_update(b)
    if update is None or update.op != "add" or not isinstance(update.term, Binary) or update.term.op != "mul":
        return
    out, axis = update.store.buffer.dtype, b.iters[columns].var
    for pair in ((update.term.a, update.term.b), (update.term.b, update.term.a)):
        loads = [x.a for x in pair if isinstance(x, Cast) and x.dtype == out and isinstance(x.a, BufferLoad)]
        if len(loads) < len(pair):
            continue
        a, p = [next(r for r in reads(b) if r.buffer is load.buffer and r.indices == load.indices) for load in loads]
        found = instructions.get((a.buffer.dtype, p.buffer.dtype, out))
        separate = any(e.as_var() is axis for e in p.indices) and not any(axis in e.vars for e in a.indices)
        if found is not None and a.buffer is not p.buffer and separate:
            yield found, a, p


def contiguous_reductions(b: Block, a: Access, p: Access, group: int) -> Iterator[int]:
    """Positions of the reduction variables along which `a` is contiguous, and which are one index of the packed operand `p`.

    Args:
        b: the block.
        a: the read of an operand.
        p: the read of the packed operand.
        group: the least extent of the variables.
    """
    # Dimensions of one element separate no elements.
    indices = [e for e, size in zip(a.indices, a.buffer.shape, strict=True) if size != ONE]
    for n, it in enumerate(b.iters if indices else ()):
        neighbours = it.kind == "R" and (it.extent.const or 1) >= group and step_of(indices[-1], it.var) == ONE
        if neighbours and not any(it.var in e.vars for e in indices[:-1]) and [e.as_var() is it.var for e in p.indices].count(True) == 1:
            yield n


def vectorize_groups(s: Schedule, copy: BlockRV) -> None:
    """Vectorize a block that packs groups, whose last loops are over columns and over the elements of a group.

    If neighbouring columns are neighbours in the source, vectors of them are interleaved; otherwise the elements of a group are copied.
    """
    b = s.block(copy)
    source = last_index(reads(b)[0])
    if source is not None and step_of(source, b.iters[-2].var) == ONE:
        column, element = s.get_loops(copy)[-2:]
        s.reorder([element, column])
        s.vectorize(column)
        s.unroll(element)
    else:
        s.vectorize(s.get_loops(copy)[-1])


def grouped_layout(b: Block, name: str, column: int, reduced: int, width: int, group: int) -> Layout:
    """The layout of a packed operand: [columns / width, other axes, groups, columns % width, elements of a group].

    Args:
        b: the block.
        name: of the operand.
        column: position of the iteration variable of the columns.
        reduced: position of the reduction variable whose neighbours form groups.
        width: columns of a vector or tile.
        group: elements of a group.
    """
    indices = next(a.indices for a in reads(b) if a.buffer.name == name)
    lane, element = (next(d for d, e in enumerate(indices) if e.as_var() is b.iters[n].var) for n in (column, reduced))
    rest = [d for d in range(len(indices)) if d not in (lane, element)]
    return [[lane, "/", width], *rest, [element, "/", group], [lane, "%", width], [element, "%", group]]
