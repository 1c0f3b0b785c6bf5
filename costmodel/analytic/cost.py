"""Predict the CPU time of a candidate analytically by a roofline for every block, with rates of the target.

The cost is an expression over Params.  For each block, four times are computed for the work of one thread.  The result is their maximum
plus a share of the others, because overlap is never complete:

- *issue*: vector operations of a register tile in slots of one multiply-add: the maximum of arithmetic, loads and stores, and the
  latency of a reduction with too few accumulators; registers that do not fit are spilled; short last vectors waste lanes.
- *L2, L3, memory*: bytes that the next smaller cache cannot hold.  For each loop level the footprint of the code under the loop decides
  what stays in cache; a loop that does not index an operand reuses it if the footprint of one iteration fits.

Cache lines that no prefetcher follows cost more than their transfer.  Loops cost some slots per iteration; a parallel nest is as slow as
its fullest thread.  Rates and sizes come from the target.  The constants are properties of out-of-order cores, calibrated on the register
tiles of docs/design/003-cpu-space.md and on 450 random programs on one Sapphire Rapids core: for products of 512 and 1000 x 1001 x 999,
a dense layer of 64 x 1024 x 512 and a 3 x 3 convolution the median prediction was 0.95 to 1.1 of the measured time, and the rank
correlation 0.98, 0.86, 0.85 and 0.77.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from tunesmith.costmodel.analysis.program_analysis import Indices, Loop, ProgramAnalysis, Store, Use
from tunesmith.costmodel.analytic.tile import REGISTER_SCOPES, Width, slots_of, tile_loops
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.stmt import TENSORIZED
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TensorIntrinsic
from tunesmith.support import dtype as dt
from tunesmith.support.errors import TargetError

LATENCY = 6.0
"""Slots between two dependent multiply-adds: 4 cycles of two pipes would be 8, but stalled code runs at a higher clock."""
STORE = 2.0
"""Slots of a vector store: one a cycle."""
SCATTER = 2.0
"""Slots per element of a vector access without unit stride."""
NEAR_STRIDE = 4.0
"""Largest stride of a vector load that is made of contiguous loads and shuffles, one of each for an element of the stride."""
TRANSPOSED = 0.4
"""Slots per element of a tile that is transposed in registers and then stored: four shuffles, one a cycle, for each vector."""
FOLD = 24.0
"""Slots of a horizontal reduction of a vector."""
MERGE = 4.0
"""Slots of each further vector of it."""
LOOP = 1.5
"""Slots of a loop iteration: counter, branch, addresses, and lost overlap between iterations."""
ENTRY = 32.0
"""Slots of entering a loop: filling the pipeline, and one branch misprediction at its end.  A loop with fewer iterations costs one slot
for each, because predictors learn the end of short loops."""
OVERLAP = 0.2
"""Share of the smaller times that does not overlap with the largest."""
STALL = 1.4
"""Stall time relative to transfer time for accesses with large strides: no prefetching, and their pages miss the TLB."""
FAR = 1000
"""Stride in bytes above which accesses are not a stream."""
FAR_RUN, NEAR_RUN = 256.0, 64.0
"""Bytes of a contiguous run that are not prefetched, for larger and for smaller strides from run to run."""
CODE = 3000.0
"""Vector operations of straight-line code that fit in the instruction cache."""
PAGE = 4096
"""Distance in bytes of addresses that map to the same sets of the L1 cache, and, with arbitrary page placement, to few sets of others."""
FILL = 1.0
"""Usable share of a cache for one loop nest."""

ORDERED = 3
"""Most unrolled loops of which all orders are compared; `order_unrolled_loops` compares those of more."""

TERMS = ("issue", "shared", "l2", "l3", "dram", "stalls", "overhead")
"""Parts of the time; see `AnalyticCost.terms`."""


@dataclass(frozen=True, slots=True)
class AnalyticCost:
    """Time of a program as graph nodes.

    Attributes:
        seconds: the total.
        terms: parts of it in seconds, for models and reports: `issue`, `l2`, `l3`, `dram`, `stalls` (latency of accesses with large
            strides) and `overhead` (loops, parallel regions); sums over the blocks of the fullest thread's share.  On a GPU there is
            `shared` (shared memory and the L1 cache) instead of `l3`, `stalls` are latencies, and `overhead` is launches and barriers.
    """

    seconds: Num
    terms: dict[str, Num]


def analytic_cost(analysis: ProgramAnalysis, target: Target) -> AnalyticCost:
    """The cost of a parametric program on a CPU.

    Raises:
        TargetError: the target is a GPU.
    """
    if not target.is_cpu:
        raise TargetError(f"analytic_cost supports only CPUs; {target} is a {target.kind} target")
    return _Cost(analysis, target).program()


@dataclass(frozen=True, slots=True)
class _Cache:
    """Capacity of a cache, and the bandwidth of the next level for one core and for all cores."""

    nbytes: float
    rate_core: float
    rate_all: float


class _Cost:
    def __init__(self, analysis: ProgramAnalysis, target: Target) -> None:
        self.a = analysis
        self.d: Dag = analysis.dag
        self.target = target
        self.slots_per_second = target.peak_gflops_core * 1e9 / (2 * target.vector_lanes("float32"))
        self.caches = {
            "l2": _Cache(target.l1_bytes, target.l2_gbs_core, target.l2_gbs),
            "l3": _Cache(target.l2_bytes, target.l3_gbs_core, target.l3_gbs),
            "dram": _Cache(target.l3_bytes / target.num_cores or target.l2_bytes, target.dram_gbs_core, target.dram_gbs),
        }
        self._footprints: dict[tuple[Loop | None, int], Num] = {}
        self._walks: dict[tuple[Store, Buffer], Num] = {}
        self._line_bytes: dict[tuple[Store, Buffer, int], Num] = {}
        self._runs: dict[tuple[Store, Buffer, int], Num] = {}

    def program(self) -> AnalyticCost:
        d = self.d
        terms = dict.fromkeys(TERMS, d.zero)
        total = d.zero
        for s in self.a.stores:
            share, threads = self._parallel(s)
            issue, overhead = self._compute(s)
            times = {"issue": issue * share / self.slots_per_second}
            stalls = d.zero
            for name, cache in self.caches.items():
                rate = d.minimum(cache.rate_core, cache.rate_all / threads) * 1e9
                moved, stalled = self._traffic(s, cache, threads)
                times[name] = moved * share / rate
                stalls = stalls + stalled * share / rate * STALL
            longest = d.largest(list(times.values()))
            total = total + longest + (d.total(list(times.values())) - longest) * OVERLAP + stalls
            overhead = overhead * share / self.slots_per_second
            total = total + overhead
            for name, t in {**times, "stalls": stalls}.items():
                terms[name] = terms[name] + t
            terms["overhead"] = terms["overhead"] + overhead
        regions = self._regions()
        terms["overhead"] = terms["overhead"] + regions
        return AnalyticCost(total + regions, terms)

    # ---- threads ------------------------------------------------------------------------------------------------------

    def _parallel(self, s: Store) -> tuple[Num, Num]:
        """The fullest thread's share of the block's executed iterations, and the number of active threads."""
        d, cores = self.d, float(self.target.num_cores)
        tasks = d.product([x.size for x in s.loops if x.kind == "parallel"])
        # Tasks are whole tiles: the fullest thread has complete ones, while a guard may cut off the average task.  Lanes and rows that a
        # guard cuts off from a register tile are cut off from those of all tasks.
        share = d.minimum(1.0, d.ceildiv(tasks, cores) / tasks / s.useful_tiles(len(tile_loops(s))))
        return share, d.minimum(tasks, cores)

    def _regions(self) -> Num:
        """Time of starting and joining parallel loops, for each execution."""
        d = self.d
        seen: dict[Loop, Num] = {}
        for s in self.a.stores:
            for i, x in enumerate(s.loops):
                if x.kind == "parallel":
                    seen[x] = d.product([y.size for y in s.loops[i + 1 :]])
        return d.total(list(seen.values())) * (self.target.fork_join_us * 1e-6)

    # ---- the core -----------------------------------------------------------------------------------------------------

    def _compute(self, s: Store) -> tuple[Num, Num]:
        """Slots of all tiles, and slots of the loops around them."""
        d = self.d
        tile = tile_loops(s)
        width = self._width(s, tile)
        size = d.product([x.size for x in tile])
        vectors = size / width.size * width.vectors
        arithmetic = self._arithmetic(s, tile, width)
        loads, stores = d.zero, d.zero
        for u in s.uses.values():
            if u.buffer.scope not in REGISTER_SCOPES:
                pieces = self._accesses(s, u, tile, width)
                loads = loads + (pieces if u.reads else d.zero)
                stores = stores + (pieces * STORE if u.writes else d.zero)
        slots = d.maximum(d.maximum(arithmetic, loads), stores) + 0.15 * d.minimum(arithmetic, loads)
        chain = d.product([x.size for x in tile if x is not width.loop and x not in width.groups and s.reduces(x)])
        latency = LATENCY if width.intrinsic is None else max(LATENCY, width.intrinsic.latency)
        slots = d.maximum(slots, self._chained(s, tile) * chain * latency)
        if width.loop is not None and not width.inside and s.reduces(width.loop):
            slots = slots + (width.vectors * MERGE + (FOLD - MERGE)) * width.loop.non_trivial
        slots = slots + self._spills(s, tile, width, slots)
        slots = slots * d.where(vectors * max(s.flops, 1) > CODE, 1.5, 1.0)
        # A partial tile at the end of an axis costs about half of a whole one.
        runs = s.executed / size * (0.5 + 0.5 * s.rounding(len(tile)))
        return slots * runs, self._loop_slots(s, tile, runs)

    def _arithmetic(self, s: Store, tile: Sequence[Loop], width: Width) -> Num:
        """Slots of the operations of a tile.  LLVM moves those that do not depend on a loop out of it."""
        d, out = self.d, self.d.zero
        intrinsic = width.intrinsic
        if intrinsic is not None:
            inside = width.inside
            return d.product([x.size for x in tile if x not in inside]) * width.vectors * self._intrinsic_slots(intrinsic, width)
        for loops, counts in s.groups.items():
            times, invariant = d.one, True
            for x in s.loops:
                if x in tile:
                    times = times * ((width.vectors if x is width.loop else x.size) if x.var in loops else d.one)
                else:
                    invariant = invariant and x.var not in loops
                    times = times / x.size if invariant and x.kind != "parallel" else times
            out = out + times * slots_of(counts)
        return out

    def _intrinsic_slots(self, intrinsic: TensorIntrinsic, width: Width) -> Num:
        """Slots of one instruction of a tensorized tile, whose outermost loop has as many iterations as a multiply-add has lanes."""
        d, rate = self.d, self.target.tensor_rate(intrinsic.instruction)
        operations = d.product([x.size for x in width.groups]) * self.target.peak_gflops_core
        return d.const(intrinsic.slots) if rate is None else operations / rate

    def _width(self, s: Store, tile: Sequence[Loop]) -> Width:
        d = self.d
        lanes = self.target.vector_lanes("float32") * 32 // max([dt.bits(u.buffer.dtype) for u in s.uses.values()], default=32)
        tensorized = [x for x in tile if x.kind == TENSORIZED]
        loop = tensorized[-1] if tensorized else tile[0] if tile and tile[0].kind == "vectorized" else None
        size = loop.size if loop else d.one
        vectors = d.ceildiv(size, float(max(lanes, 1)))
        if loop is not None:
            # Accesses that are not linear have no vector form: lowering unrolls their loops into scalar statements.
            linear = d.product([s.linear(u, at, loop) for u in s.uses.values() for at in u.at])
            vectors = d.where(linear, vectors, size)
        return Width(loop, size, vectors, max(lanes, 1), tuple(tensorized))

    def _pieces(self, s: Store, u: Use, tile: Sequence[Loop], width: Width) -> Num:
        """Loads (or stores) of a use in a tile, in slots: per distinct element of the unrolled loops a scalar, vectors, or lanes."""
        return self.d.total([self._pieces_at(s, u, at, tile, width) for at in u.at])

    def _accesses(self, s: Store, u: Use, tile: Sequence[Loop], width: Width) -> Num:
        """As `_pieces`; a vector that crosses a cache line is two accesses."""
        d = self.d
        crossing = width.lanes * u.item / self.target.cache_line
        out = d.zero
        for at in u.at:
            pieces = self._pieces_at(s, u, at, tile, width)
            if width.loop is not None and u.buffer.scope == "global" and not self.a.reuse_levels.get(u.buffer, 0):
                contiguous = s.depends(at, width.loop) * d.equal(s.step(u, at, width.loop), 1.0) * width.loop.non_trivial
                pieces = pieces * (1.0 + contiguous * (1.0 - self._aligned(s, u, at, width)) * crossing)
            out = out + pieces
        return out

    def _aligned(self, s: Store, u: Use, at: Indices, width: Width) -> Num:
        """1 if all vectors of an access begin at multiples of their size."""
        d, lanes = self.d, float(width.lanes)
        start = s.start(u, at)
        out = d.equal(d.ceildiv(start, lanes) * lanes, start)
        for x in s.loops:
            if x is not width.loop:
                step = s.step(u, at, x)
                out = out * d.maximum(1.0 - x.non_trivial, d.equal(d.ceildiv(step, lanes) * lanes, step))
        return out

    def _pieces_at(self, s: Store, u: Use, at: Indices, tile: Sequence[Loop], width: Width) -> Num:
        """The pieces of one access; an operand of a tensor intrinsic has as many vectors as its bytes fill."""
        d, out = self.d, self.d.one
        inside = width.inside
        if inside:
            nbytes = d.product([d.where(s.depends(at, x), x.size, 1.0) for x in inside]) * u.item
            out = d.maximum(nbytes / (self.target.vector_bits / 8), 1.0)
        for x in tile:
            used = s.depends(at, x)
            if x in inside:
                continue
            if x is not width.loop:
                out = out * d.where(used, x.size, 1.0)
                continue
            step = s.step(u, at, x)
            apart = x.size * (SCATTER if u.reads else self._across(s, u, tile, width))
            if u.reads:
                near = (step > 1.0) * (step < NEAR_STRIDE + 1.0)
                apart = d.where(near, width.vectors * (2.0 * step - 1.0), apart)
            out = out * d.where(used * x.non_trivial, d.where(d.equal(step, 1.0), width.vectors, apart), 1.0)
        return out

    def _across(self, s: Store, u: Use, tile: Sequence[Loop], width: Width) -> Num:
        """Slots per element of vectors stored without unit stride."""
        d, adjacent = self.d, self.d.zero
        for x in tile:
            if x is not width.loop:
                adjacent = d.maximum(adjacent, d.equal(s.stride(u, x), 1.0) * x.size)
        return d.where(adjacent * 2.0 > float(width.lanes) - 1.0, TRANSPOSED, SCATTER)

    def _chained(self, s: Store, tile: Sequence[Loop]) -> Num:
        """1 if a tile depends on the previous one: the innermost loop around it reduces into the same elements."""
        d = self.d
        inside = {x.var for x in tile}
        around = [x for x in s.loops if x.var not in inside]
        chained, decided = d.zero, d.zero
        for x in around:
            chained = d.where(decided, chained, x.non_trivial * float(s.reduces(x)))
            decided = d.maximum(decided, x.non_trivial)
        return chained

    def _spills(self, s: Store, tile: Sequence[Loop], width: Width, slots: Num) -> Num:
        """Extra slots of a tile whose accumulators and operands that are alive exceed the registers."""
        d = self.d
        held = [u for u in s.uses.values() if u.buffer.scope == "register" and u.writes and u.reads]
        if not held:
            return d.zero
        accumulators = d.total([self._pieces(s, u, tile, width) for u in held])
        alive = d.maximum(self._alive(s, tile, width), 1.0)
        over = d.maximum(accumulators + alive - self.target.vector_registers, 0.0)
        # Measured with 32 registers: one too many costs 9 slots of 28, two cost 32 of 30; with more, all values are in memory.
        return d.minimum(over * 9.0 + over * (over - 1.0) * 7.0, slots * 3.0 + LATENCY * (over > 0.0))

    def _alive(self, s: Store, tile: Sequence[Loop], width: Width) -> Num:
        """Vectors of operands that are alive at once in the best order of the unrolled loops (see `lower.passes.order_unrolled_loops`)."""
        d = self.d
        loops = [x for x in reversed(tile) if x is not width.loop and x not in width.groups]
        inner = [x for x in loops if not s.reduces(x)][-ORDERED:]
        outer = [x for x in loops if x not in inner]
        operands = [(u, at) for u in s.uses.values() if u.buffer.scope not in REGISTER_SCOPES and not u.writes for at in u.at]
        totals = []
        for order in permutations(inner):
            total = d.zero
            for _, at in operands:
                kept, again = d.one, d.zero
                for x in (*outer, *order):
                    used = s.depends(at, x)
                    kept = kept * d.where(used * again, x.size, 1.0)
                    again = d.maximum(again, (1.0 - used) * x.non_trivial)
                # An operand that is used once is read by its operation, from memory.
                lanes = d.zero if width.loop is None else s.depends(at, width.loop)
                total = total + kept * d.maximum(again, 1.0 - lanes) * d.where(lanes, width.vectors, 1.0)
            totals.append(total)
        out = totals[0]
        for total in totals[1:]:
            out = d.minimum(out, total)
        return out

    def _loop_slots(self, s: Store, tile: Sequence[Loop], runs: Num) -> Num:
        d = self.d
        inside = {x.var for x in tile}
        out, here = d.zero, runs
        for x in s.loops:
            if x.var in inside:
                continue
            before = here
            here = here / x.size
            out = out + x.non_trivial * (before * LOOP + here * d.minimum(x.size, ENTRY)) if x.kind != "parallel" else out
        return out

    # ---- caches -------------------------------------------------------------------------------------------------------

    def _under(self, loop: Loop | None, level: int) -> Num:
        """Footprint in bytes of everything under a loop, for all its iterations (level 1) or one (level 0); None is the program.

        A buffer that several blocks access counts once.
        """
        key = (loop, level)
        found = self._footprints.get(key)
        if found is None:
            largest: dict[Buffer, Num] = {}
            for s in self.a.stores if loop is None else self.a.under(loop):
                depth = len(s.loops) if loop is None else next(i for i, x in enumerate(s.loops) if x.var is loop.var) + level
                for u in s.uses.values():
                    if u.buffer.scope not in REGISTER_SCOPES:
                        size = self._spread(s, u, depth)
                        largest[u.buffer] = self.d.maximum(largest[u.buffer], size) if u.buffer in largest else size
            found = self._footprints[key] = self.d.total(list(largest.values()))
        return found

    def _lines(self, s: Store, u: Use, level: int) -> Num:
        """Bytes of the cache lines in a use's footprint: a contiguous run takes at least one line."""
        key = (s, u.buffer, level)
        found = self._line_bytes.get(key)
        if found is None:
            least = self.d.maximum(1.0, float(self.target.cache_line) / self._run(s, u, level))
            found = self._line_bytes[key] = self.d.product(s.extents(u, level)) * u.item * least
        return found

    def _spread(self, s: Store, u: Use, level: int) -> Num:
        """Effective cache footprint: rows a power of two apart map to few sets, and occupy more than their bytes."""
        # Dimensions of one element separate no elements.
        extents = [e for e, size in zip(s.extents(u, level), u.buffer.shape, strict=True) if size != 1]
        row = [size for size in u.buffer.shape if size != 1][-1].const if extents else None
        if len(extents) < 2 or row is None or math.gcd(row * u.item, PAGE) < 4 * self.target.cache_line:
            return self._lines(s, u, level)
        # Half, because caches are not true LRU and hide a few conflicts.
        d, gap = self.d, math.gcd(row * u.item, PAGE) / 2.0
        run = d.maximum(extents[-1] * u.item, float(self.target.cache_line))
        apart = (extents[-2] > 1.0) * (extents[-1] < float(row))
        return d.product(extents[:-1]) * d.where(apart, d.maximum(run, gap), run)

    def _traffic(self, s: Store, cache: _Cache, threads: Num) -> tuple[Num, Num]:
        """Bytes that a block transfers from beyond a cache, and those of them that no prefetcher brings in time."""
        d, limit, top = self.d, cache.nbytes * FILL, len(s.loops)
        fits = [self._under(s.loops[k - 1], 1) < limit if k else d.one for k in range(top)]
        total, stalled = d.zero, d.zero
        for u in s.uses.values():
            if u.buffer.scope not in REGISTER_SCOPES:
                level = self._reuse_level(s, u)
                # One iteration of the loop outside the reuse level; for the program, the caches of all threads hold data between runs.
                around = self._under(s.loops[level], 0) if level < top else self._under(None, 1) / threads
                # Between one and two times the cache size, part of the footprint stays.
                lost = d.minimum(d.maximum(around / limit - 1.0, 0.0), 1.0)
                moved = self._moved(s, u, fits, level)
                # Skipped iterations transfer nothing, but the footprint is transferred at least once.
                moved = d.maximum(moved * s.useful, d.minimum(moved, self._lines(s, u, top))) * lost
                moved = moved * (2.0 if u.writes and u.buffer not in self.a.reuse_levels else 1.0)
                total, stalled = total + moved, stalled + moved * self._jumps(s, u)
        return total, stalled

    def _jumps(self, s: Store, u: Use) -> Num:
        """The share of a use's bytes that the prefetchers miss: the beginnings of its contiguous runs.

        The innermost loop around the tile that the use depends on walks from run to run, unless it continues them.
        """
        known = self._walks.get((s, u.buffer))
        if known is not None:
            return known
        d = self.d
        step, run, found = d.zero, d.one, d.zero
        first = len(tile_loops(s))
        for i, x in enumerate(s.loops[first:]):
            hit = x.non_trivial * s.indexed(u, x)
            step = d.where(found, step, hit * s.stride(u, x) * u.item)
            run = d.where(found, run, self._run(s, u, first + i))
            found = d.maximum(found, hit)
        missed = d.where(step > float(FAR), FAR_RUN, NEAR_RUN) / d.maximum(run, float(self.target.cache_line))
        out = self._walks[s, u.buffer] = d.minimum(1.0, missed) * (step > run)
        return out

    def _run(self, s: Store, u: Use, level: int) -> Num:
        """Contiguous bytes of a use's footprint."""
        key = (s, u.buffer, level)
        found = self._runs.get(key)
        if found is None:
            d, found, whole = self.d, self.d.const(u.item), self.d.one
            for e, size in zip(reversed(s.extents(u, level)), reversed(u.buffer.shape), strict=True):
                found = found * d.where(whole, e, 1.0)
                whole = whole * d.equal(e, d.poly(size))
            self._runs[key] = found
        return found

    def _reuse_level(self, s: Store, u: Use) -> int:
        """The level at which a buffer was accessed before: by an earlier block in the same iteration of a shared loop, in the previous
        iteration outside its allocation, or in the previous run of the program."""
        earlier = self.a.stores[: self.a.stores.index(s)]
        shared = [_shared(s, o) for o in earlier if u.buffer in o.uses]
        return len(s.loops) - max([*shared, self.a.reuse_levels.get(u.buffer, 0)])

    def _moved(self, s: Store, u: Use, fits: Sequence[Num], level: int) -> Num:
        """Bytes of one use: its footprint at the outermost level that fits, times the outer iterations that evict it."""
        d = self.d
        moved = self._lines(s, u, 0)
        for k, x in enumerate(s.loops):
            # Iterations that fit share cache lines and invariant data; others transfer everything again.
            repeated = moved * x.size
            moved = d.where(fits[k], self._lines(s, u, k + 1), repeated) if k < level else repeated
        return moved


def _shared(s: Store, other: Store) -> int:
    """Number of common loops of two blocks, from the outermost."""
    n = 0
    while n < min(len(s.loops), len(other.loops)) and s.loops[-1 - n].var is other.loops[-1 - n].var:
        n += 1
    return n
