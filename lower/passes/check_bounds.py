"""Check every index at run time; report the first one out of bounds and access nothing after it.

The program becomes serial and keeps its statement order: loops lose their kinds, blocks become statements, and intermediate buffers are
allocated for the whole call.  Speed does not matter here.

Rewrite:
    for i in T.parallel(16):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = A[vi + 1]
  ->
    for i in T.serial(16):
        if report[0] == 0:
            if i < 0 or 12 <= i: report[0], report[1], report[2] = 1, i, 12
        if report[0] == 0:
            if i + 1 < 0 or 12 <= i + 1: report[0], report[1], report[2] = 2, i + 1, 12
        if report[0] == 0:
            C[i] = A[i + 1]

`report` is a new last buffer parameter of three int64, which the entry point sets to 0: the number of the site, the index, the extent.
The attribute `bounds_sites` holds the description of each site, one per line.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call, Const, Expr, Select, compare
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.intrinsics import INTRINSICS, PREFETCHES
from tunesmith.ir.poly import ZERO, Poly, Var, less_than, poly
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Seq, Stmt, While, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError

SITES = "bounds_sites"
"""The attribute with the sites of a rewritten function."""
REPORT_ITEMS = 3


@function_pass(requires="SCHEDULED", provides="OPAQUE", adds_parameters=True)
def check_bounds(func: PrimFunc, target: Target) -> PrimFunc:
    """Add run-time checks to a CPU function.  BuildError if the program is vectorized or bound to threads already."""
    made = _Checker(func)
    body = made.stmt(func.body) or seq([])
    for b in func.allocs:
        body = Allocate(b, body)
    buffers = [p for p in func.params if isinstance(p, Buffer)]
    sizes = [p for p in func.params if isinstance(p, Var)]
    attrs = tuple(sorted([*[a for a in func.attrs if a[0] != SITES], (SITES, "\n".join(made.sites))]))
    return PrimFunc(func.name, (*buffers, made.report, *sizes), (), body, attrs)


def sites_of(func: PrimFunc) -> tuple[str, ...] | None:
    """The sites of a rewritten function; None for other functions."""
    text = func.attr(SITES)
    return tuple([t for t in text.split("\n") if t]) if isinstance(text, str) else None


class _Checker:
    """The rewrite of one function.

    Attributes:
        sites: descriptions of the checks, numbered from 1.
        indirect_indices: the indirect indices around the current expression, outermost first.
        where: the current block, for messages.
    """

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.report = Buffer("report", (REPORT_ITEMS,), "int64")
        self.sites: list[str] = []
        self.indirect_indices: list[IndirectIndex] = []
        self.where = ""
        self.clean = compare("eq", BufferLoad(self.report, (ZERO,)), Const(0, "int64"))

    # ---- statements

    def stmt(self, s: Stmt) -> Stmt | None:
        """The statement with its checks; None when nothing is left."""
        if type(s) is Seq:
            return seq([self.stmt(x) for x in s.stmts])
        if type(s) is For:
            if s.kind == "thread":
                raise self.refusal(f"the loop {s.var} is bound to {s.thread}")
            body = self.stmt(s.body)
            return None if body is None else For(s.var, s.extent, body)
        if type(s) is Block:
            return self.block(s)
        if type(s) is If:
            then, orelse = self.stmt(s.then), None if s.orelse is None else self.stmt(s.orelse)
            return seq([*self.of(s.cond, set()), self.unless_failed(If(s.cond, then or seq([]), orelse))])
        if type(s) is While:
            check = self.of(s.cond, set())
            runs = Select(self.clean, s.cond, Const(False, "bool"))
            return seq([*check, While(runs, seq([self.stmt(s.body), *check]))])
        if type(s) is Allocate:
            body = self.stmt(s.body)
            return None if body is None else Allocate(s.buffer, body)
        if type(s) is BindIndex:
            site = f"the value of the indirect index {s.var}{self.where}"
            body = self.stmt(s.body)
            checks = [*self.of(s.value, set()), self.inside(s.value, s.extent, site)]
            return seq([*checks, None if body is None else self.unless_failed(s.with_(body=body))])
        if type(s) is BufferStore:
            if s.stride is not None or s.mask is not None:
                raise self.refusal(f"the store to {s.buffer.name} is a vector")
            return seq([*self.of(s.value, set()), *self.access(s, "store to"), self.unless_failed(s)])
        if type(s) is Evaluate and type(s.value) is Call and s.value.name in PREFETCHES:
            return None
        raise self.refusal(f"it contains a {type(s).__name__} with a side effect")

    def block(self, b: Block) -> Stmt:
        outer, self.where = self.where, f" in block {b.name}"
        values: dict[Var, Poly] = {it.var: e for it, e in zip(b.iters, b.bindings, strict=True)}
        parts: list[Stmt | None] = []
        for it, e in zip(b.iters, b.bindings, strict=True):
            parts.append(self.inside(e, it.extent, f"the iteration variable {it.var}{self.where}"))
        if b.init is not None:
            init = self.stmt(substitute(b.init, values))
            for it, e in zip(b.iters, b.bindings, strict=True):
                if it.kind == "R" and init is not None:
                    init = If(less_than(e, 1), init)
            parts.append(init)
        parts.append(self.stmt(substitute(b.body, values)))
        body = seq(parts)
        for e in reversed(b.predicate):
            body = If(less_than(e, 0), body)
        self.where = outer
        return body

    def refusal(self, what: str) -> BuildError:
        return BuildError(
            f"{self.func.name}: bounds_check=True takes CPU programs of loops and blocks, but {what}{self.where}: build the program "
            "before binding and lowering"
        )

    # ---- checks

    def unless_failed(self, s: Stmt) -> Stmt:
        return If(self.clean, s)

    def with_indirect_indices(self, e: Expr) -> Expr:
        """The expression in the scope of the current indirect indices."""
        for n in reversed(self.indirect_indices):
            e = IndirectIndex(n.var, n.extent, n.value, e)
        return e

    def inside(self, value: Expr, extent: Poly, site: str) -> Stmt | None:
        """The statement that reports the site unless 0 <= value < extent; None when that is certain."""
        outside = [c for c in (compare("lt", value, poly(0)), compare("ge", value, extent)) if not (type(c) is Const and not c.value)]
        if not outside:
            return None
        self.sites.append(site)
        items = (poly(len(self.sites)), value, extent)
        report = seq([store(self.report, (k,), self.with_indirect_indices(item)) for k, item in enumerate(items)])
        cond = outside[0] if len(outside) == 1 else Binary("or", *outside)
        return self.unless_failed(If(self.with_indirect_indices(cond), report))

    def access(self, s: BufferStore | BufferLoad, what: str) -> list[Stmt]:
        """The checks of the indices of an access."""
        found = []
        for d, (i, n) in enumerate(zip(s.indices, s.buffer.shape, strict=True)):
            which = f"index {d} of " if len(s.indices) > 1 else "the index of "
            found.append(self.inside(i, n, f"{which}the {what} {s.buffer.name}{self.where}"))
        return [c for c in found if c is not None]

    def of(self, e: Expr, seen: set[int]) -> list[Stmt]:
        """The checks of an expression, in the order of evaluation.

        Args:
            e: the expression.
            seen: subexpressions that are already checked at this point.
        """
        if id(e) in seen or type(e) is Poly or type(e) is Const:
            return []
        seen.add(id(e))
        if type(e) is BufferLoad:
            if e.lanes > 1:
                raise self.refusal(f"the load of {e.buffer.name} is a vector")
            return self.access(e, "load of")
        if type(e) is Select:
            return [*self.of(e.cond, seen), *self.sides(e, seen)]
        if type(e) is IndirectIndex:
            site = f"the value of the indirect index {e.var}{self.where}"
            found = [*self.of(e.value, seen), self.inside(e.value, e.extent, site)]
            self.indirect_indices.append(e)
            found += self.of(e.body, set(seen))
            self.indirect_indices.pop()
            return [c for c in found if c is not None]
        if type(e) is Call and INTRINSICS[e.name].shuffle:
            raise self.refusal(f"it calls {e.name}")
        parts: list[Any] = []
        e.each_child(parts.append)
        return [c for p in parts for c in self.of(p, seen)]

    def sides(self, e: Select, seen: set[int]) -> list[Stmt]:
        then, orelse = self.of(e.a, set(seen)), self.of(e.b, set(seen))
        if not then and not orelse:
            return []
        return [self.unless_failed(If(self.with_indirect_indices(e.cond), seq(then), seq(orelse) if orelse else None))]
