"""Bound the expressions of a fused group: what a search inlines into one expression is to stay small.

An operator that reads its operand seven times (mish) makes seven copies of what is inlined there, so the size of a chain is exponential in
its length.  The sizes are those of the operators' own tensor expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.ir.node import Binding, Call, Operand
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expression_size import LEAF, Size, size_of
from tunesmith.ir.visit import walk_objects
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Reduction, Tensor

MOST = Size(256, 100)
"""Nodes and depth of an expression of a fused group at most.  A tile of a contraction has 32 vectors, for each of which the
expression is compiled."""


class FusedSize:
    """Sizes of groups of calls; the stages of each kind of call are found once."""

    def __init__(self) -> None:
        self._stages: dict[Any, tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]] = {}

    def fits(self, bindings: Sequence[Binding]) -> bool:
        """Whether all expressions of a group stay within `MOST`, when every map in it is inlined."""
        made: dict[Operand, Size] = {}
        for b in bindings:
            call = b.operation
            if not isinstance(call, Call):
                return False
            operands, results, stages = self._of(call)
            inlined: dict[Buffer, Size] = {t: made.get(a, LEAF) for t, a in zip(operands, call.args, strict=True)}
            for t in stages:
                value: Any = t.value
                size = size_of(value.value if isinstance(value, Reduction) else value, inlined)
                if size.nodes > MOST.nodes or size.depth > MOST.depth:
                    return False
                inlined[t] = LEAF if isinstance(value, Reduction) else size
            made.update(zip(b.results, [inlined.get(t, LEAF) for t in results], strict=True))
        return True

    def _of(self, call: Call) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(operands, results, stages in order) of a call."""
        types = tuple([(a.type.shape, a.type.dtype) for a in call.args])
        key = (call.operator, call.attrs, types)
        if key not in self._stages:
            operands = tuple([te.placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types)])
            results = GRAPH_OPERATORS.get(call.operator).apply(operands, call.attrs)
            self._stages[key] = operands, results, _stages(results)
        return self._stages[key]


def _stages(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The computed tensors, each after those it reads."""
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
        stack.extend([(n.buffer, False) for n in walk_objects(t.value) if type(n) is BufferLoad and isinstance(n.buffer, Tensor)])
    return tuple(done)
