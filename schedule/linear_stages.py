"""Build the blocks of algorithms that compute sums of products from linear combinations of their operands.

Coefficients are numbers chosen by selects of an index, which unrolling its loop decides: no matrix exists at run time, and terms with the
coefficient 0 are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Const, Expr, call, const, select
from tunesmith.ir.poly import Poly, Var, less_than, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter, Stmt, nest, store
from tunesmith.schedule.state import ScheduleState

Matrix = Sequence[Sequence[Fraction]]


class LinearStages:
    """New blocks at the root, in order.

    Args:
        s: the schedule, for names.
    Attributes:
        stmts: a nest for each block.
        buffers: the new buffers.
        names: the names of the blocks.
    """

    def __init__(self, s: ScheduleState) -> None:
        self._s = s
        self.stmts: list[Stmt] = []
        self.buffers: list[Buffer] = []
        self.names: list[str] = []

    def stage(self, name: str, shape: Sequence[Poly], dtype: str, element: Callable[[Sequence[Var]], Expr]) -> Buffer:
        """A block that computes each element of a new buffer from its index."""
        buffer = self.buffer(name, shape, dtype)
        iters = [Iter(Var(f"v{d}"), n, "S") for d, n in enumerate(shape)]
        index = [it.var for it in iters]
        self.add(buffer, iters, store(buffer, index, element(index)), None)
        return buffer

    def buffer(self, name: str, shape: Sequence[Poly], dtype: str) -> Buffer:
        """A new buffer."""
        buffer = Buffer(name, tuple(shape), dtype)
        self.buffers.append(buffer)
        return buffer

    def add(self, buffer: Buffer, iters: Sequence[Iter], body: Stmt, init: Stmt | None) -> None:
        """A block named like its buffer, with a loop for each iteration variable."""
        name = self._s.fresh_name(buffer.name)
        loops = [Var(f"ax{d}") for d in range(len(iters))]
        made = Block(name, tuple(iters), tuple(map(poly, loops)), (), init, body)
        self.stmts.append(nest([(v, it.extent) for v, it in zip(loops, iters, strict=True)], made))
        self.names.append(name)


def sum_of_products(s: ScheduleState, b: Block, condition: str) -> tuple[BufferStore, BufferLoad, BufferLoad]:
    """The store and the operands of a block that adds products of one element each of two buffers.

    Other blocks are refused by `condition`.
    """
    update = reassociable_update(b)
    what = f"block {b.name} is not of the form C[...] = C[...] + A[...] * B[...], with an init of 0"
    if update is None or update.op != "add" or type(b.init) is not BufferStore or type(b.init.value) is not Const or b.init.value.value:
        raise s.refuse(condition, what, b)
    term, out = update.term, update.store
    if type(term) is not Binary or term.op != "mul" or not (type(term.a) is BufferLoad and type(term.b) is BufferLoad):
        raise s.refuse(condition, what, b)
    dtype, kinds = out.buffer.dtype, {term.a.dtype, term.b.dtype}
    if dtype not in ("float32", "float64") or kinds != {dtype} or term.a.buffer is term.b.buffer:
        what = f"block {b.name} does not sum products of two buffers of the type of its output, float32 or float64"
        raise s.refuse(condition, what, b)
    return out, term.a, term.b


def chosen(row: Var, rows: Matrix, source: Callable[[int], Expr], dtype: str) -> Expr:
    """The row of a matrix times a vector, for a row that is known when its loop is unrolled."""
    values = [linear(r, source, dtype) for r in rows]
    made = values[-1]
    for k in reversed(range(len(values) - 1)):
        made = select(less_than(row, k + 1), values[k], made)
    return made


def linear(coefficients: Sequence[Fraction], source: Callable[[int], Expr], dtype: str) -> Expr:
    """The sum of multiples of the sources, those with coefficients 1 and -1 first; zeros are left out."""
    terms = sorted([(c, k) for k, c in enumerate(coefficients) if c], key=lambda term: (abs(term[0]) != 1, term[0] != 1))
    total: Expr | None = None
    for c, k in terms:
        x, factor = source(k), const(float(c), dtype)
        if total is None:
            total = x if c == 1 else x * factor
        else:
            total = total + x if c == 1 else total - x if c == -1 else call("fma", x, factor, total)
    assert total is not None
    return total
