"""Predict the GPU time of a candidate analytically by a roofline for every kernel, plus exposed latency.

The cost is an expression over Params.  A multiprocessor processes a block at five rates: multiply-adds, instructions, shared-memory
passes, L2 bytes and memory bytes; the fullest multiprocessor decides.  The latency-bound time of a single block, counted once per wave of
blocks, is the sixth time: with enough resident blocks it overlaps with the work of others, which is the benefit of occupancy.  The result
is the maximum plus a share of the rest, plus launches and barriers.

Rates and limits come from the target; constants are published properties of NVIDIA multiprocessors (docs/design/006-gpu.md).  A device
without warps, such as a CPU with OpenCL, is modelled by `opencl_cpu`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.costmodel.analysis.gpu_access import SECTOR, Requests, requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, combines, kernels, own_loops, staged, steps, tile_loops, two_versions
from tunesmith.costmodel.analysis.program_analysis import Loop, ProgramAnalysis, Store
from tunesmith.costmodel.analytic.cost import TERMS, AnalyticCost
from tunesmith.costmodel.analytic.gpu_traffic import block_bytes, kernel_bytes, memory_bytes
from tunesmith.costmodel.analytic.opencl_cpu import opencl_cpu_cost
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.gpu import SHARED_SCOPES
from tunesmith.ir.target.target import Target

ISSUE = 4.0
"""Warp instructions that a multiprocessor issues per cycle."""
DIVISION = 10.0
"""Instructions per division."""
CALL = 2.0
"""Instructions per operation inside an intrinsic: many of them run at a quarter of the rate."""
ADDRESS = 1.5
"""Instructions for the address and guards of a device-memory request."""
LOOP = 4.0
"""Instructions per iteration of a loop that is not unrolled."""
EXCHANGE = 3.0
"""Instructions per step of a cross-thread reduction."""
GLOBAL_LATENCY = 550.0
"""Latency of memory in cycles, between the 270 of the L2 cache and the 800 of DRAM."""
SHARED_LATENCY = 30.0
"""Latency of shared memory in cycles; a shuffle takes about as long."""
AHEAD = 0.25
"""Share of a latency that stays exposed if loads are issued far ahead of their use: in unrolled code, and with double buffering."""
CHAIN = 4.0
"""Cycles between dependent instructions."""
BARRIER = 25.0
"""Cycles per barrier, plus one for each arriving warp."""
L1_LINE = 2.0
"""Cycles of the L1 cache, which is also the shared memory, for each line of a request (fitted to candidates measured on an H200)."""
SM_BYTES = 64.0
"""Bytes per cycle that one multiprocessor can receive from the L2 cache."""
L1_SHARE = 0.5
"""Share of a multiprocessor's memory available for reuse in its L1 cache."""
OVERLAP = 0.15
"""Share of the smaller times that does not overlap with the largest."""
SPILL = 6.0
"""Instructions, and L1 passes, per spilled register and run of straight-line code: it is stored and loaded again, and its users wait.
The value ranks programs with spills behind nearly all others."""
TOGETHER = 8.0
"""Unrolled runs of straight-line code whose loads are issued together."""


def gpu_cost(a: ProgramAnalysis, target: Target) -> AnalyticCost:
    """The cost of a parametric program on a GPU."""
    return opencl_cpu_cost(a, target) if target.warp_size == 1 else _Cost(a, target).program()


@dataclass(slots=True)
class _Load:
    """Work of one block of a kernel in multiprocessor cycles and L2 bytes; `dram` is in bytes of the whole kernel."""

    fma: Num
    issue: Num
    shared: Num
    l2: Num
    dram: Num
    latency: Num
    barriers: Num


class _Cost:
    def __init__(self, a: ProgramAnalysis, target: Target) -> None:
        self.a, self.target = a, target
        self.d: Dag = a.dag
        self.hertz = target.clock_ghz * 1e9
        self.fma_rate = target.peak_gflops * 1e9 / (2 * target.num_cores * self.hertz)

    def program(self) -> AnalyticCost:
        d, t, sms = self.d, self.target, float(self.target.num_cores)
        terms = dict.fromkeys(TERMS, d.zero)
        total = d.zero
        for k in kernels(self.a, t):
            load = self._load(k)
            turns = d.ceildiv(k.grid, sms)
            quantum = turns * sms / k.grid
            fullest, rounds = turns / self.hertz, k.waves / self.hertz
            times = {
                "issue": d.maximum(load.fma, load.issue) * fullest,
                "shared": load.shared * fullest,
                "l2": d.maximum(load.l2 * k.grid * quantum / (t.l2_gbs * 1e9), load.l2 / SM_BYTES * fullest),
                "dram": load.dram * quantum / (t.dram_gbs * 1e9),
                "stalls": load.latency * rounds,
            }
            longest = d.largest(list(times.values()))
            overhead = load.barriers * rounds + t.launch_us * 1e-6
            total = total + longest + (d.total(list(times.values())) - longest) * OVERLAP + overhead
            for name, x in {**times, "overhead": overhead}.items():
                terms[name] = terms[name] + x
        return AnalyticCost(total, terms)

    def _load(self, k: Kernel) -> _Load:
        d, out = self.d, _Load(*[self.d.zero] * 7)
        size = float(self.target.warp_size)
        warps = d.ceildiv(k.threads, size)
        spilled = d.maximum(k.registers - k.cap, 0.0) * SPILL
        capacity = (self.target.shared_memory_per_sm - k.shared * k.resident) * L1_SHARE / k.resident
        total = kernel_bytes(self.a, k)
        dram: dict[Buffer, Num] = {}
        """Bytes from memory by buffer: blocks of one kernel that access the same elements find them in the L2 cache."""
        for s in k.stores:
            tile = d.product([x.size for x in tile_loops(s)])
            runs = d.product([x.size for x in own_loops(s)]) / tile
            found = requests(self.a, k, s)
            spills = spilled if s.counts["mul"] else d.zero
            instructions = self._instructions(s, tile, found) + spills + LOOP
            out.fma = out.fma + runs * warps * tile * (s.counts["mul"] * size / self.fma_rate)
            out.issue = out.issue + runs * warps * instructions / ISSUE
            out.shared = out.shared + runs * warps * (self._passes(s, found) + spills)
            out.latency = out.latency + runs * (instructions * d.maximum(CHAIN / tile, 1.0) + self._waits(s, found))
            out.barriers = out.barriers + runs * self._barriers(k, s, warps)
            for r in found:
                if r.use.buffer.scope == "global":
                    everything = runs * warps * r.each * r.parts * float(SECTOR) * s.useful
                    fetched = block_bytes(self.a, s, r, everything, capacity)
                    out.l2 = out.l2 + fetched
                    found_bytes = memory_bytes(self.a, self.target, k, s, r.use, fetched, total)
                    dram[r.use.buffer] = d.maximum(dram[r.use.buffer], found_bytes) if r.use.buffer in dram else found_bytes
        out.dram = d.total(list(dram.values()))
        return out

    def _instructions(self, s: Store, tile: Num, found: list[Requests]) -> Num:
        """Instructions of a thread for one run of straight-line code."""
        d, c, loop = self.d, s.counts, combines(s)
        memory = d.total([r.each * (1.0 + ADDRESS * (r.use.buffer.scope == "global")) for r in found])
        if loop is not None:
            return steps(d, loop) * EXCHANGE + memory
        simple = max(c["add"], c["mul"]) + c["max"] + 2 * c["select"] + c["mask"] + c["cast"] + c["integer"]
        return tile * float(simple + DIVISION * c["div"] + CALL * c["call"]) + memory

    def _passes(self, s: Store, found: list[Requests]) -> Num:
        """Cycles of shared memory and the L1 cache for the requests of a warp."""
        d, line = self.d, 1.0 if staged(s) else L1_LINE
        return d.total([r.each * (r.parts if r.use.buffer.scope in SHARED_SCOPES else d.maximum(r.lines, 1.0) * line) for r in found])

    def _waits(self, s: Store, found: list[Requests]) -> Num:
        """Stall cycles of a warp in one run of straight-line code."""
        d, out, loop = self.d, self.d.zero, combines(s)
        read = {r.use.buffer.scope for r in found if r.use.reads}
        if read & set(SHARED_SCOPES):
            out = out + SHARED_LATENCY * (AHEAD if _unrolled(s) else 1.0)
        if "global" in read:
            out = out + GLOBAL_LATENCY * (d.where(two_versions(d, s), AHEAD, 1.0) if staged(s) else self._exposed(s))
        return out if loop is None else out + steps(d, loop) * SHARED_LATENCY

    def _exposed(self, s: Store) -> Num:
        """Share of the latency of memory for each run of straight-line code: unrolled runs load together, as far as registers allow."""
        together = self.d.product([x.size for x in _unrolled(s)])
        return 1.0 / self.d.minimum(self.d.maximum(together, 1.0), TOGETHER)

    def _barriers(self, k: Kernel, s: Store, warps: Num) -> Num:
        """Barrier cycles of one run: two barriers per tile step, one with double buffering."""
        d, loop = self.d, combines(s)
        cost = BARRIER + warps
        if staged(s):
            return d.where(two_versions(d, s), 1.0, 2.0) * cost / float(sum(staged(o) for o in k.stores))
        return d.zero if loop is None else (loop.size > float(self.target.warp_size)) * cost


def _unrolled(s: Store) -> list[Loop]:
    """Unrolled loops around the straight-line code of a block."""
    inside = {x.var for x in tile_loops(s)}
    return [x for x in s.path if x.kind == "unrolled" and x.var not in inside]
