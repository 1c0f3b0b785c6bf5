"""Analyse a parametric program: loops, iteration counts, footprints, strides, allocations.

The results are expressions over Params; features and the analytic model are computed from them.  Nothing branches on provability
(docs/design/001-parametric.md): whether a loop has one iteration, whether an access depends on it and whether a guard can fail are 0/1
expressions.  Footprints are always clipped to their buffers here; primitives never clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tunesmith.costmodel.analysis.operation_groups import Variables, operation_groups
from tunesmith.costmodel.analysis.operation_kinds import kind_of, operation_counts
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.arith.interval import interval
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import SHARED_SCOPES, is_block_axis, is_thread_axis, is_virtual_axis
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ONE, ZERO, Atom, Op, Param, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, For, annotation
from tunesmith.support import dtype as dt

FLOPS = ("add", "mul", "div", "max", "call")
Indices = tuple[Poly, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a store.

    `non_trivial` is 1 if it has more than one iteration, `thread` the GPU axis that it is bound to, and `double` the number of versions
    of the tiles filled in it.  `intrinsic` is the tensor intrinsic of a tensorized loop.
    """

    var: Var
    extent: Poly
    kind: str
    size: Num
    non_trivial: Num
    prefetch: bool
    thread: str | None = None
    double: Num | None = None
    intrinsic: str = ""


class Use:
    """All accesses of one block to one buffer.

    Attributes:
        buffer: the buffer.
        reads, writes: whether it is loaded, stored.
        indices: the distinct index tuples, in iteration variables.
        at: the same index tuples in loop variables.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.reads = self.writes = False
        self.indices: list[tuple[Poly, ...]] = []
        self.at: list[tuple[Poly, ...]] = []

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return dt.nbytes(self.buffer.dtype)


class Store:
    """One block with its loops, innermost first.

    Level k of a quantity is its value for the k innermost loops in one iteration of the outer loops.

    Attributes:
        block: the block.
        loops: innermost first.  Of nested loops over one thread axis only the inner one, because its iterations are distributed among the
            threads; of virtual threads only those that the block depends on, because the others share one execution.
        path: all loops, outermost first.
        uses: by buffer, in order of the first access.
        counts: operations of one instance, by `COUNTS`.
        iterations: level k -> iterations of the k innermost loops, ignoring guards.
    """

    def __init__(self, dag: Dag, block: Block, path: Sequence[Loop]) -> None:
        self.dag = dag
        self.block = block
        self.path = tuple(path)
        self.loops = _counted(block, path)[::-1]
        self.uses = _uses(block)
        self.counts = operation_counts(block)
        self.iterations = [dag.one]
        for loop in self.loops:
            self.iterations.append(self.iterations[-1] * loop.size)
        self._extents: dict[tuple[Buffer, frozenset[Var]], tuple[Num, ...]] = {}
        self._spans: dict[tuple[int, frozenset[Var]], Num] = {}
        self._indexed: dict[tuple[Buffer, Var], Num] = {}
        self._strides: dict[tuple[Buffer, Var], Num] = {}

    @property
    def total(self) -> Num:
        """Iterations of all loops, including those that a guard skips."""
        return self.iterations[-1]

    @property
    def written(self) -> Use:
        """The buffer it stores to (the first if there are several)."""
        return next(u for u in self.uses.values() if u.writes)

    @property
    def flops(self) -> int:
        """Float operations of one instance."""
        return sum(self.counts[k] for k in FLOPS)

    @cached_property
    def groups(self) -> dict[Variables, dict[str, int]]:
        """The operations by the loops that their values depend on."""
        out: dict[Variables, dict[str, int]] = {}
        loops = {it.var: b.vars for it, b in zip(self.block.iters, self.block.bindings, strict=True)}
        for variables, counts in operation_groups(self.block, kind_of).items():
            group = out.setdefault(frozenset().union(*[loops[v] for v in variables]), {})
            for kind, n in counts.items():
                group[kind] = group.get(kind, 0) + n
        return out

    @cached_property
    def useful(self) -> Num:
        """Fraction of iterations that pass the guards: extent of each iteration variable / number of values of its binding."""
        d, share = self.dag, self.dag.one
        widths = {loop.var: loop.size - 1.0 for loop in self.loops}
        for it, binding in zip(self.block.iters, self.block.bindings, strict=True):
            share = share * d.minimum(1.0, d.poly(it.extent) / (self._width(binding, widths, whole=False) + 1.0))
        return share

    def useful_tiles(self, level: int) -> Num:
        """Fraction of the tiles of the `level` innermost loops that have an iteration that passes the guards."""
        d, share = self.dag, self.dag.one
        widths = {loop.var: loop.size - 1.0 for loop in self.loops}
        inside = {loop.var: widths[loop.var] for loop in self.loops[:level]}
        for it, binding in zip(self.block.iters, self.block.bindings, strict=True):
            tile = self._width(binding, inside, whole=False) + 1.0
            tiles = (self._width(binding, widths, whole=False) + 1.0) / tile
            share = share * d.minimum(1.0, d.ceildiv(d.poly(it.extent), tile) / tiles)
        return share

    def rounding(self, level: int) -> Num:
        """Iterations of whole tiles of the `level` innermost loops / iterations needed: 1 if the tiles divide the block's extents."""
        d, out = self.dag, self.dag.one
        relaxed = frozenset(loop.var for loop in self.loops[:level])
        for i, it in enumerate(self.block.iters):
            size, extent = self._span(i, relaxed) + 1.0, d.poly(it.extent)
            out = out * (d.ceildiv(extent, size) * size / extent)
        return out

    @cached_property
    def executed(self) -> Num:
        """Executed instances."""
        return self.total * self.useful

    @cached_property
    def instances(self) -> Num:
        """Distinct instances of the block; more are executed if a tile is recomputed for each of its users."""
        return self.dag.product([self.dag.poly(it.extent) for it in self.block.iters])

    @cached_property
    def guarded(self) -> Num:
        """1 if some guard can fail."""
        d = self.dag
        ranges = {loop.var: loop.extent - 1 for loop in self.loops}
        return d.largest([d.poly(interval(p, ranges)[1] + 1) > 0.0 for p in self.block.predicate])

    def reduces(self, loop: Loop) -> bool:
        """Whether a reduction variable of the block depends on the loop."""
        return any(it.kind == "R" and loop.var in b.vars for it, b in zip(self.block.iters, self.block.bindings, strict=True))

    def extents(self, use: Use, level: int) -> tuple[Num, ...]:
        """Footprint of a use at a level, per dimension: at most the buffer's extent; the maximum over index tuples."""
        relaxed = frozenset(loop.var for loop in self.loops[:level])
        key = (use.buffer, relaxed.intersection(*[frozenset().union(*[e.vars for at in use.at for e in at])]))
        found = self._extents.get(key)
        if found is None:
            found = self._extents[key] = self._region(use, key[1])
        return found

    def nbytes(self, use: Use, level: int) -> Num:
        """Bytes of the footprint at a level."""
        return self.dag.product(self.extents(use, level)) * use.item

    def reach(self, use: Use, relaxed: frozenset[Var]) -> tuple[Num, ...]:
        """Footprint per dimension over the iterations of the loops in `relaxed`, not clipped to guards or the buffer."""
        loops = {x.var: x.size - 1.0 for x in self.path if x.var in relaxed}
        pairs = zip(self.block.iters, self.block.bindings, strict=True)
        widths = {it.var: self._width(e, loops) for it, e in pairs if it.extent != 1}
        return tuple([self.dag.largest([self._width(at[i], widths) for at in use.indices]) + 1.0 for i in range(len(use.buffer.shape))])

    def varies(self, use: Use, dimension: int, loop: Loop) -> bool:
        """Whether an index of the access in this dimension contains the loop variable."""
        return any(loop.var in at[dimension].vars for at in use.at)

    def _region(self, use: Use, relaxed: frozenset[Var]) -> tuple[Num, ...]:
        d = self.dag
        widths = {it.var: self._span(i, relaxed) for i, it in enumerate(self.block.iters)}
        return tuple(
            [
                d.minimum(d.largest([self._width(indices[n], widths) for indices in use.indices]) + 1.0, d.poly(size))
                for n, size in enumerate(use.buffer.shape)
            ]
        )

    def _span(self, i: int, relaxed: frozenset[Var]) -> Num:
        """Highest less lowest value of an iteration variable, within its extent."""
        binding = self.block.bindings[i]
        key = (i, relaxed & binding.vars)
        found = self._spans.get(key)
        if found is None:
            widths = {loop.var: loop.size - 1.0 for loop in self.loops if loop.var in key[1]}
            found = self._spans[key] = self.dag.minimum(self._width(binding, widths), self.dag.poly(self.block.iters[i].extent) - 1.0)
        return found

    def _width(self, p: Poly, widths: Mapping[Var, Num], whole: bool = True) -> Num:
        """Highest less lowest value of an expression, if each variable of `widths` spans its width above its lowest value.

        A range of w + 1 values is divided as if it started at a multiple of the divisor, as tiles do; for any start, a remainder
        takes at most w + 1 values.  Unless `whole`, the last value of a quotient counts fractionally: 10 // 4 takes 2.5 values.
        """
        d, out = self.dag, self.dag.zero
        for m, c in p.terms:
            moving = [a for a in m if not a.vars.isdisjoint(widths)]
            if moving:
                rest = [d.poly(self._closed(poly(a))) for a in m if a not in moving]
                out = out + d.product(rest) * abs(c) * d.product([self._atom_width(a, widths, whole) for a in moving])
        return out

    def _atom_width(self, a: Atom, widths: Mapping[Var, Num], whole: bool) -> Num:
        d = self.dag
        if type(a) is not Op:
            return widths[a]
        inside = d.largest([self._width(x, widths, whole) for x in a.args])
        if a.op in ("min", "max"):
            return inside
        divisor = d.poly(self._closed(a.args[1]))
        if a.op == "mod":
            return d.minimum(inside, divisor - 1.0)
        return d.ceildiv(inside + 1.0, divisor) - 1.0 if whole else d.maximum((inside + 1.0) / divisor, 1.0) - 1.0

    def _closed(self, p: Poly) -> Poly:
        """An expression with loop variables replaced to give its maximum."""
        left = {loop.var: loop.extent - 1 for loop in self.loops if loop.var in p.vars}
        return interval(p, left)[1] if left else p

    def indexed(self, use: Use, loop: Loop) -> Num:
        """1 if the accessed elements depend on the loop."""
        key = (use.buffer, loop.var)
        found = self._indexed.get(key)
        if found is None:
            found = self._indexed[key] = self.dag.largest([self._depends(e, loop.var) for indices in use.at for e in indices])
        return found

    def stride(self, use: Use, loop: Loop) -> Num:
        """Stride in row-major elements of the (first) access in the first step of the loop, as an absolute value."""
        key = (use.buffer, loop.var)
        found = self._strides.get(key)
        if found is None:
            found = self._strides[key] = self.step(use, use.at[0], loop)
        return found

    def depends(self, at: Indices, loop: Loop) -> Num:
        """1 if an access depends on the loop."""
        return self.dag.largest([self._depends(e, loop.var) for e in at])

    def step(self, use: Use, at: Indices, loop: Loop) -> Num:
        """As `stride`, of the access at these indices."""
        moved = self._moved(use, at, loop, ONE)
        return self.dag.maximum(moved, 0.0 - moved)

    def linear(self, use: Use, at: Indices, loop: Loop) -> Num:
        """1 if an access moves by the same step in each iteration of a loop.

        That is judged by the first two iterations and the last, and by the boundaries of quotients and remainders: the loop may cross one
        unless its extent divides the divisor, and then the address must go on with the same step, as in (v // 8) * 8 + v % 8.
        """
        d = self.dag
        bounded = [a for e in at for m, _ in e.terms for a in m if type(a) is Op and loop.var in a.vars]
        if not bounded:
            return d.one
        step = self._moved(use, at, loop, ONE)
        out = d.equal(self._moved(use, at, loop, loop.extent - 1), step * (loop.size - 1.0))
        for a in bounded:
            if a.op in ("floordiv", "mod") and (coefficient(a.args[0], loop.var) or (0,))[0] == 1:
                size = self._closed(a.args[1])
                divisor = d.poly(size)
                divided = d.equal(d.ceildiv(divisor, loop.size) * loop.size, divisor)
                joined = d.equal(self._moved(use, at, loop, size), step * divisor)
                out = out * d.maximum(1.0 - self._reaches(a.args[0], divisor), d.maximum(divided, joined))
        return out

    def _moved(self, use: Use, at: Indices, loop: Loop, n: Poly) -> Num:
        """Row-major elements between the accesses of the first iteration of a loop and of iteration n."""
        d = self.dag
        moved, pitch = d.zero, d.one
        for e, size in zip(reversed(at), reversed(use.buffer.shape), strict=True):
            if loop.var in e.vars:
                start = self._start(e)
                moved = moved + d.poly(substitute(e, start | {loop.var: n}) - substitute(e, start)) * pitch
            pitch = pitch * d.poly(size)
        return moved

    def start(self, use: Use, at: Indices) -> Num:
        """Row-major element of an access in the first iteration of all loops; values that are looked up count as 0."""
        d = self.dag
        out, pitch = d.zero, d.one
        for e, size in zip(reversed(at), reversed(use.buffer.shape), strict=True):
            out = out + d.poly(substitute(e, self._start(e))) * pitch
            pitch = pitch * d.poly(size)
        return out

    def _start(self, e: Poly) -> dict[Var, Poly]:
        """Zero for all loops and all values that are looked up, whose number no loop gives."""
        looked_up = [v for v in e.vars if isinstance(v, IndirectVar)]
        return dict.fromkeys([*[x.var for x in self.loops], *looked_up], ZERO)

    def _depends(self, p: Poly, v: Var) -> Num:
        d, out = self.dag, self.dag.zero
        for m, _ in p.terms:
            for a in m:
                if a is v:
                    return d.one
                if type(a) is Op and v in a.vars:
                    out = d.maximum(out, self._op_depends(a, v))
        return out

    def _op_depends(self, a: Op, v: Var) -> Num:
        """x mod d depends on nothing if d is 1, and neither does x // d if x is always less than d."""
        d = self.dag
        inside = d.largest([self._depends(x, v) for x in a.args])
        if a.op in ("min", "max"):
            return inside
        divisor = d.poly(self._closed(a.args[1]))
        if a.op == "mod":
            return inside * (divisor > 1.0)
        return inside * self._reaches(a.args[0], divisor)

    def _reaches(self, p: Poly, divisor: Num) -> Num:
        """1 if an expression has values from a divisor on."""
        highest = interval(p, {loop.var: loop.extent - 1 for loop in self.loops})[1]
        return self.dag.poly(highest) + 1.0 > divisor


def _counted(block: Block, path: Sequence[Loop]) -> tuple[Loop, ...]:
    """The loops over whose iterations a block is executed."""
    used = frozenset().union(*[b.vars for b in block.bindings])
    inside = [{x.thread for x in path[i + 1 :]} for i in range(len(path))]
    return tuple(
        [
            x
            for x, inner in zip(path, inside, strict=True)
            if x.thread is None or is_block_axis(x.thread) or (x.var in used if is_virtual_axis(x.thread) else x.thread not in inner)
        ]
    )


def _uses(block: Block) -> dict[Buffer, Use]:
    """The accesses in a block's body and init, by buffer."""
    bound: dict[Var, Poly] = {it.var: b for it, b in zip(block.iters, block.bindings, strict=True)}
    out: dict[Buffer, Use] = {}
    for access in accesses(block):
        use = out.setdefault(access.buffer, Use(access.buffer))
        use.writes |= access.is_write
        use.reads |= not access.is_write
        if access.indices not in use.indices:
            use.indices.append(access.indices)
            use.at.append(tuple([substitute(e, bound) for e in access.indices]))
    return out


@dataclass
class ProgramAnalysis:
    """The analysis of a program.

    Args:
        func: the raw parametric program: loops around blocks, intermediates in `allocs`.
        params: the columns of a configuration table; contains every Param of the program.
    """

    func: PrimFunc
    params: tuple[Param, ...]
    dag: Dag = field(init=False)
    stores: list[Store] = field(init=False)
    reuse_levels: dict[Buffer, int] = field(init=False)
    """For each intermediate, the number of loops outside its allocation: the loops that all its users share."""
    _accesses: dict[tuple[Var, Buffer], list[Block]] = field(init=False)

    def __post_init__(self) -> None:
        self.dag = Dag(self.params)
        self.stores = []
        self._collect(self.func.body, [])
        self.reuse_levels = {b: self._reuse_level(b) for b in self.func.allocs}
        self._accesses = {}
        for s in self.stores:
            for loop in s.loops:
                for b in s.uses:
                    self._accesses.setdefault((loop.var, b), []).append(s.block)

    def _collect(self, n: Node, path: list[Loop]) -> None:
        if type(n) is Block:
            self.stores.append(Store(self.dag, n, path))
        elif type(n) is For:
            size = self.dag.poly(n.extent)
            prefetch, note = annotation(n, "prefetch") is not None, annotation(n, "double_buffer")
            double = self.dag.poly(note) if isinstance(note, Poly) else None
            loop = Loop(
                n.var, n.extent, n.kind, size, size > 1.0, prefetch, n.thread, double, str(dict(n.annotations).get("intrinsic", ""))
            )
            self._collect(n.body, [*path, loop])
        elif type(n) is not BufferLoad:
            n.each_child(lambda k: None if isinstance(k, Poly) else self._collect(k, path))

    def _reuse_level(self, b: Buffer) -> int:
        paths = [s.path for s in self.stores if b in s.uses]
        if not paths:
            return 0
        shared = 0
        while all(len(p) > shared and p[shared].var is paths[0][shared].var for p in paths):
            shared += 1
        return shared

    def reuse_level(self, s: Store, b: Buffer) -> int:
        """The level of `s` at which the intermediate `b` is allocated: the number of loops between its allocation and the block."""
        around = {x.var for x in s.path[: self.reuse_levels[b]]}
        return sum(x.var not in around for x in s.loops)

    def allocated(self, b: Buffer) -> tuple[Num, ...]:
        """Extents of an intermediate compacted to the footprint of one iteration of the loops outside its allocation."""
        d = self.dag
        users = [s for s in self.stores if b in s.uses]
        if b.scope in (*SHARED_SCOPES, "local"):
            groups = [users]
            if b.scope in SHARED_SCOPES:
                # The last iteration of the threads that fill a tile, or that share what they compute from it, is guarded: lowering takes
                # the smaller of the footprints of reads and writes.
                reading = [s for s in users if s.uses[b].reads]
                groups = [x for x in (reading, [s for s in users if s not in reading]) if x] or [users]
            tiles = [[self._tile(s, s.uses[b]) for s in group] for group in groups]
            shapes = [[d.largest([x[i] for x in tile]) for i in range(len(b.shape))] for tile in tiles]
            smaller = d.product(shapes[-1]) < d.product(shapes[0])
            return tuple([d.where(smaller, x, y) for x, y in zip(shapes[-1], shapes[0], strict=True)])
        sizes = [s.extents(s.uses[b], self.reuse_level(s, b)) for s in users]
        return tuple([d.largest([x[i] for x in sizes]) for i in range(len(b.shape))])

    def _tile(self, s: Store, u: Use) -> tuple[Num, ...]:
        """Footprint of a block in its tile: of all threads for shared memory, of one thread for thread-local memory."""
        d, level = self.dag, self.reuse_levels[u.buffer]
        own, around = s.path[level:], s.path[:level]
        if u.buffer.scope in SHARED_SCOPES:
            threads = [x for x in around if x.thread and not is_block_axis(x.thread)]
            return s.reach(u, frozenset([x.var for x in (*own, *threads)]))
        virtual = [x for x in around if is_virtual_axis(x.thread) and x in s.loops]
        serial = [x for x in (*own, *virtual) if not is_thread_axis(x.thread)]
        extents = s.reach(u, frozenset([x.var for x in serial]))
        # A thread's elements are strided: it accesses at most as many as its own loops have iterations.
        return tuple([d.minimum(e, d.product([x.size for x in serial if s.varies(u, i, x)])) for i, e in enumerate(extents)])

    def others(self, s: Store, loop: Loop, b: Buffer) -> int:
        """Number of other blocks under the loop that access the buffer."""
        return len(self._accesses[loop.var, b]) - 1

    def under(self, loop: Loop) -> list[Store]:
        """The stores inside a loop."""
        return [s for s in self.stores if any(x.var is loop.var for x in s.loops)]
