"""unify_thread_bindings: the threads of a kernel stand around all of its work, instead of around the parts that are shared among them.

A root statement is a kernel: loops of blocks, and inside them any number of loops of threads, beside and inside each other, each of which
shares its iterations among the same threads.  Afterwards there is one loop of each thread axis, directly inside the loops of blocks.
What is under no loop of an axis is done by all threads along it, as they all need it for themselves, except that only the first of them
stores to memory which they have in common.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, COMMON_SCOPES, THREAD_AXES
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, walk
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError


@function_pass(needs="OPAQUE")
def unify_thread_bindings(func: PrimFunc, target: Target) -> PrimFunc:
    """Gather the loops of threads of each kernel; see the module's text.

    Raises:
        BuildError: a loop of blocks stands inside another loop, loops of one axis have different extents, or a loop is one of a CPU.
    """
    return map_kernels(func, lambda k: _kernel(func.name, k))


def _kernel(name: str, n: Stmt) -> Stmt:
    if type(n) is For and n.thread in BLOCK_AXES:
        body = _kernel(name, n.body)
        return n if body is n.body else n.with_(body=body)
    extents: dict[str, Poly] = {}
    for x in walk(n):
        if type(x) is not For:
            continue
        if x.thread in BLOCK_AXES:
            raise BuildError(f"{name}: the loop {x.var} of {x.thread} stands inside another statement. Loops of blocks must be outermost")
        if x.kind == "parallel":
            raise BuildError(f"{name}: the loop {x.var} is parallel, which is for CPUs. Bind it to blocks or threads of a GPU")
        if x.thread in THREAD_AXES:
            known = extents.setdefault(x.thread, x.extent)
            if known != x.extent or known.const is None:
                raise BuildError(f"{name}: loops of {x.thread} have the extents {known} and {x.extent}; all must be the same number")
    gathered = list(_around(n))
    if not extents or sorted(f.thread or "" for f in gathered) == sorted(extents):
        return n
    var = {tag: Var(tag.replace("Idx.", "")) for tag in extents}
    body = _shared(name, n, {tag: poly(v) for tag, v in var.items()}, extents, frozenset(), frozenset())
    for tag in THREAD_AXES:
        if tag in extents:
            body = For(var[tag], extents[tag], body, "thread", tag)
    return body


def _around(n: Stmt) -> Any:
    """The loops of threads that already stand around everything, if no others are inside."""
    found = []
    while type(n) is For and n.thread in THREAD_AXES:
        found.append(n)
        n = n.body
    return [] if any(type(x) is For and x.thread in THREAD_AXES for x in walk(n)) else found


def _shared(name: str, n: Any, threads: dict[str, Poly], extents: dict[str, Poly], around: frozenset[str], deciding: frozenset[Var]) -> Any:
    """`n` as each thread runs it; `around` are the axes whose loops stand around it, `deciding` the variables of the branches."""
    if type(n) is For and n.thread in THREAD_AXES:
        mine = threads[n.thread].vars
        if n.thread in around and not mine.isdisjoint(deciding | _used(n.body)):
            raise BuildError(
                f"{name}: the loop {n.var} of {n.thread} stands in another loop of {n.thread}, whose threads share its iterations, but "
                "what is done there depends on the thread outside. Only what is the same for all threads can be shared: bind one of them "
                "to another axis"
            )
        body = substitute(n.body, {n.var: threads[n.thread]})
        return _shared(name, body, threads, extents, around | {n.thread}, deciding)
    missing = [tag for tag in THREAD_AXES if tag in extents and tag not in around and extents[tag] != 1]
    if type(n) is BufferStore and n.buffer.scope in COMMON_SCOPES and missing:
        out: Stmt = n
        for tag in missing:
            out = If(IsNegative(threads[tag] - 1), out)
        return out
    if type(n) is If:
        deciding = deciding | _used(n.cond)
    if isinstance(n, (For, If, Seq, Allocate)):
        return n.map_children(lambda k: _shared(name, k, threads, extents, around, deciding) if isinstance(k, Stmt) else k)
    return n


def _used(n: Any) -> frozenset[Var]:
    """All variables in a statement or an expression."""
    return frozenset([v for x in walk(n) if type(x) is Poly for v in x.vars])
