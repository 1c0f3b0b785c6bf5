"""Propose one function for attention whose scores exceed the caches (source: FlashAttention, Dao et al., 2022).

One function computes some rows of the scores, their softmax and their product with the values, before it computes the next rows, so that
the scores stay in the caches.  Unlike FlashAttention, whole rows are kept, and no sum is corrected later.  Whether one function is faster
than three depends on the sizes and on the machine: the module contains both, and `graph.tuning.choose_parts` chooses by the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PARTS_OF, PRIMITIVE, Binding, Call, Operand, Region, used, with_branches
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.graph.ir.outline import Outlined
from tunesmith.graph.operators.nn import terms_of
from tunesmith.graph.passes.fuse_operators import is_literal
from tunesmith.graph.passes.fused_size import FusedSize
from tunesmith.ir.function import IRModule

LEAST_BYTES = 4 << 20
"""Bytes of scores from which one function is proposed; fewer stay in L2 caches.  Twelve heads have 7 MB at 384 tokens."""


def propose_attention(mod: IRModule) -> IRModule:
    """Move the calls softmax(q k) v into one primitive function each, and add a graph function with the attribute `parts_of` that contains
    the same calls, to be fused and lowered one by one.

    Between the products are a softmax of the last axis and elementwise operators, and nothing else uses their results.
    """
    made = Outlined(mod)
    functions = {name: _function(f, made) for name, f in mod.items() if isinstance(f, GraphFunc) and _is_composite(f)}
    parts = {made.fresh(f"{name}_parts"): f for name, f in made.functions.items()}
    alternatives = {name: f.with_(name=name, attrs=((PARTS_OF, f.name),)) for name, f in parts.items()}
    return mod.update({**functions, **made.functions, **alternatives})


def _is_composite(func: GraphFunc) -> bool:
    """Whether operators of the function may be moved: it is not lowered as a whole, and contains no parts of another one."""
    return not func.is_primitive and func.codegen is None and func.attr(PARTS_OF) is None


def _function(func: GraphFunc, made: Outlined) -> GraphFunc:
    body = _region(func.body, made)
    return func if body is func.body else func.with_(body=body)


def _region(region: Region, made: Outlined) -> Region:
    uses = Counter([o for b in region.bindings for o in used(b.operation)] + list(region.results))
    makers: dict[Operand, Binding] = {v: b for b in region.bindings for v in b.results}
    size = FusedSize()
    moved: set[Binding] = set()
    out: dict[Binding, Binding] = {}
    for b in region.bindings:
        chain = _chain(b, makers, uses)
        if chain and size.fits(chain):
            moved.update(chain[:-1])
            out[b] = made.call(chain, "fused_attention", (PRIMITIVE, "1"), is_literal)
        else:
            out[b] = with_branches(b, lambda r: _region(r, made))
    if all(new is old for old, new in out.items()):
        return region
    return Region(tuple([new for old, new in out.items() if old not in moved]), region.results)


def _chain(last: Binding, makers: Mapping[Operand, Binding], uses: Mapping[Operand, int]) -> list[Binding]:
    """The bindings from the product of queries and keys to the product with the values, which is the last; empty if there are none."""
    call = last.operation
    if not isinstance(call, Call) or not _sums_last_axis(call):
        return []
    scores = call.args[0].type
    if not scores.is_static or scores.nbytes < LEAST_BYTES:
        return []
    chain, here, has_softmax = [last], call.args[0], False
    while here in makers and uses[here] == 1:
        b = makers[here]
        op = b.operation
        if not isinstance(op, Call) or b.results[0].type.shape != scores.shape:
            return []
        chain.append(b)
        if op.operator in ("matmul", "einsum"):
            return chain[::-1] if has_softmax else []
        if op.operator == "softmax" and op.attr("axis") % len(scores.shape) == len(scores.shape) - 1:
            has_softmax = True
            here = op.args[0]
        elif GRAPH_OPERATORS.get(op.operator).kind in (ELEMENTWISE, BROADCAST):
            computed = [a for a in op.args if a in makers and a.type.shape == scores.shape]
            if len(computed) != 1:
                return []
            here = computed[0]
        else:
            return []
    return []


def _sums_last_axis(call: Call) -> bool:
    """Whether the call is a product that sums over the last axis of its first operand."""
    if call.operator == "matmul":
        return len(call.args[0].type.shape) >= 2
    if call.operator != "einsum":
        return False
    first, _, result = terms_of(str(call.attr("equation")))
    return bool(first) and first[-1] not in result
