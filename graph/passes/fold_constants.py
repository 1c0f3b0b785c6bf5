"""Evaluate calls of operators on constants at compile time with the numpy references of the operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation, expressions
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import ScriptError

MAX_GROWTH = 1 << 16
"""Bytes by which a folded result may exceed its operands: a large mask computed from two numbers is cheaper to compute at its use."""


def fold_constants(mod: IRModule, *, keep: str = "") -> IRModule:
    """Replace calls of operators on constants by constants, unless the results exceed the operands by more than MAX_GROWTH bytes.

    Args:
        mod: the module.
        keep: an operator whose calls are kept.
    Raises:
        ScriptError: an index operand of a call is out of range.
    """
    return mod.update({name: _Fold(keep)(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Fold(Rewriter):
    def __init__(self, keep: str) -> None:
        super().__init__()
        self._keep = keep

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call) or not all(isinstance(a, Constant) for a in operation.args) or operation.operator == self._keep:
            return None
        if any(p.const is None for _, value in operation.attrs for p in expressions(value)):
            return None
        operator = GRAPH_OPERATORS.get(operation.operator)
        types = operator.infer([a.type for a in operation.args], operation.attrs)
        if not all(t.is_static for t in types):
            return None
        before = sum([a.type.nbytes for a in operation.args])
        if sum([t.nbytes for t in types]) > before + MAX_GROWTH:
            return None
        name = operation.args[0].name if operation.args else operation.operator
        with np.errstate(all="ignore"):  # compiled programs do not report floating-point errors either
            try:
                arrays = operator.evaluate([a.data for a in operation.args if isinstance(a, Constant)], operation.attrs)
            except IndexError as error:
                raise ScriptError(f"{operation.operator} of constants: {error}") from error
        folded = [Constant(name, a) for a in arrays]
        return folded if all(c.type == t for c, t in zip(folded, types, strict=True)) else None  # numpy has no bfloat16
