"""Classify the blocks of a workload (pointwise, reduction, contraction, output) for the sketch rules."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import Access, accesses, plain_iter, reads, writes
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expression_size import ExpressionSize, size_of
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Block, BufferStore, For, Seq, Stmt
from tunesmith.ir.visit import blocks_under, walk


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer read by a contraction.

    Attributes:
        buffer: the buffer.
        iters: the iteration variables in its indices.
        contiguous: the iteration variables in its last index, see `last_index`.
    """

    buffer: Buffer
    iters: frozenset[Var]
    contiguous: frozenset[Var]


def has_own_nests(func: PrimFunc) -> bool:
    """Whether each block has a nest of its own, whose loops are its iteration variables in order, which the rules require."""

    def plain(n: Stmt, loops: tuple[Var, ...]) -> bool:
        if type(n) is Seq:
            return not loops and all(plain(x, loops) for x in n.stmts)
        if type(n) is For:
            return plain(n.body, (*loops, n.var))
        return type(n) is Block and [e.as_var() for e in n.bindings] == list(loops)

    return plain(func.body, ())


def is_pointwise(b: Block) -> bool:
    """Whether the block is a single store, without reduction, at its own iteration variables, that reads no other element of its output."""
    body = b.body
    if type(body) is not BufferStore or b.init is not None or any(i.kind == "R" for i in b.iters):
        return False
    if any(a.buffer is body.buffer and a.indices != body.indices for a in accesses(b)):
        return False
    positions = [plain_iter(e, b) for e in body.indices]
    return None not in positions and len(set(positions)) == len(b.iters)


def is_reduction(b: Block) -> bool:
    """Whether the block has reduction variables, an init and a reassociable update: C[i] = C[i] op x."""
    return b.init is not None and any(i.kind == "R" for i in b.iters) and reassociable_update(b) is not None


def operands(b: Block) -> list[Operand]:
    """The operands of a block, one entry for each read access, without its accumulator."""
    own = {i.var for i in b.iters}
    out = []
    for a in reads(b):
        used = frozenset(v for e in a.indices for v in e.vars if v in own)
        last = last_index(a)
        out.append(Operand(a.buffer, used, frozenset() if last is None else frozenset(v for v in last.vars if v in own)))
    return out


def access_to_pack(b: Block, buffer: Buffer, vector: Var) -> tuple[dict[str, int], tuple[Poly, ...]]:
    """The argument of `cache_read` that chooses the read of the buffer at the vector variable, if there are several, and its indices."""
    different = list(dict.fromkeys([a.indices for a in reads(b) if a.buffer is buffer]))
    at = next(n for n, indices in enumerate(different) if any(e.as_var() is vector for e in indices))
    return ({"access": at} if len(different) > 1 else {}), different[at]


def last_index(a: Access) -> Poly | None:
    """The index of an access that is contiguous in memory: the last one of a dimension with several elements; None without dimensions."""
    if not a.indices:
        return None
    return next((e for e, n in zip(reversed(a.indices), reversed(a.buffer.shape), strict=True) if n != 1), a.indices[-1])


def vector_axis(b: Block) -> int | None:
    """The position of the iteration variable that is contiguous in the output; None if there is none."""
    e = last_index(writes(b)[0])
    return None if e is None else plain_iter(e, b)


def is_contraction(b: Block) -> bool:
    """Whether the block is a reduction that can be vectorised along the last output axis.

    An operand must be contiguous along that axis, or be reused by other spatial variables, so that packing it is profitable.
    """
    if not is_reduction(b):
        return False
    last = vector_axis(b)
    if last is None:
        return False
    vector = b.iters[last].var
    spatial = {i.var for i in b.iters if i.kind == "S"}
    reduced = {i.var for i in b.iters if i.kind == "R"}
    streamed = [o for o in operands(b) if o.iters & reduced]
    return any(vector in o.contiguous or (vector in o.iters and not spatial <= o.iters) for o in streamed)


def reads_rows_once(b: Block) -> bool:
    """Whether a contraction has an operand with all of its spatial variables of more than one value, and none that is contiguous along
    the vector axis: the product of a matrix with a vector.  Packing that operand gains nothing; its rows can be reduced one by one."""
    last = vector_axis(b)
    spatial = {i.var for i in b.iters if i.kind == "S" and i.extent.const != 1}
    reduced = {i.var for i in b.iters if i.kind == "R"}
    streamed = [o for o in operands(b) if o.iters & reduced]
    vector = None if last is None else b.iters[last].var
    return any(spatial <= o.iters for o in streamed) and not any(vector in o.contiguous for o in streamed)


def consumers(func: PrimFunc, b: Block) -> list[Block]:
    """Blocks that read a buffer written by `b`."""
    made = {a.buffer for a in writes(b)}
    return [c for c in blocks_under(func.body) if c is not b and any(a.buffer in made for a in reads(c))]


def producers(func: PrimFunc, b: Block) -> list[Block]:
    """Blocks that write a buffer read by `b`."""
    used = {a.buffer for a in reads(b)}
    return [c for c in blocks_under(func.body) if c is not b and any(a.buffer in used for a in writes(c))]


INLINED = ExpressionSize(1024, 100)
"""Size limit of a fully inlined expression: larger ones are scheduled by the rule `stages`; other rules inline all pointwise blocks."""


def inlined_sizes(func: PrimFunc, stage: ExpressionSize = INLINED) -> dict[str, ExpressionSize]:
    """The expression size of each block after inlining all earlier pointwise blocks of at most the size `stage`."""
    inlined: dict[Buffer, ExpressionSize] = {}
    out: dict[str, ExpressionSize] = {}
    for b in blocks_under(func.body):
        sizes = [size_of(st.value, inlined) for st in walk(b.body) if type(st) is BufferStore]
        size = out[b.name] = ExpressionSize(max([x.nodes for x in sizes], default=1), max([x.depth for x in sizes], default=1))
        if is_pointwise(b) and not is_output(func, b) and is_within(size, stage):
            inlined[writes(b)[0].buffer] = size
    return out


def is_within(size: ExpressionSize, most: ExpressionSize) -> bool:
    """Whether an expression is neither larger nor deeper than `most`."""
    return size.nodes <= most.nodes and size.depth <= most.depth


def is_output(func: PrimFunc, b: Block) -> bool:
    """Whether the block writes a parameter of the function."""
    return any(a.buffer in func.params for a in writes(b))
