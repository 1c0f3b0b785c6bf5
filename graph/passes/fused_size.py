"""Bound the size of the expressions of a fused group after inlining.

Inlining into an operator that reads its operand seven times (mish) makes seven copies of the inlined expression, so the expression size of
a chain is exponential in its length.  Sizes are computed from the tensor expressions of the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.ir.node import Binding, Call, Operand
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expression_size import LEAF, ExpressionSize, size_of
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor import Tensor

MAX_SIZE = ExpressionSize(256, 100)
"""Maximum nodes and depth of an expression of a fused group.  A contraction tile has 32 vectors, and the expression is compiled for
each of them."""


class FusedSize:
    """Compute expression sizes of groups of calls; the stages of each kind of call are cached."""

    def __init__(self) -> None:
        self._stages: dict[Any, tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]] = {}

    def fits(self, bindings: Sequence[Binding]) -> bool:
        """Whether all expressions of a group are within `MAX_SIZE` if every map is inlined."""
        made: dict[Operand, ExpressionSize] = {}
        for b in bindings:
            call = b.operation
            if not isinstance(call, Call):
                return False
            operands, results, stages = self._of(call)
            inlined: dict[Buffer, ExpressionSize] = {t: made.get(a, LEAF) for t, a in zip(operands, call.args, strict=True)}
            for t in stages:
                sizes = [size_of(f, inlined) for f in t.formulas]
                if any(size.nodes > MAX_SIZE.nodes or size.depth > MAX_SIZE.depth for size in sizes):
                    return False
                inlined[t] = LEAF if t.is_ordered else sizes[0]
            made.update(zip(b.results, [inlined.get(t, LEAF) for t in results], strict=True))
        return True

    def _of(self, call: Call) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The operands, results and stages, in order, of a call."""
        types = tuple([(a.type.shape, a.type.dtype) for a in call.args])
        key = (call.operator, call.attrs, types)
        if key not in self._stages:
            operands = tuple([te.placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types)])
            results = GRAPH_OPERATORS.get(call.operator).apply(operands, call.attrs)
            self._stages[key] = operands, results, _stages(results)
        return self._stages[key]


def _stages(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The computed tensors in topological order."""
    done: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(results)]
    while stack:
        t, ready = stack.pop()
        if t.value is None or t in done:
            continue
        if ready:
            done[t] = None
            continue
        stack.append((t, True))
        stack.extend([(x, False) for x in t.sources])
    return tuple(done)
