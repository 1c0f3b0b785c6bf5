"""Provide the base of the parsers: errors with positions, names in scope, arguments of calls."""

from __future__ import annotations

import ast
import numbers
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.script.buffer_view import BufferView
from tunesmith.ir.script.diagnostics import Source, SourceError, shorten
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError
from tunesmith.support.nearest_name import nearest_name

R = TypeVar("R")

MAX_DEPTH = 120
"""Maximum nesting of expressions, statements and loops."""


TVM_REMEDY = "docs/from-tvm.md has what scripts of TVM may contain, and what to write instead."
"""The remedy of errors that have no other, in scripts of TVM."""


class Budget:
    """Limit on the cost of parsing a text: term operations on index expressions, in proportion to the length of the text."""

    __slots__ = ("left",)

    def __init__(self, characters: int) -> None:
        self.left = 300_000 + 4 * characters


class ScopeParser:
    """Parser state: the names in scope.

    Attributes:
        scope: index variables (as polynomials: a shifted loop is `i + 4`), let-bound values, buffers and views by name.
        hidden: names bound outside the current block, which it must not use, with the name of the block.
        guards: conditions around the current position, which decide whether it runs.
    """

    def __init__(self, source: Source, budget: Budget, constants: Callable[[str], object] | None = None, alias: str = "T") -> None:
        self.source = source
        self.budget = budget
        self.alias = alias
        self.scope: dict[str, Expr | Buffer | BufferView] = {}
        self.hidden: dict[str, str] = {}
        self._constants = constants
        self.guards = 0
        self._depth = 0

    # ---- errors ----------------------------------------------------------------------------------------------------

    def fail(self, at: ast.AST, what: str, hint: str = "") -> NoReturn:
        """Raise the ScriptError `what` at the position of `at`; `hint` is the remedy."""
        raise self.source.error(at, what, hint or self._remedy())

    def _remedy(self) -> str:
        return TVM_REMEDY if self.source.tvm else ""

    def make(self, at: ast.AST, f: Callable[..., R], *args: Any) -> R:
        """`f(*args)`; errors of IR constructors are raised at the position of `at`."""
        try:
            return f(*args)
        except SourceError:
            raise
        except ScriptError as e:
            raise self.source.error(at, str(e), self._remedy()) from None

    def enter(self, at: ast.AST, levels: int = 1) -> None:
        """Enter `levels` nesting levels; the caller must `leave` as many."""
        self._depth += levels
        if self._depth > MAX_DEPTH:
            self.fail(at, f"this is nested more than {MAX_DEPTH} levels deep")

    def leave(self, levels: int = 1) -> None:
        """Undo `enter`."""
        self._depth -= levels

    # ---- names -----------------------------------------------------------------------------------------------------

    def lookup(self, e: ast.Name, kind: str = "name") -> Expr | Buffer | BufferView | int | float | str:
        """The value of a name."""
        name = e.id
        if name in self.hidden:
            why = f"It is bound outside the block {shorten(self.hidden[name])!r}, which can only use its own iteration variables:"
            self.fail(e, f"`{name}` cannot be used here", f"{why} add `v = T.axis.spatial(extent, {name})` at its top and use `v`.")
        found = self.scope.get(name)
        if found is not None:
            return found
        value = self._constants(name) if self._constants is not None and name != self.alias else None
        if value is None:
            known = [n for n in self.scope if n not in self.hidden]
            near = nearest_name(name, known, 0.5)
            have = (f"Did you mean `{near}`? " if near else "") + f"Known here: {', '.join(known[:20]) or 'nothing'}."
            self.fail(e, f"unknown {kind} `{shorten(name)}`", have)
        if isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, numbers.Real):  # numpy's
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        self.fail(
            e,
            f"`{shorten(name)}` is a {type(value).__name__}",
            "Only int, float and str constants may be taken from the Python program around.",
        )

    def t_name(self, e: ast.expr) -> str | None:
        """`x` if `e` is `T.x`, else None."""
        if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == self.alias and self.alias not in self.scope:
            return e.attr
        return None

    def t_call(self, e: ast.expr | None) -> tuple[str, ast.Call] | None:
        """`("x", call)` if `e` is a call of `T.x`, else None."""
        name = self.t_name(e.func) if isinstance(e, ast.Call) else None
        return None if name is None else (name, e)  # type: ignore[return-value]

    # ---- arguments -------------------------------------------------------------------------------------------------

    def arguments(self, call: ast.Call, names: Iterable[str], required: int) -> dict[str, ast.expr]:
        """The arguments of `call` by name; the first `required` of `names` must be present."""
        names = list(names)

        def wrong(at: ast.AST, what: str) -> NoReturn:
            takes = ", ".join(n if i < required else f"{n}=..." for i, n in enumerate(names))
            self.fail(at, f"`{shorten(ast.unparse(call.func))}` {what}", f"It takes ({takes}).")

        if len(call.args) > len(names):
            wrong(call, f"got {len(call.args)} arguments")
        out: dict[str, ast.expr] = {}
        for name, a in zip(names, call.args, strict=False):
            if isinstance(a, ast.Starred):
                wrong(a, "got a `*` argument, which is not supported")
            out[name] = a
        for k in call.keywords:
            if k.arg is None or k.arg not in names:
                wrong(k, f"got the unexpected argument `{shorten(k.arg or '**')}`")
            if k.arg in out:
                wrong(k, f"got the argument `{k.arg}` twice")
            out[k.arg] = k.value
        for n in names[:required]:
            if n not in out:
                wrong(call, f"needs the argument `{n}`")
        return out

    def text(self, e: ast.expr, what: str) -> str:
        """A text constant."""
        v = e.value if isinstance(e, ast.Constant) else self.lookup(e) if isinstance(e, ast.Name) else None
        if not isinstance(v, str):
            self.fail(e, f"{what} must be text in quotes")
        return v

    def dtype(self, e: ast.expr) -> str:
        """The name of a dtype."""
        name = self.text(e, "a dtype")
        if len(name) > 20:
            self.fail(e, f"unknown dtype {shorten(name)!r}")
        self.make(e, dt.split, name)
        return name

    def items(self, e: ast.expr, what: str) -> list[ast.expr]:
        """The elements of a tuple or list display."""
        if not isinstance(e, (ast.Tuple, ast.List)):
            self.fail(e, f"{what} must be a list or tuple")
        return e.elts
