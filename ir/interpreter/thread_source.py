"""Generate Python source for the statements of kernels, vectorized over the threads of a block; `thread_values` generates values.

A thread loop sets its variable to the coordinates of the threads and runs its body once.  A divergent If or loop runs its body with a mask
of the active threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import AXES, BLOCK_AXES, PRIVATE_SCOPES, SHARED_SCOPES, THREAD_AXES, VIRTUAL_AXES
from tunesmith.ir.interpreter.memory import InterpretError, poisoned
from tunesmith.ir.interpreter.thread_memory import MAX_THREADS, SOURCE, Clock, CommonMemory, PrivateMemory
from tunesmith.ir.interpreter.thread_values import MemoryNames, ThreadValues, tuple_of
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ZERO, Var, evaluate
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, Evaluate, For, If, Stmt, While
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


class ThreadCompiler(ThreadValues):
    """Generates a kernel of `func` as the function `main(x, y, z)` of the block coordinates.

    Args:
        func: the function that contains the kernel.
        values: values of Params and scalar parameters.
        check_races: whether accesses are tracked.
        clock: counter of epochs for the whole call.
        common: memory of parameters and global allocations.
        kernel: the statement.
    """

    def __init__(
        self,
        func: PrimFunc,
        values: Mapping[Var, int],
        check_races: bool,
        clock: Clock,
        common: Mapping[Buffer, CommonMemory],
        kernel: Stmt,
    ) -> None:
        extents = _thread_extents(func, values, kernel)
        self.grid = _three([extents.get(t, 1) for t in BLOCK_AXES])
        self.block_shape = _three([extents.get(t, 1) for t in THREAD_AXES])
        x, y, z = self.block_shape
        super().__init__(func, values, check_races, clock, x * y * z)
        if self.threads > MAX_THREADS:
            raise InterpretError(f"function {func.name}: a block of {self.threads} threads; this interpreter runs at most {MAX_THREADS}")
        self.kernel = kernel
        self.fresh_in_block: list[PrivateMemory | CommonMemory] = []
        """Memory that is reset at the start of each block."""
        linear = np.arange(self.threads, dtype=np.int64)
        axes = (linear % max(x, 1), linear // max(x, 1) % max(y, 1), linear // max(x * y, 1))
        self.axes = dict(zip(THREAD_AXES, axes, strict=True))
        self.written = written_buffers(kernel)
        self.alone = self.threads * math.prod(self.grid) == 1
        for b, memory in common.items():
            self._hold(b, memory, [str(n) for n in memory.shape])
        for b in func.allocs:
            if b not in common:
                shape = tuple([self.number(s, f"the shape of {b.name}") for s in b.shape])
                self._new_memory(b, shape, [str(n) for n in shape])

    # ---- threads and memory

    def _new_memory(self, b: Buffer, shape: tuple[int, ...], dims: list[str]) -> PrivateMemory | CommonMemory:
        memory: PrivateMemory | CommonMemory
        if b.scope in PRIVATE_SCOPES:
            memory = PrivateMemory(b, shape, self.clock, self.threads)
        else:
            array = poisoned(shape, dt.to_numpy(b.dtype))
            memory = CommonMemory(b, array, self.clock, b.scope in SHARED_SCOPES, self.check_races)
        if b.scope != "global":
            self.fresh_in_block.append(memory)
        self._hold(b, memory, dims)
        return memory

    def _hold(self, b: Buffer, memory: PrivateMemory | CommonMemory, dims: list[str]) -> MemoryNames:
        private = isinstance(memory, PrivateMemory)
        tracked = self.check_races and (b.scope != "global" or (b in self.written and not self.alone))
        strides = [str(n) for n in _strides(memory.shape)]
        written = self.hoist(memory.written) if isinstance(memory, PrivateMemory) else ""
        self.held[b] = MemoryNames(self.hoist(memory), self.hoist(memory.data), written, dims, strides, private, tracked)
        return self.held[b]

    def compile(self) -> Any:
        self.locals = ["block_x", "block_y", "block_z"]
        self.stmt(self.kernel)
        source = "\n".join([*self.done, "def main(block_x, block_y, block_z):", *self.lines])
        return compile(source, f"{SOURCE}{self.func.name}>", "exec")

    def guarded(self, conditions: Sequence[str]) -> None:
        """Restrict the following code to where all conditions hold: by an if for uniform conditions, by a mask for varying ones."""
        plain = [c for c in conditions if not self.is_varying(c)]
        varying = [c for c in conditions if self.is_varying(c)]
        if plain:
            self.line(f"if {' and '.join(plain)}:")
            self.indent += 1
        if varying:
            self.enter(self.both(" & ".join([f"({c})" for c in varying]), self.mask))

    def enter(self, mask: str) -> None:
        """Restrict the following code to the threads of a mask; it is skipped if the mask is empty."""
        self.locals.append(mask)
        self.mask = mask
        self.line(f"if {mask}.any():")
        self.indent += 1

    # ---- statements

    def stmt(self, s: Stmt) -> None:
        outer = self.statement
        self.statement = self.clock.number(s)
        super().stmt(s)
        self.statement = outer

    def _for(self, s: For) -> None:
        mark, mask, indent = len(self.locals), self.mask, self.indent
        self.path.append(s.var.name)
        if s.kind == "thread" and s.thread not in VIRTUAL_AXES:
            self._bind_thread(s)
            self.stmt(s.body)
        else:
            extent = self.index(s.extent)
            varying = self.is_varying(extent)
            if varying:
                limit = self.temp(extent)
                self.locals.append(limit)
                extent = f"int({limit}{f'[{mask}]' if mask else ''}.max())"
            var = self.vars[s.var] = self.local(s.var.name)
            self.line(f"for {var} in range({extent}):")
            self.indent += 1
            self.loops += 1
            if varying:
                self.mask = self.both(f"{var} < {limit}", mask)
                self.locals.append(self.mask)
            self.stmt(s.body)
            self.loops -= 1
        self.mask, self.indent = mask, indent
        del self.locals[mark:], self.vars[s.var]
        self.varying_vars.discard(s.var)
        self.path.pop()

    def _bind_thread(self, s: For) -> None:
        """Set the loop variable to the coordinate of the block or of each thread."""
        if s.thread in BLOCK_AXES:
            self.vars[s.var] = f"block_{(s.thread or '')[-1]}"
            return
        axis = self.axes[s.thread or ""]
        self.vars[s.var] = self._array(axis)
        if axis.max() == 0:
            self.bound[s.var] = ZERO
        else:
            self.coords[s.var] = axis
            self.varying_vars.add(s.var)

    def _block(self, s: Block) -> None:
        if len(s.iters) != len(s.bindings):
            raise InterpretError(
                f"function {self.func.name}: block {s.name} has {len(s.iters)} iteration variables and {len(s.bindings)} bindings"
            )
        self.path.append(s.name)
        indent, mark, mask = self.indent, len(self.locals), self.mask
        if s.predicate:
            self.guarded([f"{self.index(p)} < 0" for p in s.predicate])
        indices = [self.named(b) for b in s.bindings]
        extents = [self.named(i.extent) for i in s.iters]
        if indices:
            limits = [self.text(e) for e in extents]
            # A varying extent is compared per thread by `binding_threads`.
            conditions = ["False" if self.is_varying(e) else self.within(b, f"({e})") for b, e in zip(indices, limits, strict=True)]
            values = tuple_of([self.text(b) for b in indices])
            self.line(f"if not ({' and '.join(conditions)}): {self.point()}.binding_threads({self.mask}, {values}, {tuple_of(limits)})")
        for i, b in zip(s.iters, s.bindings, strict=True):
            self.bound[i.var] = substitute_poly(b, self.bound)
        if s.init is not None:
            inner, narrow, names = self.indent, self.mask, len(self.locals)
            self.guarded([f"{self.text(b)} == 0" for i, b in zip(s.iters, indices, strict=True) if i.kind == "R"])
            self.stmt(s.init)
            self.indent, self.mask = inner, narrow
            del self.locals[names:]
        self.stmt(s.body)
        self.indent, self.mask = indent, mask
        del self.locals[mark:]
        for i in s.iters:
            del self.bound[i.var]
        self.path.pop()

    def _if(self, s: If) -> None:
        indent, mark, mask = self.indent, len(self.locals), self.mask
        condition = self.condition(s.cond)
        if not self.is_varying(condition):
            super()._if(s)
            return
        cond = self.temp(condition)
        sides = [(self.both(cond, mask), s.then)]
        if s.orelse is not None:
            sides.append((self.both(f"~{cond}", mask), s.orelse))
            self.locals.append(sides[1][0])
        for taken, body in sides:
            self.enter(taken)
            self.stmt(body)
            self.indent, self.mask = indent, mask
        del self.locals[mark:]

    def _while(self, s: While) -> None:
        """Repeat the body for the threads whose condition holds, until it holds for none."""
        indent, mark, mask = self.indent, len(self.locals), self.mask
        self.mask = self.local("running")
        self.varying.add(self.mask)
        self.line(f"{self.mask} = {self.zero} == 0{f' & {mask}' if mask else ''}")
        self.line("while True:")
        self.indent += 1
        self.loops += 1
        self.line(f"{self.mask} = {self.mask} & ({self.condition(s.cond)})")
        self.line(f"if not {self.mask}.any(): break")
        self.stmt(s.body)
        self.loops -= 1
        self.indent, self.mask = indent, mask
        del self.locals[mark:]

    def _allocate(self, s: Allocate) -> None:
        b, mark = s.buffer, len(self.locals)
        if all(v in self.values for e in b.shape for v in e.vars):
            shape = tuple([self.number(e, f"the shape of {b.name}") for e in b.shape])
            self._new_memory(b, shape, [str(n) for n in shape])
            if b.scope not in SHARED_SCOPES:
                self.line(f"{self.held[b].memory}.reset()")
        else:
            self._allocate_at_run_time(b)
        self.stmt(s.body)
        del self.locals[mark:], self.held[b]

    def _allocate_at_run_time(self, b: Buffer) -> None:
        """Allocate a buffer whose shape depends on loop variables."""
        dims = [self.index(e) for e in b.shape]
        if b.scope in SHARED_SCOPES or self.is_varying(*dims):
            raise InterpretError(
                f"function {self.func.name}: the shape of {b.name} ({b.scope}), {tuple(b.shape)}, must be numbers"
                f"{'' if b.scope in SHARED_SCOPES else ' that are the same for all threads'}"
            )
        memory = self._new_memory(b, (0,) * len(dims), dims)
        held = self.held[b]
        names = [self.local("dim") for _ in dims]
        for name, dim in zip(names, dims, strict=True):
            self.line(f"{name} = {dim}")
        data, strides = self.local("data"), ["1"]
        self.line(f"{held.memory}.resize({tuple_of(names)})")
        self.line(f"{data} = {held.memory}.data")
        written = ""
        if isinstance(memory, PrivateMemory):
            written = self.local("written")
            self.line(f"{written} = {held.memory}.written")
        for name in reversed(names[1:]):
            stride = self.local("stride")
            self.line(f"{stride} = {name} * {strides[0]}")
            strides.insert(0, stride)
        self.held[b] = held._replace(data=data, written=written, dims=names, strides=strides)

    def _bind_index(self, s: BindIndex) -> None:
        mark = len(self.locals)
        name = self.local(s.var.name)
        value, extent = self.value(s.value, None), self.index(s.extent)
        self.line(f"{name} = {self.point()}.indirect_indices({value}, {extent}, {self.masks(None).threads})")
        if value in self.varying:
            self.varying.add(name)
            self.varying_vars.add(s.var)
        self.vars[s.var] = name
        self.stmt(s.body)
        self.varying_vars.discard(s.var)
        self.varying.discard(name)
        del self.locals[mark:], self.vars[s.var]

    def _evaluate(self, s: Evaluate) -> None:
        self.line("pass")
        if type(s.value) is Call and s.value.name == "barrier":
            if self.mask is not None:
                self.line(f"{self.point()}.together('a barrier', {self.mask})")
            self.line("clock.barrier()")
        elif not (type(s.value) is Call and intrinsic(s.value.name).effect):
            self.value(s.value, None)

    def _store(self, s: BufferStore) -> None:
        dtype = s.value.dtype
        if dt.element(dtype) != s.buffer.dtype:
            raise InterpretError(f"function {self.func.name}: a value of {dtype} is stored to {s.buffer!r}")
        value = self.value(s.value, None)
        held = self.holding(s)
        if dt.lanes(dtype) > 1:
            cells, taking = self.vector_cells(s, dt.lanes(dtype), None, "store to", True)
            self._put(held, self.point(s.buffer), cells, taking, value)
            return
        point, cells = self.cells(s, None, "store to")
        if held.private and cells not in self.varying:
            if self.mask is None:
                self.line(f"{held.data}[{cells}] = {value}")
                self.line(f"{held.written}[{cells}] = True")
            else:
                self.line(f"copyto({held.data}[{cells}], {value}, where={self.mask}, casting='unsafe')")
                self.line(f"{held.written}[{cells}] |= {self.mask}")
        elif not held.tracked and not self.is_varying(cells, value):
            self.line(f"{held.data}[{cells}] = {value}")
        else:
            self._put(held, point, self.for_each_thread(cells), self.mask, value)

    def _put(self, held: MemoryNames, point: str, cells: str, taking: str | None, value: str) -> None:
        if held.private:
            self.line(f"scatter_private({held.data}, {cells}, {value}, {taking})")
            self.line(f"scatter_private({held.written}, {cells}, True, {taking})")
            return
        if held.tracked:
            self.line(f"{held.memory}.write({point}, {cells}, {taking}, {self.statement})")
        self.line(f"scatter({held.data}, {cells}, {value}, {taking})")

    _STMTS: Mapping[type, Callable[[Any, Any], None]] = {
        **ThreadValues._STMTS,
        For: _for,
        Block: _block,
        If: _if,
        While: _while,
        Allocate: _allocate,
        Evaluate: _evaluate,
        BindIndex: _bind_index,
        BufferStore: _store,
    }


def written_buffers(root: Node) -> set[Buffer]:
    """The buffers stored to below `root`."""
    return {n.buffer for n in walk_objects(root) if type(n) is BufferStore}


def _thread_extents(func: PrimFunc, values: Mapping[Var, int], kernel: Stmt) -> dict[str, int]:
    """The extent of each block and thread axis; all loops of the kernel over an axis must have the same extent."""
    found: dict[str, tuple[int, Var]] = {}
    for n in walk_objects(kernel):
        if type(n) is not For or n.kind != "thread" or n.thread in VIRTUAL_AXES:
            continue
        tag = n.thread or ""
        if tag not in AXES:
            raise InterpretError(f"function {func.name}: the loop {n.var} is bound to {n.thread!r}; tags are {', '.join(AXES)}")
        if not all(v in values for v in n.extent.vars):
            raise InterpretError(
                f"function {func.name}: the loop {n.var} is bound to {tag}, so its extent must be a number, got {n.extent}"
            )
        extent = evaluate(n.extent, values)
        known, first = found.setdefault(tag, (extent, n.var))
        if known != extent:
            raise InterpretError(
                f"function {func.name}: extents of {tag} differ in one kernel: {known} in the loop {first}, {extent} in the loop {n.var}"
            )
    return {tag: max(extent, 0) for tag, (extent, _) in found.items()}


def _strides(shape: Sequence[int]) -> list[int]:
    out = [1] * len(shape)
    for d in range(len(out) - 2, -1, -1):
        out[d] = out[d + 1] * shape[d + 1]
    return out


def _three(x: Sequence[int]) -> tuple[int, int, int]:
    return x[0], x[1], x[2]
