"""Sort operations into the kinds that cost models count."""

from __future__ import annotations

from tunesmith.costmodel.analysis.operation_groups import operation_groups
from tunesmith.ir.expr import COMPARISONS, LOGIC, Binary, Call, Cast, Expr, IsNegative, Not, Select
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.stmt import Block
from tunesmith.support import dtype as dt

_BINARY = {
    "add": "add",
    "sub": "add",
    "mul": "mul",
    "div": "div",
    "floordiv": "div",
    "mod": "div",
    "pow": "div",
    "min": "max",
    "max": "max",
}
COUNTS = ("add", "mul", "div", "max", "call", "select", "mask", "cast", "integer")
"""Kinds of operations: float additions, multiplications, divisions, comparisons (with min and max), operations inside intrinsics,
selects on values, selects on positions (padding, tails), conversions, and integer and boolean arithmetic except on positions."""


def operation_counts(block: Block) -> dict[str, int]:
    """Operations of one instance of a block's body, by `COUNTS`."""
    counts = dict.fromkeys(COUNTS, 0)
    for group in operation_groups(block, kind_of).values():
        for kind, n in group.items():
            counts[kind] += n
    return counts


def kind_of(e: Expr) -> tuple[str, int] | None:
    """The kind of an operation, and how many it counts as; None for leaves and for conditions on indices."""
    if _is_position(e):
        return None
    if type(e) is Binary:
        kind = _BINARY.get(e.op) or ("max" if e.op in COMPARISONS else "integer")
        return (kind if dt.is_float(e.a.dtype) else "integer"), 1
    if type(e) is Call:
        return "call", intrinsic(e.name).flops
    if type(e) is Select:
        return ("mask" if _is_position(e.cond) else "select"), 1
    return ("cast", 1) if type(e) is Cast else None


def _is_position(e: Expr) -> bool:
    """Whether a condition is only on indices: lowering turns it into masks and loop bounds."""
    if type(e) is Binary and e.op in LOGIC:
        return _is_position(e.a) and _is_position(e.b)
    return _is_position(e.a) if type(e) is Not else type(e) is IsNegative
