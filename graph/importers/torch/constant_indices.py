"""Require dynamic extents that contain the constant indices by which an imported function gathers and scatters.

`compile` refuses constants that are out of range of a constant extent; for a dynamic extent each call has to be checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.sizes import relation
from tunesmith.graph.ir.node import Binding, Call, Constant, Operand, Value, expressions
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, Var, poly

BY_AXIS = ("take", "gather_elements", "index_put_rows", "scatter_elements")
"""Operators whose second operand has indices of the attribute `axis` of the first."""

BY_VECTOR = ("gather_nd", "scatter_nd")
"""Operators whose second operand has vectors of indices along its last axis."""


def constant_index_conditions(bindings: Sequence[Binding], sizes: frozenset[Var]) -> list[Expr]:
    """Conditions that all constant indices of dynamic axes are in [-extent, extent), for extents of these sizes."""
    made = {b.results[0]: b.operation for b in bindings if isinstance(b.operation, Call) and len(b.results) == 1}
    found: list[Expr] = []
    for operation in made.values():
        if operation.operator in (*BY_AXIS, *BY_VECTOR):
            for extent, least, most in _ranges(operation, made):
                if extent.const is None and extent.vars <= sizes:
                    found.append(relation("gt", extent, poly(most)))
                    found += [relation("ge", extent, poly(-least))] if least < 0 else []
    return found


def _ranges(operation: Call, made: Mapping[Value, Call]) -> Iterator[tuple[Poly, int, int]]:
    """The extent of each indexed axis, with the least and the greatest constant index."""
    x, index = operation.args[:2]
    if all(e.const is not None for e in x.type.shape):
        return
    values = _values(index, made)
    if values is None or not values.size:
        return
    if operation.operator in BY_AXIS:
        yield x.type.shape[operation.attr("axis")], int(values.min()), int(values.max())
    else:
        first = operation.keywords.get("batch_dims", 0)
        for d in range(values.shape[-1]):
            yield x.type.shape[first + d], int(values[..., d].min()), int(values[..., d].max())


def _values(operand: Operand, made: Mapping[Value, Call]) -> np.ndarray | None:
    """The elements of an operand that is computed from constants only; None for other operands."""
    if isinstance(operand, Constant):
        return operand.data
    operation = made.get(operand)
    if operation is None or any(p.const is None for _, a in operation.attrs for p in expressions(a)):
        return None
    values = [_values(a, made) for a in operation.args]
    if any(v is None for v in values):
        return None
    return np.asarray(GRAPH_OPERATORS.get(operation.operator).reference(*values, **_numbers(operation.keywords)))


def _numbers(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with constant index expressions as integers."""

    def number(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple([number(v) for v in value])
        return value.as_int() if isinstance(value, Poly) else value

    return {key: number(value) for key, value in attrs.items()}
