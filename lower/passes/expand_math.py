"""Replace elementary functions by arithmetic; see `lower.vector_math` for formulas and accuracy."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Call, Const, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.vector_math import expand, is_expanded

_LEAVES = frozenset({Poly, Const, BufferLoad})
"""Node types with nothing to expand; most nodes of an unrolled program."""


@function_pass(requires="FLAT", provides="VECTOR")
def expand_math(func: PrimFunc, target: Target) -> PrimFunc:
    """Replace every `expanded` intrinsic, `pow`, and `//` and `%` of floats by arithmetic; `func` itself when it has none.

    A shared expression stays shared, so the time is linear in the number of objects of `func`.  Equal calls within one statement are
    expanded once: formulas are trees, and softplus has five equal calls of exp.

    Raises:
        BuildError: a function has no expansion for its element type.
    """
    done: dict[Expr, Expr] = {}
    expanded: dict[int, Expr] = {}
    number = _Numbering()

    def rewrite(n: Any) -> Any:
        if type(n) in _LEAVES:
            return n
        if not isinstance(n, Expr):
            expanded.clear()  # a store may change what the calls read
            return n.map_children(rewrite)
        if n not in done:
            if isinstance(n, (Call, Binary)) and is_expanded(n):
                key = number(n)
                if key not in expanded:
                    m: Any = n.map_children(rewrite)
                    expanded[key] = expand(m)
                done[n] = expanded[key]
            else:
                done[n] = n.map_children(rewrite)
        return done[n]

    return with_body(func, rewrite(func.body))


class _Numbering:
    """Value numbering: equal expressions have equal numbers."""

    def __init__(self) -> None:
        self._of: dict[Expr, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}

    def __call__(self, e: Any) -> int:
        found = self._of.get(e)
        if found is None:
            values = [getattr(e, name) for name in e.fields]
            key = (type(e), *[self._part(v) for v in values])
            found = self._of[e] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def _part(self, v: Any) -> Any:
        if type(v) is tuple:
            return tuple([self._part(x) for x in v])
        if type(v) is float:
            return v.hex()  # 0 and -0 compare equal but are different values
        return ("expression", self(v)) if isinstance(v, Expr) and type(v) is not Poly else (type(v).__name__, v)
