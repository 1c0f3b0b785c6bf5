"""Lower reductions over a thread loop to an exchange between threads, by warp shuffles or shared memory.

On targets with warp shuffles, each warp reduces in log2 steps, and several warps combine their results once in shared memory.  Other
targets reduce by a tree in shared memory: half of the threads add the values of the other half, and so on.  All threads get the result.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.identity_element import identity_element
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call, Const, Expr, IsNegative, conjunction, select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import THREAD_AXES, WARP
from tunesmith.ir.poly import Index, Poly, Var, floordiv, less_than, mod, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, For, If, Stmt, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError


@function_pass(requires="SCHEDULED", needed_by="code generators, which have no reductions over threads")
def lower_cross_thread_reduction(func: PrimFunc, target: Target) -> PrimFunc:
    """Lower reductions over threads, as described in the module docstring (source: TVM's LowerCrossThreadReduction).

    Raises:
        BuildError: the number of threads is not constant, or a reduction over threads has no form that threads can combine.
    """
    new_buffers: list[Buffer] = []

    def go(n: Any, around: tuple[For, ...]) -> Any:
        if type(n) is For and n.thread in THREAD_AXES:
            if type(n.body) is Block and any(
                it.kind == "R" and n.var in e.vars for it, e in zip(n.body.iters, n.body.bindings, strict=True)
            ):
                return _CrossThreadReduction(func.name, n, n.body, around, target, new_buffers).statement()
            around = (*around, n)
        if type(n) is Block:
            _check_only_block(func.name, n, around)
            return n
        return n.map_children(lambda k: go(k, around) if isinstance(k, Stmt) else k)

    body = go(func.body, ())
    return func if body is func.body else func.with_(body=body, allocs=(*func.allocs, *new_buffers))


def _check_only_block(name: str, b: Block, around: tuple[For, ...]) -> None:
    """Reject reductions over threads that share their loop with other blocks: all threads would update one element in a race."""
    for f in around:
        if any(it.kind == "R" and f.var in e.vars for it, e in zip(b.iters, b.bindings, strict=True)):
            raise BuildError(
                f"{name}: block {b.name} reduces over the loop {f.var} of {f.thread}, but is not the only block in it. Threads can combine "
                "a reduction only if their loop contains nothing else: move other blocks out of it"
            )


class _CrossThreadReduction:
    """One reduction `C[i] = C[i] op x` over the threads of a loop.

    Args:
        name: name of the function.
        loop: the thread loop.
        block: the reduction, the only block of the loop.
        around: enclosing loops of other thread axes: each of their iterations is a separate group of threads.
        target: the target.
        new_buffers: receives the new buffers.
    """

    def __init__(self, name: str, loop: For, block: Block, around: tuple[For, ...], target: Target, new_buffers: list[Buffer]) -> None:
        if loop.extent.const is None or any(f.extent.const is None for f in around):
            raise BuildError(f"{name}: block {block.name} is combined by {loop.extent} threads; the number must be constant")
        if any(f.thread == loop.thread for f in around):
            raise BuildError(
                f"{name}: block {block.name} is combined by the loop {loop.var} of {loop.thread}, which is inside another loop of "
                f"{loop.thread}. Bind one of them to another axis"
            )
        self.loop, self.block, self.around, self.new_buffers = loop, block, around, new_buffers
        self.threads = loop.extent.const
        update = reassociable_update(block)
        if update is None or block.init is None:
            raise BuildError(
                f"{name}: block {block.name} reduces over the loop {loop.var} of {loop.thread}, but is not `C[i] = C[i] op x` with an "
                "init. Decompose reductions over other loops only"
            )
        self.out, self.op, self.value = update.store, update.op, update.term
        self.dtype = self.out.buffer.dtype
        shuffles = target.base == "cuda" and loop.thread == THREAD_AXES[0] and dt.is_float(self.dtype) and dt.bits(self.dtype) >= 32
        whole = self.threads % WARP == 0 or (self.threads < WARP and self.threads & (self.threads - 1) == 0)
        self.by_shuffles = shuffles and whole

    def statement(self) -> Stmt:
        """The exchange and the store of the result."""
        if self.by_shuffles:
            return self._by_shuffles()
        return self._by_tree()

    def _each(self, make: Any) -> Stmt:
        """A loop over all threads, whose body is `make` of the thread index."""
        var = Var(self.loop.var.name)
        return For(var, self.loop.extent, make(poly(var)), "thread", self.loop.thread)

    def _value(self, thread: Poly) -> Expr:
        """The contribution of a thread: the identity element where a guard of the block fails."""
        at = {self.loop.var: thread}
        values = {it.var: substitute(e, at) for it, e in zip(self.block.iters, self.block.bindings, strict=True)}
        value = substitute_program(self.value, values)
        guards = tuple([less_than(substitute(p, at), 0) for p in self.block.predicate])
        return select(conjunction(guards), value, identity_element(self.op, self.dtype)) if guards else value

    def _result(self, total: Any) -> Stmt:
        """Store the result to the target of the block: every thread to local memory, only the first thread to other memory."""
        init: Any = self.block.init

        def make(thread: Poly) -> Stmt:
            at = {self.loop.var: poly(0)}
            values = {it.var: substitute(e, at) for it, e in zip(self.block.iters, self.block.bindings, strict=True)}
            start = substitute_program(init.value, values)
            value = total(thread) if _is_identity(start, self.op) else Binary(self.op, start, total(thread))
            indices = tuple([substitute(i, values) for i in self.out.indices])
            out: Stmt = BufferStore(self.out.buffer, indices, value)
            if self.out.buffer.scope != "local":
                out = If(IsNegative(thread - 1), out)
            for p in reversed(self.block.predicate):
                out = If(less_than(substitute(p, at), 0), out)
            return out

        return self._each(make)

    def _buffer(self, name: str, shape: tuple[Index, ...], scope: str) -> Buffer:
        b = Buffer(f"{self.out.buffer.name}_{name}", shape, self.dtype, scope)
        self.new_buffers.append(b)
        return b

    def _group(self) -> tuple[Poly, ...]:
        return tuple([poly(f.var) for f in self.around])

    def _extents(self) -> tuple[Poly, ...]:
        return tuple([f.extent for f in self.around])

    def _by_shuffles(self) -> Stmt:
        own = self._buffer("part", (self.threads,), "local")
        steps = [self._each(lambda t: store(own, (t,), self._value(t)))]
        distance = min(self.threads, WARP) // 2
        while distance:
            name = f"shuffle_xor_{distance}"
            steps.append(self._each(lambda t, name=name: store(own, (t,), self._combine(own[t], Call(name, (own[t],), self.dtype)))))
            distance //= 2
        warps = self.threads // WARP
        if warps > 1:
            exchange = self._buffer("warps", (*self._extents(), warps), "shared")
            group = self._group()
            steps.append(self._each(lambda t: If(IsNegative(mod(t, WARP) - 1), store(exchange, (*group, floordiv(t, WARP)), own[t]))))
            steps.append(self._each(lambda t: store(own, (t,), BufferLoad(exchange, (*group, poly(0))))))
            w = Var("w")

            def gather(t: Poly) -> Stmt:
                return For(
                    w, poly(warps - 1), store(own, (t,), self._combine(own[t], BufferLoad(exchange, (*group, poly(w) + 1)))), "unrolled"
                )

            steps.append(self._each(gather))
        steps.append(self._result(lambda t: own[t]))
        return seq(steps)

    def _combine(self, a: Expr, b: Expr) -> Expr:
        return Binary(self.op, a, b)

    def _by_tree(self) -> Stmt:
        exchange = self._buffer("threads", (*self._extents(), self.threads), "shared")
        group = self._group()
        steps = [self._each(lambda t: store(exchange, (*group, t), self._value(t)))]
        left = self.threads
        while left > 1:
            half = -(-left // 2)

            def fold(t: Poly, half: int = half, left: int = left) -> Stmt:
                a, b = BufferLoad(exchange, (*group, t)), BufferLoad(exchange, (*group, t + half))
                return If(IsNegative(t - (left - half)), store(exchange, (*group, t), self._combine(a, b)))

            steps.append(self._each(fold))
            left = half
        steps.append(self._result(lambda t: BufferLoad(exchange, (*group, poly(0)))))
        return seq(steps)


def _is_identity(start: Expr, op: str) -> bool:
    """Whether `start` is the identity element of `op`."""
    if type(start) is not Const:
        return False
    return start.value == identity_element(op, start.dtype).value
