"""Lower blocks to plain statements: substitute bindings, turn predicates into ifs, run inits at the first step."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Call, Expr, conjunction
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.poly import Poly, Var, less_than
from tunesmith.ir.stmt import Block, Evaluate, If, Stmt, annotation, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="SCHEDULED", provides="OPAQUE")
def lower_blocks(func: PrimFunc, target: Target) -> PrimFunc:
    """Lower `with block("C"): vi = bind(e); where(p); init: I; body` to `if p: { if reduction starts: I }; body` with e for vi."""

    def on_block(b: Block, recurse: Any) -> Stmt:
        values: dict[Var, Poly] = {it.var: e for it, e in zip(b.iters, b.bindings, strict=True)}
        body = _prefetched(b, substitute(recurse(b.body), values), func)
        if b.init is not None:
            first = tuple([less_than(e, 1) for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"])
            init = substitute(recurse(b.init), values)
            body = seq([If(conjunction(first), init) if first else init, body])
        return guarded(tuple([less_than(e, 0) for e in b.predicate]), body)

    return with_body(func, transform(func.body, {Block: on_block}))


def _prefetched(b: Block, body: Stmt, func: PrimFunc) -> Stmt:
    """Add a prefetch before every load of a parameter, at the distance in elements of the annotation `prefetch`.

    Loads with an indirect index are left out: their address is not available before the statement.
    """
    distance = annotation(b, "prefetch")
    if not isinstance(distance, Poly) or distance.const == 0:
        return body
    loads = [x for x in walk(body) if type(x) is BufferLoad and x.buffer in func.params and x.indices]
    known = [x for x in loads if not any(isinstance(v, IndirectVar) for i in x.indices for v in i.vars)]
    ahead = [x.with_(indices=(*x.indices[:-1], x.indices[-1] + distance)) for x in known]
    return seq([*[Evaluate(Call("prefetch", (x,), x.dtype)) for x in ahead], body])


def guarded(conds: tuple[Expr, ...], body: Stmt) -> Stmt:
    """`body` under all of `conds`, one `If` each, so that every guard can be peeled separately."""
    for c in reversed(conds):
        body = If(c, body)
    return body
