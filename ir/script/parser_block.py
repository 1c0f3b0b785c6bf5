"""Parse blocks: the T.axis and T.where lines, then attributes, init and body in terms of the iteration variables."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.script.buffer_view import BufferView
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_expr import OPERATORS
from tunesmith.ir.script.parser_local import Loop
from tunesmith.ir.script.parser_stmt import StmtParser
from tunesmith.ir.stmt import Annotations, Block, Iter, Stmt

_AXES = {"spatial": "S", "S": "S", "reduce": "R", "R": "R", "scan": "S", "opaque": "S"}
"""Kinds of iteration variables.  Ordered variables are spatial: the dependences of a block decide which steps may change its order."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A T.axis line: the name in the text means `iter.var + start`, where `start` is the first value of a shifted loop."""

    at: ast.AST | None
    name: str
    iter: Iter
    binding: Poly
    start: Poly


class BlockParser(StmtParser):
    """Parser of blocks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lines: dict[str, int] = {}
        self._axes: dict[str, tuple[Loop, str]] = {}
        """The iteration variables of enclosing blocks, with their kinds."""
        self._captures: list[dict[str, Axis]] = []
        """For each enclosing block, the axes for variables around it that its text uses, as TVM allows."""
        self._outside: list[frozenset[str]] = []
        """For each enclosing block, the variables that are bound around it."""

    def block(self, s: ast.With, call: ast.Call) -> Stmt:
        """Parse `with T.block(name):` and its body."""
        at = self.arguments(call, ("name",), 1)["name"]
        name = self.text(at, "the name of a block")
        while self.source.tvm and name in self._lines:  # TVM's functions may have several blocks of one name
            name = f"{name}_{len(self._lines)}"
        if name in self._lines:
            what = f"the block name {shorten(name)!r} is taken by the block in line {self._lines[name]}"
            self.fail(at, what, "Names of blocks are unique in a function.")
        self._lines[name] = s.lineno + self.source.first_line - 1
        axes: list[Axis] = []
        predicate: list[Poly] = []
        n = 0
        while n < len(s.body) and self._header(s.body[n], axes, predicate):
            n += 1
        # Only the iteration variables of the block are in scope from here on.
        around = self.hidden, self.locals
        self.hidden, self.locals = {**self.hidden, **dict.fromkeys(self.locals, name)}, set()
        for a in axes:
            self.declare(a.at or s, a.name, poly(a.iter.var) + a.start)
            self.locals.add(a.name)
            self._axes[a.name] = (Loop(a.iter.var, a.iter.extent, a.start), a.iter.kind)
        self._captures.append({})
        self._outside.append(frozenset(self.hidden))
        self.guards += bool(predicate)
        annotations, init, body = self._content(s.body[n:], s)
        self.guards -= bool(predicate)
        # Its init depends on its own axes only, so that outer ones are spatial for it.
        axes += [a if init is None else replace(a, iter=a.iter.with_(kind="S")) for a in self._captures.pop().values()]
        self._outside.pop()
        self.release([a.name for a in axes if a.at is not None])
        self.hidden, self.locals = around
        return Block(name, tuple([a.iter for a in axes]), tuple([a.binding for a in axes]), tuple(predicate), init, body, annotations)

    def lookup(self, e: ast.Name, kind: str = "name") -> Expr | Buffer | BufferView | int | float | str:
        """The value of a name; in TVM's text, a block may use variables around it, which become axes of the block."""
        found = self.scope.get(e.id)
        if self.source.tvm and e.id in self.hidden and isinstance(found, Poly):
            return self.visible(found)
        return super().lookup(e, kind)

    def visible(self, p: Poly) -> Poly:
        """An index of variables around the current block, in terms of its axes."""
        values: dict[Var, Poly] = {}
        for name in self.hidden:
            if (name in self.loops or name in self._axes) and (v := self._outer(name)[0].var) in p.vars:
                values[v] = poly(self._captured(name, len(self._captures) - 1).iter.var)
        return substitute(p, values) if values else p

    def _outer(self, name: str) -> tuple[Loop, str]:
        """A loop, or an iteration variable of a block, and its kind."""
        return (self.loops[name], "S") if name in self.loops else self._axes[name]

    def _captured(self, name: str, level: int) -> Axis:
        """The axis for a variable outside of the enclosing block of a level, which is bound through the blocks between."""
        found = self._captures[level].get(name)
        if found is None:
            loop, kind = self._outer(name)
            through = level > 0 and name in self._outside[level - 1]
            binding = poly(self._captured(name, level - 1).iter.var) if through else poly(loop.var)
            found = self._captures[level][name] = Axis(None, name, Iter(Var(name), loop.extent, kind), binding, poly(0))
        return found

    def _content(self, stmts: Sequence[ast.stmt], at: ast.AST) -> tuple[Annotations, Stmt | None, Stmt]:
        """Parse the statements after the T.axis and T.where lines."""
        annotations: Annotations | None = None
        init: Stmt | None = None
        for n, s in enumerate(stmts):
            attrs = self.attributes(s, "block_attr")
            t = self.t_call(s.items[0].context_expr) if isinstance(s, ast.With) else None
            if attrs is not None and annotations is None:
                annotations = self.notes(attrs)
            elif isinstance(s, ast.With) and t is not None and t[0] == "init" and init is None and len(s.items) == 1:
                self.arguments(t[1], (), 0)
                init = self.body(s.body, s)
            else:
                return annotations or (), init, self.body(stmts[n:], at)
        return annotations or (), init, self.body((), at)

    def _header(self, s: ast.stmt, axes: list[Axis], predicate: list[Poly]) -> bool:
        """Parse a T.axis or T.where line; False if `s` is neither."""
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            f = s.value.func
            if isinstance(f, ast.Attribute) and self.t_name(f.value) == "axis" and len(s.targets) == 1:
                names = self.targets(s.targets[0])
                axes += self._remap(s.value, names) if f.attr == "remap" else [self._axis(s.value, f.attr, names)]
                return True
        t = self.t_call(s.value) if isinstance(s, ast.Expr) else None
        if t is not None and t[0] == "where":
            predicate += self._negatives(self.arguments(t[1], ("condition",), 1)["condition"])
            return True
        return False

    def _axis(self, call: ast.Call, word: str, names: list[str]) -> Axis:
        """Parse `T.axis.spatial(extent, binding)`."""
        kind = _AXES.get(word)
        if kind is None:
            self.fail(call.func, f"unknown T.axis.{shorten(word)}", "Axes are T.axis.spatial, T.axis.reduce and T.axis.remap.")
        if len(names) != 1:
            self.fail(call, f"T.axis.{word} defines one iteration variable, got {len(names)} names")
        a = self.arguments(call, ("extent", "binding"), 2)
        start, extent = poly(0), a["extent"]
        if isinstance(extent, ast.Tuple) and len(extent.elts) == 2:  # TVM's (first, end)
            start = self.index(extent.elts[0])
            end: Poly = self.index(extent.elts[1]) - start
        else:
            end = self.index(extent)
        return Axis(call, names[0], Iter(Var(names[0]), end, kind), self.index(a["binding"]) - start, start)

    def _remap(self, call: ast.Call, names: list[str]) -> list[Axis]:
        """Parse `T.axis.remap("SR", [i, k])`: one iteration variable per loop, with the loop's extent."""
        a = self.arguments(call, ("kinds", "bindings"), 2)
        kinds = self.text(a["kinds"], "the kinds of T.axis.remap")
        bindings = self.items(a["bindings"], "the loops of T.axis.remap")
        if len(kinds) != len(bindings) or not set(kinds) <= {"S", "R"} or len(names) != len(kinds):
            self.fail(
                call,
                f"T.axis.remap got {len(names)} names, the kinds {shorten(kinds)!r} and {len(bindings)} loops",
                "Give one S or R for each.",
            )
        out = []
        for n, kind, b in zip(names, kinds, bindings, strict=True):
            if not isinstance(b, ast.Name) or not isinstance(self.lookup(b), Poly) or b.id not in self.loops:
                self.fail(b, "T.axis.remap takes loop variables only", "Write T.axis.spatial(extent, expression) for an expression.")
            loop = self.loops[b.id]
            if loop.step != 1:
                self.fail(b, f"the loop {b.id} has the step {loop.step}", "Write T.axis.spatial(extent, expression).")
            out.append(Axis(b, n, Iter(Var(n), loop.extent, kind), poly(loop.var), loop.start))
        return out

    def _negatives(self, e: ast.expr) -> list[Poly]:
        """The index conditions of a T.where, as expressions that must be < 0."""
        if isinstance(e, ast.BoolOp) and isinstance(e.op, ast.And):
            return [p for v in e.values for p in self._negatives(v)]
        if not isinstance(e, ast.Compare):
            self.fail(e, "T.where takes comparisons of index expressions, joined by `and`")
        out: list[Poly] = []
        left = self.index(e.left)
        for sign, x in zip(e.ops, e.comparators, strict=True):
            right = self.index(x)
            op = OPERATORS.get(type(sign))
            if op in ("lt", "le"):
                out.append(left - right - int(op == "le"))
            elif op in ("gt", "ge"):
                out.append(right - left - int(op == "ge"))
            elif op == "eq":
                out += [left - right - 1, right - left - 1]
            else:
                self.fail(e, "T.where takes < <= > >= ==")
            left = right
        return out
