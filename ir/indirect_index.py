"""Lookups: an index that is known only when the program runs, such as a row number that is itself loaded from memory.

Indices are polynomials of variables and hold no loads, so that every analysis of them is exact.  A lookup gives the value of an
expression a name that indices may use: the variable runs over a known range, as a loop variable does, and whoever asks which
elements are touched takes all of that range.
"""

from __future__ import annotations

from tunesmith.ir.expr import Expr
from tunesmith.ir.node import node
from tunesmith.ir.poly import Poly, Var


class IndirectVar(Var):
    """The variable of a lookup."""

    __slots__ = ()


@node
class IndirectIndex(Expr):
    """`body` where `var` is the number `value`; 0 <= value < extent must hold, which the interpreter checks and code does not.

    Attributes:
        var: bound in `body` only.
        extent: the numbers that are possible.
        value: an int64 scalar.
        body: what is computed.
    """

    var: IndirectVar
    extent: Poly
    value: Expr
    body: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.body.dtype
