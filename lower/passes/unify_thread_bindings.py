"""Hoist each thread axis to one loop that encloses the kernel body.

A kernel is a root statement: block loops that contain any number of thread loops, in sequence or nested, each of which distributes its
iterations over the same threads.  Afterwards there is one loop per thread axis, directly inside the block loops.  Statements outside all
loops of an axis run in every thread along it, except that only the first thread stores to shared or global memory.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, COMMON_SCOPES, THREAD_AXES
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt, While
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, walk
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError


@function_pass(requires="OPAQUE", needed_by="kernels, which have one loop for each thread axis")
def unify_thread_bindings(func: PrimFunc, target: Target) -> PrimFunc:
    """Unify the thread loops of each kernel.

    Raises:
        BuildError: a block loop is inside another statement, loops of one axis have different or non-constant extents, a loop is
            parallel, or nested loops of one axis depend on each other.
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
            raise BuildError(f"{name}: the loop {x.var} of {x.thread} is inside another statement. Block loops must be outermost")
        if x.kind == "parallel":
            raise BuildError(f"{name}: the loop {x.var} is parallel, which only CPUs support. Bind it to blocks or threads of a GPU")
        if x.thread in THREAD_AXES:
            known = extents.setdefault(x.thread, x.extent)
            if known != x.extent or known.const is None:
                raise BuildError(f"{name}: loops of {x.thread} have the extents {known} and {x.extent}; all must be the same constant")
    enclosing = list(_enclosing_threads(n))
    if not extents or sorted(f.thread or "" for f in enclosing) == sorted(extents):
        return n
    var = {tag: Var(tag.replace("Idx.", "")) for tag in extents}
    body = _per_thread(name, n, {tag: poly(v) for tag, v in var.items()}, extents, frozenset(), frozenset())
    for tag in THREAD_AXES:
        if tag in extents:
            body = For(var[tag], extents[tag], body, "thread", tag)
    return body


def _enclosing_threads(n: Stmt) -> Any:
    """The thread loops that already enclose the whole statement; empty if it contains other thread loops."""
    found = []
    while type(n) is For and n.thread in THREAD_AXES:
        found.append(n)
        n = n.body
    return [] if any(type(x) is For and x.thread in THREAD_AXES for x in walk(n)) else found


def _per_thread(
    name: str, n: Any, threads: dict[str, Poly], extents: dict[str, Poly], around: frozenset[str], branch_vars: frozenset[Var]
) -> Any:
    """The statement as each thread runs it.

    Args:
        name: the function, for messages.
        n: the statement.
        threads: the unified variable of each axis.
        extents: the extent of each axis.
        around: axes whose loops enclose the statement.
        branch_vars: variables in the conditions of enclosing branches.
    """
    if type(n) is For and n.thread in THREAD_AXES:
        thread_vars = threads[n.thread].vars
        if n.thread in around and not thread_vars.isdisjoint(branch_vars | _used(n.body)):
            raise BuildError(
                f"{name}: the loop {n.var} of {n.thread} is inside another loop of {n.thread}, whose threads execute its iterations, but "
                "its body depends on the outer thread. Only work that is the same for all threads can be distributed: bind one of the "
                "loops to another axis"
            )
        body = substitute(n.body, {n.var: threads[n.thread]})
        return _per_thread(name, body, threads, extents, around | {n.thread}, branch_vars)
    missing = [tag for tag in THREAD_AXES if tag in extents and tag not in around and extents[tag] != 1]
    if type(n) is BufferStore and n.buffer.scope in COMMON_SCOPES and missing:
        out: Stmt = n
        for tag in missing:
            out = If(IsNegative(threads[tag] - 1), out)
        return out
    if type(n) is While and missing and any(type(x) is BufferStore and x.buffer.scope in COMMON_SCOPES for x in walk(n.body)):
        raise BuildError(
            f"{name}: a while loop stores to memory that threads share, outside of the loops of {missing[0]}: only one thread may run it. "
            f"Bind the loops of its block to {missing[0]}"
        )
    if type(n) is If or type(n) is While:
        branch_vars = branch_vars | _used(n.cond)
    if isinstance(n, (For, If, While, Seq, Allocate)):
        return n.map_children(lambda k: _per_thread(name, k, threads, extents, around, branch_vars) if isinstance(k, Stmt) else k)
    return n


def _used(n: Any) -> frozenset[Var]:
    """All variables of a statement or an expression."""
    return frozenset([v for x in walk(n) if type(x) is Poly for v in x.vars])
