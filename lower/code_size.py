"""Estimate how many instructions a program becomes, and keep unrolling within a budget.

The time that LLVM takes grows faster than the code: on one core 43,000 instructions of one function take 2 to 4 s, 86,000 take 7 s, and
183,000 took a quarter of an hour.  So copies are counted before they are made.  The estimate is that of a program before vector math
is expanded: an expanded function counts as the arithmetic it becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Ramp, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, evaluate
from tunesmith.ir.stmt import Block, BufferStore, Evaluate, For, If, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk, with_body
from tunesmith.lower.vector_math_tables import OPERATIONS
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

UNROLLED = 16_384
"""Estimated instructions that unrolled loops may add up to in one function: what LLVM compiles in 1 to 2.5 s."""

DEVICE_UNROLLED = 4 * UNROLLED
"""The same for a kernel of a GPU: sketches unroll 2,048 multiply-adds of a thread, ten instructions each by this estimate."""

EMITTED = 65_536
"""Lines of LLVM IR of one function at most, whatever they come from: what LLVM compiles in 4 to 10 s."""

_SCALAR_SCALE = 14
"""Instructions of a multiplication by a power of two where the machine has none: two products, and the bits of two factors."""
_ADDRESS = 1
"""Instructions of an access to memory beside the access itself."""


def expression_size(e: Expr, seen: set[int] | None = None) -> int:
    """Estimated instructions of an expression; an object that occurs twice counts once."""
    seen = set() if seen is None else seen
    total = 0
    stack: list[Any] = [e]
    while stack:
        n = stack.pop()
        if type(n) in _FREE or id(n) in seen:
            continue
        seen.add(id(n))
        total += _own_size(n)
        n.each_child(stack.append)
    return total


_FREE = frozenset({Poly, Const})


def _own_size(n: Any) -> int:
    t = type(n)
    if t is BufferLoad:
        return 1 + _ADDRESS
    if t is Call:
        return _function_size(n.name, dt.lanes(n.dtype))
    if t is Binary:
        if n.op == "pow" or (n.op in ("floordiv", "mod") and dt.is_float(n.dtype)):
            return _function_size(n.op, dt.lanes(n.dtype))
        return 2 if n.op in ("min", "max") else 4 if n.op in ("floordiv", "mod") else 1
    if t is Select and dt.lanes(n.cond.dtype) == 1:
        return 4  # branches
    return 2 if t in (Broadcast, Ramp, Cast) else 1


def _function_size(name: str, lanes: int) -> int:
    single, double = OPERATIONS.get(name, (1, 0))
    scaled = _SCALAR_SCALE if lanes < 16 and name in ("exp", "exp2", "sigmoid", "pow") else 0
    return single + 2 * double + scaled


def code_size(n: Stmt, lanes: int = 1) -> int:
    """Estimated instructions of a statement with all its unrolled and vectorised loops written out, `lanes` elements in a vector."""
    t: Any = type(n)
    if t is For:
        loop: Any = n
        return _copies(loop, lanes) * code_size(loop.body, lanes) + 2
    if t is BufferStore:
        return 1 + _ADDRESS + expression_size(n.value)  # type: ignore[attr-defined]
    if t is Evaluate:
        return 1 + expression_size(n.value)  # type: ignore[attr-defined]
    total = 1
    kids: list[Any] = []
    n.each_child(kids.append)
    for k in kids:
        if isinstance(k, Stmt):
            total += code_size(k, lanes)
        elif type(k) not in _FREE and t is not Block and isinstance(k, Expr):
            total += expression_size(k)
    return total


def _copies(n: For, lanes: int) -> int:
    extent = n.extent.const
    if extent is None or n.kind not in ("unrolled", "vectorized"):
        return 1
    return extent if n.kind == "unrolled" else -(-extent // lanes)


def bound_unrolling(func: PrimFunc, target: Target) -> PrimFunc:
    """`func` with loops kept that would be unrolled into more than `UNROLLED` instructions: the outermost of a nest.

    Rewrite:
        for i in unroll(512): for j in unroll(512): C[i, j] = ...
      ->
        for i in range(512): for j in unroll(512): C[i, j] = ...

    Raises:
        BuildError: the loops pass through memory of scope `register` of a CPU, which is in registers only where all indices are numbers.
    """
    body = func.body
    most = DEVICE_UNROLLED if target.is_gpu else UNROLLED
    if code_size(body) <= most:
        return func
    limit = most
    while True:
        bounded = _Bounded(limit, not target.is_gpu)
        out, _, copied = bounded.statement(body)
        if copied <= most or limit == 1:
            break
        limit //= 2
    if copied > most and bounded.fixed:
        names = ", ".join(sorted({b for _, b in bounded.fixed}))
        loops = ", ".join(sorted({v for v, _ in bounded.fixed}))
        raise BuildError(
            f"{func.name}: [code-size] unrolling the loops {loops} gives about {round(copied)} instructions, and at most {most} are "
            f"compiled; they index {names} of scope register, so they cannot stay loops. Make the tile of {names} smaller, or give "
            f"{names} another scope"
        )
    return with_body(func, out)


class _Bounded:
    """Keeps loops whose copies are larger than `limit`, innermost first.

    Sizes are averages over the copies of the loops around: a guard that unrolling decides removes some of them.

    Attributes:
        fixed: (loop, register buffer) of the loops that must be unrolled.
        values: the values of unrolled loops for which the present statement remains.
    """

    def __init__(self, limit: int, registers: bool) -> None:
        self.limit, self.registers = limit, registers
        self.fixed: set[tuple[str, str]] = set()
        self.values: dict[Var, Sequence[int]] = {}

    def statement(self, n: Stmt) -> tuple[Any, float, float]:
        """(the statement, its instructions, those of them that are in unrolled loops)."""
        if type(n) is For:
            if n.kind == "unrolled" and n.extent.const is not None:
                self.values[n.var] = range(n.extent.const)
            body, size, copied = self.statement(n.body)
            self.values.pop(n.var, None)
            out = n if body is n.body else n.with_(body=body)
            copies = _copies(n, 1)
            if copies <= 1 or n.kind != "unrolled":
                return out, size + 2, copied
            buffer = self._register(n.body, n.var) if self.registers else None
            if buffer is not None:
                self.fixed.add((n.var.name, buffer))
            elif copies * size > self.limit:
                return out.with_(kind="serial"), size + 2, copied
            return out, copies * size, copies * size
        if type(n) in (BufferStore, Evaluate):
            return n, code_size(n), 0
        if type(n) is If and (passing := self._passing(n.cond)) is not None:
            return self._decided(n, *passing)
        total = [1.0, 0.0]

        def visit(k: Any) -> Any:
            if not isinstance(k, Stmt):
                if type(k) not in _FREE and isinstance(k, Expr):
                    total[0] += expression_size(k)
                return k
            out, size, copied = self.statement(k)
            total[0] += size
            total[1] += copied
            return out

        made = n.map_children(visit)
        return made, total[0], total[1]

    def _passing(self, cond: Expr) -> tuple[Var, list[int]] | None:
        """(the one unrolled loop that a condition depends on, its values for which the condition holds)."""
        if type(cond) is not IsNegative or cond.lanes != 1 or len(cond.index.vars) != 1:
            return None
        (v,) = cond.index.vars
        return (v, [x for x in self.values[v] if evaluate(cond.index, {v: x}) < 0]) if v in self.values else None

    def _decided(self, n: If, v: Var, passing: list[int]) -> tuple[Any, float, float]:
        """A branch whose copies know which way they go."""
        every = self.values[v]
        sides: list[Any] = []
        size = copied = 0.0
        for side, values in ((n.then, passing), (n.orelse, [x for x in every if x not in passing])):
            if side is None or not values:
                sides.append(side)
                continue
            self.values[v] = values
            out, s, c = self.statement(side)
            share = len(values) / len(every)
            size, copied = size + share * s, copied + share * c
            sides.append(out)
        self.values[v] = every
        then, orelse = sides
        return n if then is n.then and orelse is n.orelse else n.with_(then=then, orelse=orelse), size, copied

    @staticmethod
    def _register(n: Stmt, v: Var) -> str | None:
        """The name of a register buffer below that an index with `v` selects from."""
        for x in walk(n):
            if type(x) in (BufferLoad, BufferStore) and x.buffer.scope == "register" and any(v in i.vars for i in x.indices):
                name: str = x.buffer.name
                return name
        return None
