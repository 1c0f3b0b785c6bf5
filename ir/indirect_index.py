"""Declare indirect indices (gather): indices known only at run time, such as a row number loaded from memory.

Indices are polynomials of variables and contain no loads, so that every analysis of them is exact.  An indirect index binds the value of
an expression to a variable that indices may use.  The variable has a known range, as a loop variable has, and footprints cover the
whole range.
"""

from __future__ import annotations

from tunesmith.ir.expr import Expr
from tunesmith.ir.node import node
from tunesmith.ir.poly import Poly, Var


class IndirectVar(Var):
    """The variable that an indirect index binds."""

    __slots__ = ()


@node
class IndirectIndex(Expr):
    """`body` with `var` bound to `value`.

    0 <= value < extent must hold; the interpreter checks it, compiled code does not.

    Attributes:
        var: the variable, bound in `body` only.
        extent: exclusive upper bound of the value.
        value: an int64 scalar.
        body: the value of the expression, in terms of `var`.
    """

    var: IndirectVar
    extent: Poly
    value: Expr
    body: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.body.dtype
