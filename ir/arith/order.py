"""Prove that one expression of Params is at most another, by monotony of minima, maxima and quotients."""

from __future__ import annotations

from tunesmith.ir.poly import Op, Poly, minimum


def is_at_most(a: Poly, b: Poly) -> bool:
    """Whether a <= b is proved for all values of the Params; False if it is unknown."""
    if minimum(a, b) == a:
        return True
    x, y = a.as_atom(), b.as_atom()
    if type(y) is Op and y.op == "max" and any(is_at_most(a, e) for e in y.args):
        return True
    if type(y) is Op and y.op == "min":
        return all(is_at_most(a, e) for e in y.args)
    if type(x) is Op and x.op == "min" and any(is_at_most(e, b) for e in x.args):
        return True
    if type(x) is Op and x.op == "max":
        return all(is_at_most(e, b) for e in x.args)
    if type(x) is Op and type(y) is Op and x.op == y.op == "ceildiv" and x.args[1] == y.args[1]:
        return is_at_most(x.args[0], y.args[0])
    return False
