"""Propose one function for attention whose scores exceed the caches (source: FlashAttention, Dao et al., 2022).

One function computes some rows of the scores, their softmax and their product with the values, before it computes the next rows, so that
the scores stay in the caches.  Unlike FlashAttention, whole rows are kept, and no sum is corrected later.  Whether one function is faster
than three depends on the sizes and on the machine: the module contains both, and `graph.tuning.choose_parts` chooses by the records.
"""

from __future__ import annotations

from tunesmith.graph.ir.node import Binding, Call, Region
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.graph.operators.nn import terms_of
from tunesmith.graph.passes.propose import Chain, Uses, propose
from tunesmith.ir.function import IRModule

LEAST_BYTES = 4 << 20
"""Bytes of scores from which one function is proposed; fewer stay in L2 caches.  Twelve heads have 7 MB at 384 tokens."""


def propose_attention(mod: IRModule) -> IRModule:
    """Propose one function for the calls softmax(q k) v.

    Between the products are a softmax of the last axis and elementwise operators, and nothing else uses their results.
    """
    return propose(mod, "fused_attention", _chains)


def _chains(region: Region, uses: Uses) -> list[Chain]:
    return [chain for b in region.bindings if (chain := _chain(b, uses)) is not None]


def _chain(last: Binding, uses: Uses) -> Chain | None:
    """The bindings from the product of queries and keys to the product with the values, which is the last."""
    call = last.operation
    if not isinstance(call, Call) or not _sums_last_axis(call):
        return None
    scores = call.args[0].type
    if not scores.is_static or scores.nbytes < LEAST_BYTES:
        return None
    chain, here, has_softmax = [last], call.args[0], False
    while here in uses.makers and uses.counts[here] == 1:
        b = uses.makers[here]
        op = b.operation
        if not isinstance(op, Call) or b.results[0].type.shape != scores.shape:
            return None
        chain.append(b)
        if op.operator in ("matmul", "einsum"):
            bindings = tuple(chain[::-1])
            return Chain(bindings, bindings) if has_softmax else None
        if op.operator == "softmax" and op.attr("axis") % len(scores.shape) == len(scores.shape) - 1:
            has_softmax = True
            here = op.args[0]
        elif GRAPH_OPERATORS.get(op.operator).kind in (ELEMENTWISE, BROADCAST):
            computed = [a for a in op.args if a in uses.makers and a.type.shape == scores.shape]
            if len(computed) != 1:
                return None
            here = computed[0]
        else:
            return None
    return None


def _sums_last_axis(call: Call) -> bool:
    """Whether the call is a product that sums over the last axis of its first operand."""
    if call.operator == "matmul":
        return len(call.args[0].type.shape) >= 2
    if call.operator != "einsum":
        return False
    first, _, result = terms_of(str(call.attr("equation")))
    return bool(first) and first[-1] not in result
