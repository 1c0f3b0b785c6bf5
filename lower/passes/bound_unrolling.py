"""Bound the code size of unrolling: keep loops whose copies would exceed an instruction budget.

The compile time of LLVM grows faster than the code: on one core 43,000 instructions of one function take 2 to 4 s, 86,000 take 7 s, and
183,000 took a quarter of an hour.  So copies are counted before they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Cast, Expr, IsNegative, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, evaluate
from tunesmith.ir.stmt import BufferStore, Evaluate, For, If, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk, with_body
from tunesmith.lower.code_size import DEVICE_UNROLLED, FREE, UNROLLED, code_size, copies_of, expression_size
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import BuildError


@function_pass(requires="FLAT", level=2)
def bound_unrolling(func: PrimFunc, target: Target, *, cpu_budget: int = UNROLLED, gpu_budget: int = DEVICE_UNROLLED) -> PrimFunc:
    """Keep the outermost loops of a nest whose unrolling would exceed the budget.

    Args:
        func: the function.
        target: kind of processor.
        cpu_budget: limit on the estimated instructions of all unrolled loops of a CPU function.
        gpu_budget: the same limit for a GPU function.

    Rewrite:
        for i in unroll(512): for j in unroll(512): C[i, j] = ...
      ->
        for i in range(512): for j in unroll(512): C[i, j] = ...

    Raises:
        BuildError: the loops index memory of scope `register` of a CPU, which needs constant indices.
    """
    for name, budget in (("cpu_budget", cpu_budget), ("gpu_budget", gpu_budget)):
        as_count(name, budget, what="bound_unrolling needs a budget of at least 1 instruction")
    body = func.body
    most = gpu_budget if target.is_gpu else cpu_budget
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
            f"{func.name}: [code-size] unrolling the loops {loops} gives about {round(copied)} instructions, but the limit is {most}; "
            f"they index {names} of scope register, so they must be unrolled. Make the tile of {names} smaller, or give {names} "
            "another scope"
        )
    return with_body(func, out)


class _Bounded:
    """Keep loops whose copies exceed `limit`, innermost first.

    Sizes are averages over the copies of the loops around: a guard that becomes constant by unrolling removes some of the copies.

    Attributes:
        fixed: (loop, register buffer) of the loops that must be unrolled.
        values: for each unrolled loop, the values for which the current statement remains.
    """

    def __init__(self, limit: int, registers: bool) -> None:
        self.limit, self.registers = limit, registers
        self.fixed: set[tuple[str, str]] = set()
        self.values: dict[Var, Sequence[int]] = {}

    def statement(self, n: Stmt) -> tuple[Any, float, float]:
        """(the statement, its instructions, its instructions inside unrolled loops)."""
        if type(n) is For:
            if n.kind == "unrolled" and n.extent.const is not None:
                self.values[n.var] = range(n.extent.const)
            body, size, copied = self.statement(n.body)
            self.values.pop(n.var, None)
            out = n if body is n.body else n.with_(body=body)
            copies = copies_of(n, 1)
            if copies <= 1 or n.kind != "unrolled":
                return out, size + 2, copied
            buffer = self._register(n.body, n.var) if self.registers else None
            if buffer is not None:
                self.fixed.add((n.var.name, buffer))
            elif copies * size > self.limit:
                return out.with_(kind="serial"), size + 2, copied
            return out, copies * size, copies * size
        if type(n) in (BufferStore, Evaluate):
            value: Expr = n.value  # type: ignore[attr-defined]
            return n, code_size(n) - expression_size(value) + self._value(value), 0
        if type(n) is If and (passing := self._passing(n.cond)) is not None:
            return self._decided(n, *passing)
        total = [1.0, 0.0]

        def visit(k: Any) -> Any:
            if not isinstance(k, Stmt):
                if type(k) not in FREE and isinstance(k, Expr):
                    total[0] += expression_size(k)
                return k
            out, size, copied = self.statement(k)
            total[0] += size
            total[1] += copied
            return out

        made = n.map_children(visit)
        return made, total[0], total[1]

    def _value(self, e: Expr) -> float:
        """The instructions of a value; of a select whose condition is constant in each copy, those of the side that remains."""
        if type(e) is Cast:
            return self._value(e.a) + expression_size(e) - expression_size(e.a)
        if type(e) is not Select or (passing := self._passing(e.cond)) is None:
            return expression_size(e)
        v, values = passing
        all_values, size = self.values[v], 0.0
        for side, chosen in ((e.a, values), (e.b, [x for x in all_values if x not in values])):
            if chosen:
                self.values[v] = chosen
                size += self._value(side) * len(chosen) / len(all_values)
        self.values[v] = all_values
        return size

    def _passing(self, cond: Expr) -> tuple[Var, list[int]] | None:
        """(the only unrolled loop that a condition depends on, its values for which the condition holds); None for other conditions."""
        if type(cond) is not IsNegative or cond.lanes != 1 or len(cond.index.vars) != 1:
            return None
        (v,) = cond.index.vars
        return (v, [x for x in self.values[v] if evaluate(cond.index, {v: x}) < 0]) if v in self.values else None

    def _decided(self, n: If, v: Var, passing: list[int]) -> tuple[Any, float, float]:
        """A branch whose condition is constant in each copy."""
        all_values = self.values[v]
        sides: list[Any] = []
        size = copied = 0.0
        for side, values in ((n.then, passing), (n.orelse, [x for x in all_values if x not in passing])):
            if side is None or not values:
                sides.append(side)
                continue
            self.values[v] = values
            out, s, c = self.statement(side)
            share = len(values) / len(all_values)
            size, copied = size + share * s, copied + share * c
            sides.append(out)
        self.values[v] = all_values
        then, orelse = sides
        return n if then is n.then and orelse is n.orelse else n.with_(then=then, orelse=orelse), size, copied

    @staticmethod
    def _register(n: Stmt, v: Var) -> str | None:
        """The name of a register buffer in `n` with an index that depends on `v`; None if there is none."""
        for x in walk(n):
            if type(x) in (BufferLoad, BufferStore) and x.buffer.scope == "register" and any(v in i.vars for i in x.indices):
                name: str = x.buffer.name
                return name
        return None
