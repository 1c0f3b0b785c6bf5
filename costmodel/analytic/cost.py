"""The time of a candidate from first principles: a roofline of every block, read off the target, as expressions over Params.

For each block, four times of one thread's work are formed and the largest counts, with a share of the others, which never overlap
completely:

- *issue*: vector operations of a register tile in slots of one multiply-add, the larger of arithmetic, loads and stores, and the
  latency of a reduction that has too few accumulators; registers that do not fit are spilled; short last vectors waste lanes.
- *L2, L3, memory*: bytes that the next smaller cache cannot hold.  For each loop level the footprint of the code under the loop decides
  what stays; a loop that does not index an operand reuses it when what one of its iterations touches fits.

Lines that no prefetcher follows cost more than their transfer.  Loops cost some slots an iteration; a parallel nest is as slow as its
fullest thread.  Rates and sizes are the target's; the constants are properties of out-of-order cores, set on the register tiles of
docs/design/003-cpu-space.md and on 450 random programs of one Sapphire Rapids core: for products of 512 and 1000 x 1001 x 999, a
dense layer of 64 x 1024 x 512 and a 3 x 3 convolution the median prediction was 0.95 to 1.1 of the measured time, and the rank
correlation 0.98, 0.86, 0.85 and 0.77.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.costmodel.analysis.program_analysis import Loop, ProgramAnalysis, Store, Use
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype as dt
from tunesmith.support.errors import TargetError

DIVISION = 16.0
"""Slots of a vector division; multiply-adds have two pipes, division less than one."""
LATENCY = 6.0
"""Slots between two dependent multiply-adds: 4 cycles of two pipes would be 8, but code that waits runs at a higher clock."""
STORE = 2.0
"""Slots of a vector store: one a cycle."""
SCATTER = 2.0
"""Slots for each element that a vector access without unit stride moves."""
TRANSPOSED = 0.4
"""Slots for each element of a tile that is transposed in registers and then stored: four shuffles, one a cycle, for each vector."""
MASK = 0.25
"""Slots of a select on positions: most are turned into bounds of loops, some into masked loads."""
FOLD = 24.0
"""Slots of combining the lanes of a vector that a reduction has run along."""
LOOP = 1.5
"""Slots of an iteration of a loop: counter, branch, addresses, and what does not overlap across it."""
ENTRY = 32.0
"""Slots of entering a loop: filling the pipeline, and one branch that is mispredicted at its end.  Loops of fewer iterations cost that
many: predictors know how short ones end."""
OVERLAP = 0.2
"""Share of the smaller of the four times that is not hidden behind the largest."""
STALL = 1.4
"""Time lost, in times of the transfer, when lines are far apart: nothing prefetches them, and their pages miss the TLB."""
FAR = 1000
"""Bytes between two accesses past which they are no stream."""
CALL = 1.2
"""Slots of an operation inside an intrinsic: half of them are paired to multiply-adds, the others are not."""
CODE = 3000.0
"""Vector operations of straight-line code that the instruction cache holds."""
PAGE = 4096
"""Bytes after which addresses fall into the same sets of the L1 cache, and, pages being anywhere, into few sets of the others."""
FILL = 1.0
"""Share of a cache that one nest can count on."""

TERMS = ("issue", "shared", "l2", "l3", "dram", "stalls", "overhead")
"""Parts of the time; see `AnalyticCost.terms`."""


@dataclass(frozen=True, slots=True)
class AnalyticCost:
    """Time of a program as nodes.

    Attributes:
        seconds: the whole.
        terms: parts of it in seconds, for models and people: `issue`, `l2`, `l3`, `dram`, `stalls` (waiting for lines that are far
            apart) and `overhead` (loops, parallel regions); sums over the blocks, of the fullest thread's share.  On a GPU there is no
            `l3`, but `shared` (shared memory and the L1 cache), `stalls` are latencies, and `overhead` is launches and barriers.
    """

    seconds: Num
    terms: dict[str, Num]


def analytic_cost(analysis: ProgramAnalysis, target: Target) -> AnalyticCost:
    """The cost of a parametric program on a CPU.

    Raises:
        TargetError: the target is a GPU.
    """
    if not target.is_cpu:
        raise TargetError(f"the analytic cost knows CPUs; {target} is a {target.kind} target")
    return _Cost(analysis, target).program()


@dataclass(frozen=True, slots=True)
class _Cache:
    """A cache: what it holds, and how fast the next level delivers to one core alone and to all."""

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
                streamed, scattered = self._traffic(s, cache, threads)
                times[name] = (streamed + scattered) * share / rate
                stalls = stalls + scattered * share / rate * STALL
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
        """The fullest thread's share of the block's executed iterations, and how many threads work."""
        d, cores = self.d, float(self.target.num_cores)
        tasks = d.product([x.size for x in s.loops if x.kind == "parallel"])
        # Tasks are whole tiles: the fullest thread has full ones, while the average task may be cut off by a guard.
        share = d.minimum(1.0, d.ceildiv(tasks, cores) / tasks / s.useful)
        return share, d.minimum(tasks, cores)

    def _regions(self) -> Num:
        """Starting and joining the parallel loops, each as often as the loops around it run."""
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
        tile = _tile_loops(s)
        width = self._width(s, tile)
        size = d.product([x.size for x in tile])
        vectors = size / width.size * width.vectors
        arithmetic = self._arithmetic(s) * vectors
        loads, stores = d.zero, d.zero
        for u in s.uses.values():
            if u.buffer.scope != "register":
                pieces = self._pieces(s, u, tile, width)
                loads = loads + (pieces if u.reads else d.zero)
                stores = stores + (pieces * STORE if u.writes else d.zero)
        slots = d.maximum(d.maximum(arithmetic, loads), stores) + 0.15 * d.minimum(arithmetic, loads)
        chain = d.product([x.size for x in tile if x is not width.loop and s.reduces(x)])
        slots = d.maximum(slots, self._chained(s, tile) * chain * LATENCY)
        if width.loop is not None and s.reduces(width.loop):
            slots = slots + FOLD * width.loop.non_trivial
        slots = slots + self._spills(s, tile, width, slots)
        slots = slots * d.where(vectors * max(s.flops, 1) > CODE, 1.5, 1.0)
        # A tile that is cut off at the end of an axis costs about half of what a whole one would cost more.
        runs = s.executed / size * (0.5 + 0.5 * s.rounding(len(tile)))
        return slots * runs, self._loop_slots(s, tile, runs)

    def _arithmetic(self, s: Store) -> float:
        """Slots of one vector of instances; an addition and a multiplication are one multiply-add."""
        c = s.counts
        simple = max(c["add"], c["mul"]) + c["max"] + c["select"] + c["cast"] + c["integer"]
        return simple + MASK * c["mask"] + DIVISION * c["div"] + CALL * c["call"]

    def _width(self, s: Store, tile: Sequence[Loop]) -> _Width:
        d = self.d
        lanes = self.target.vector_lanes("float32") * 32 // max([dt.bits(u.buffer.dtype) for u in s.uses.values()], default=32)
        loop = tile[0] if tile and tile[0].kind == "vectorized" else None
        size = loop.size if loop else d.one
        return _Width(loop, size, d.ceildiv(size, float(max(lanes, 1))), max(lanes, 1))

    def _pieces(self, s: Store, u: Use, tile: Sequence[Loop], width: _Width) -> Num:
        """Loads (or stores) of a use in a tile: elements met by its unrolled loops, each a scalar, some vectors, or single elements."""
        d, out = self.d, self.d.one
        for x in tile:
            used = s.indexed(u, x)
            if x is not width.loop:
                out = out * d.where(used, x.size, 1.0)
                continue
            step = s.stride(u, x)
            apart = x.size * (SCATTER if u.reads else self._across(s, u, tile, width))
            out = out * d.where(used * x.non_trivial, d.where(d.equal(step, 1.0), width.vectors, apart), 1.0)
        return out

    def _across(self, s: Store, u: Use, tile: Sequence[Loop], width: _Width) -> Num:
        """Slots for each element of vectors that are stored without unit stride."""
        d, beside = self.d, self.d.zero
        for x in tile:
            if x is not width.loop:
                beside = d.maximum(beside, d.equal(s.stride(u, x), 1.0) * x.size)
        return d.where(beside * 2.0 > float(width.lanes) - 1.0, TRANSPOSED, SCATTER)

    def _chained(self, s: Store, tile: Sequence[Loop]) -> Num:
        """1 where a tile waits for the tile before it: the innermost loops around it reduce into the same elements."""
        d = self.d
        inside = {x.var for x in tile}
        around = [x for x in s.loops if x.var not in inside]
        chained, decided = d.zero, d.zero
        for x in around:
            chained = d.where(decided, chained, x.non_trivial * float(s.reduces(x)))
            decided = d.maximum(decided, x.non_trivial)
        return chained

    def _spills(self, s: Store, tile: Sequence[Loop], width: _Width, slots: Num) -> Num:
        """Extra slots of a tile whose accumulators, one vector of each operand row and one scalar exceed the registers."""
        d = self.d
        held = [u for u in s.uses.values() if u.buffer.scope == "register" and u.writes and u.reads]
        if not held:
            return d.zero
        accumulators = d.total([self._pieces(s, u, tile, width) for u in held])
        over = d.maximum(accumulators + width.vectors + (1.0 - self.target.vector_registers), 0.0)
        # Measured with 32 registers: one too many costs 9 slots of 28, two cost 32 of 30; past that everything goes through memory.
        return d.minimum(over * 9.0 + over * (over - 1.0) * 7.0, slots * 3.0 + LATENCY * (over > 0.0))

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
        """Bytes touched by everything under a loop, in all its iterations (level 1) or in one (level 0); None is the program.

        A buffer that several blocks touch counts once.
        """
        key = (loop, level)
        found = self._footprints.get(key)
        if found is None:
            largest: dict[Buffer, Num] = {}
            for s in self.a.stores if loop is None else self.a.under(loop):
                depth = len(s.loops) if loop is None else next(i for i, x in enumerate(s.loops) if x.var is loop.var) + level
                for u in s.uses.values():
                    if u.buffer.scope != "register":
                        size = self._spread(s, u, depth)
                        largest[u.buffer] = self.d.maximum(largest[u.buffer], size) if u.buffer in largest else size
            found = self._footprints[key] = self.d.total(list(largest.values()))
        return found

    def _lines(self, s: Store, u: Use, level: int) -> Num:
        """Bytes of the cache lines of a use's region."""
        extents = s.extents(u, level)
        if not extents:
            return self.d.const(self.target.cache_line)
        return self.d.product(extents[:-1]) * self.d.maximum(extents[-1] * u.item, float(self.target.cache_line))

    def _spread(self, s: Store, u: Use, level: int) -> Num:
        """What a region takes of a cache: rows a power of two apart fall into few sets, and take more than their bytes."""
        extents = s.extents(u, level)
        row = u.buffer.shape[-1].const if extents else None
        if len(extents) < 2 or row is None or math.gcd(row * u.item, PAGE) < 4 * self.target.cache_line:
            return self._lines(s, u, level)
        # Half: caches are not true LRU, and a few conflicts are hidden.
        d, gap = self.d, math.gcd(row * u.item, PAGE) / 2.0
        run = d.maximum(extents[-1] * u.item, float(self.target.cache_line))
        apart = (extents[-2] > 1.0) * (extents[-1] < float(row))
        return d.product(extents[:-1]) * d.where(apart, d.maximum(run, gap), run)

    def _traffic(self, s: Store, cache: _Cache, threads: Num) -> tuple[Num, Num]:
        """Bytes that a block moves from beyond a cache: in streams that prefetching follows, and in long strides."""
        d, limit, top = self.d, cache.nbytes * FILL, len(s.loops)
        fits = [self._under(s.loops[k - 1], 1) < limit if k else d.one for k in range(top)]
        streamed, scattered = d.zero, d.zero
        for u in s.uses.values():
            if u.buffer.scope != "register":
                level = self._reuse_level(s, u)
                # One iteration of the loop outside of level; the caches of all threads hold what the program needs from run to run.
                around = self._under(s.loops[level], 0) if level < top else self._under(None, 1) / threads
                # Between once and twice the cache some of it stays.
                lost = d.minimum(d.maximum(around / limit - 1.0, 0.0), 1.0)
                moved = self._moved(s, u, fits, level)
                # Skipped iterations move nothing, but what is touched at all has to come once.
                moved = d.maximum(moved * s.useful, d.minimum(moved, self._lines(s, u, top))) * lost
                moved = moved * (2.0 if u.writes and u.buffer not in self.a.reuse_levels else 1.0)
                far = self._walk(s, u) * u.item > float(FAR)
                streamed, scattered = streamed + moved * (1.0 - far), scattered + moved * far
        return streamed, scattered

    def _walk(self, s: Store, u: Use) -> Num:
        """Elements between the tiles of the innermost loop around the tile that moves a use."""
        known = self._walks.get((s, u.buffer))
        if known is not None:
            return known
        d = self.d
        step, found = d.zero, d.zero
        for x in s.loops[len(_tile_loops(s)) :]:
            hit = x.non_trivial * s.indexed(u, x)
            step = d.where(found, step, hit * s.stride(u, x))
            found = d.maximum(found, hit)
        self._walks[s, u.buffer] = step
        return step

    def _reuse_level(self, s: Store, u: Use) -> int:
        """The level at which a buffer has been touched before: by an earlier block in the same iteration of a loop that both share,
        by its allocation in the iteration before, or by the run of the program before."""
        earlier = self.a.stores[: self.a.stores.index(s)]
        shared = [_shared(s, o) for o in earlier if u.buffer in o.uses]
        return len(s.loops) - max([*shared, self.a.reuse_levels.get(u.buffer, 0)])

    def _moved(self, s: Store, u: Use, fits: Sequence[Num], level: int) -> Num:
        """Bytes of one use: what its region holds at the outermost level that fits, times the outer iterations that lose it."""
        d = self.d
        moved = self._lines(s, u, 0)
        for k, x in enumerate(s.loops):
            # Iterations that fit share their cache lines and whatever does not move; others start anew.
            repeated = moved * x.size
            moved = d.where(fits[k], self._lines(s, u, k + 1), repeated) if k < level else repeated
        return moved


def _shared(s: Store, other: Store) -> int:
    """How many loops, from the outermost, two blocks have in common."""
    n = 0
    while n < min(len(s.loops), len(other.loops)) and s.loops[-1 - n].var is other.loops[-1 - n].var:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class _Width:
    """The vectorised loop of a tile: its extent, in how many vectors it is cut, and their lanes."""

    loop: Loop | None
    size: Num
    vectors: Num
    lanes: int


def _tile_loops(s: Store) -> list[Loop]:
    """The written-out loops: from the innermost outwards, as long as they are vectorised or unrolled."""
    out = []
    for x in s.loops:
        if x.kind not in ("vectorized", "unrolled"):
            break
        out.append(x)
    return out
