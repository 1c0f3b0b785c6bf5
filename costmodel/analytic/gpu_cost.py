"""The time of a GPU candidate from first principles, as expressions over Params: a roofline of every kernel, and what it cannot hide.

A multiprocessor takes a block's work at five rates: multiply-adds, instructions, passes of shared memory, bytes of the L2 cache, bytes of
memory; the fullest multiprocessor decides.  Against these stands the time that a block takes by itself, latency after latency, once for
each round of blocks: with enough of them resident it hides behind the others' work, which is what occupancy is good for.  The largest
counts, with a share of the rest; launches and barriers come on top.

Rates and limits are the target's; constants are published properties of NVIDIA multiprocessors (docs/design/006-gpu.md).  A device that
is not made of warps, such as a processor with OpenCL, is priced by `gpu_plain`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.costmodel.analysis.gpu_access import SECTOR, Requests, requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, combines, kernels, own_loops, staged, steps, tile_loops, two_versions
from tunesmith.costmodel.analysis.program_analysis import SHARED, ProgramAnalysis, Store
from tunesmith.costmodel.analytic.cost import TERMS, AnalyticCost
from tunesmith.costmodel.analytic.gpu_traffic import block_bytes, kernel_bytes, memory_bytes
from tunesmith.costmodel.analytic.opencl_cpu import plain_cost
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.target.target import Target

ISSUE = 4.0
"""Instructions of warps that a multiprocessor starts in a cycle."""
DIVISION = 10.0
"""Instructions of a division."""
CALL = 2.0
"""Instructions of an operation inside an intrinsic: many of them run at a quarter of the rate."""
ADDRESS = 1.5
"""Instructions for the address and the guards of a request to the memory of the device."""
LOOP = 4.0
"""Instructions of an iteration of a loop that is not written out."""
EXCHANGE = 3.0
"""Instructions of a step in which the threads of a block combine their values."""
GLOBAL_LATENCY = 550.0
"""Cycles until memory has answered, between the 270 of the L2 cache and the 800 of what lies behind it."""
SHARED_LATENCY = 30.0
"""Cycles until shared memory has answered; a shuffle takes about as long."""
AHEAD = 0.25
"""Share of a latency that is waited for where loads are far ahead of their use: in code that is written out, and with two versions."""
CHAIN = 4.0
"""Cycles between dependent instructions."""
BARRIER = 25.0
"""Cycles of a barrier, beside one for each warp that comes."""
L1_SECTORS = 4.0
"""Sectors that the L1 cache, which is the shared memory too, delivers in a cycle."""
SM_BYTES = 64.0
"""Bytes of the L2 cache that one multiprocessor can take in a cycle."""
L1_SHARE = 0.5
"""Share of the memory of a multiprocessor that reuse in its L1 cache can count on."""
OVERLAP = 0.15
"""Share of the smaller times that is not hidden behind the largest."""
SPILL = 6.0
"""Instructions, and passes of the L1 cache, for a register that does not fit, each time straight-line code is run: it is stored and
loaded again, and its users wait.  Meant to rank such programs behind all others, which they nearly always are."""
SMALL = 16.0
"""Operations of straight-line code up to which compilers put iterations of the loop around it together."""


def gpu_cost(a: ProgramAnalysis, target: Target) -> AnalyticCost:
    """The cost of a parametric program on a GPU."""
    return plain_cost(a, target) if target.warp_size == 1 else _Cost(a, target).program()


@dataclass(slots=True)
class _Load:
    """The work of one block of a kernel: cycles of a multiprocessor, bytes of the L2 cache; bytes of memory are the whole kernel's."""

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
        room = (self.target.shared_memory_per_sm - k.shared * k.resident) * L1_SHARE / k.resident
        total = kernel_bytes(self.a, k)
        for s in k.stores:
            tile = d.product([x.size for x in tile_loops(s)])
            runs = d.product([x.size for x in own_loops(s)]) / tile
            asked = requests(self.a, k, s)
            spills = spilled if s.counts["mul"] else d.zero
            instructions = self._instructions(s, tile, asked) + spills + LOOP
            out.fma = out.fma + runs * warps * tile * (s.counts["mul"] * size / self.fma_rate)
            out.issue = out.issue + runs * warps * instructions / ISSUE
            out.shared = out.shared + runs * warps * (self._passes(asked) + spills)
            out.latency = out.latency + runs * (instructions * d.maximum(CHAIN / tile, 1.0) + self._waits(s, asked, tile))
            out.barriers = out.barriers + runs * self._barriers(k, s, warps)
            for r in asked:
                if r.use.buffer.scope == "global":
                    everything = runs * warps * r.each * r.parts * float(SECTOR) * s.useful
                    fetched = block_bytes(self.a, s, r, everything, room)
                    out.l2 = out.l2 + fetched
                    out.dram = out.dram + memory_bytes(self.a, self.target, k, s, r.use, fetched, total)
        return out

    def _instructions(self, s: Store, tile: Num, asked: list[Requests]) -> Num:
        """Instructions of a thread for one run of straight-line code."""
        d, c, loop = self.d, s.counts, combines(s)
        memory = d.total([r.each * (1.0 + ADDRESS * (r.use.buffer.scope == "global")) for r in asked])
        if loop is not None:
            return steps(d, loop) * EXCHANGE + memory
        simple = max(c["add"], c["mul"]) + c["max"] + 2 * c["select"] + c["mask"] + c["cast"] + c["integer"]
        return tile * float(simple + DIVISION * c["div"] + CALL * c["call"]) + memory

    def _passes(self, asked: list[Requests]) -> Num:
        """Cycles of shared memory and the L1 cache for the requests of a warp."""
        d = self.d
        passes = [r.parts if r.use.buffer.scope in SHARED else d.maximum(r.parts / L1_SECTORS, 1.0) for r in asked]
        return d.total([r.each * p for r, p in zip(asked, passes, strict=True)])

    def _waits(self, s: Store, asked: list[Requests], tile: Num) -> Num:
        """Cycles in which a warp waits, in one run of straight-line code."""
        d, out, loop = self.d, self.d.zero, combines(s)
        read = {r.use.buffer.scope for r in asked if r.use.reads}
        if read & set(SHARED):
            inside = {x.var for x in tile_loops(s)}
            written_out = any(x.kind == "unrolled" and x.var not in inside for x in s.path)
            out = out + SHARED_LATENCY * (AHEAD if written_out else 1.0)
        if "global" in read:
            ahead = two_versions(d, s) if staged(s) else 1.0 - (tile > SMALL)
            out = out + GLOBAL_LATENCY * d.where(ahead, AHEAD, 1.0)
        return out if loop is None else out + steps(d, loop) * SHARED_LATENCY

    def _barriers(self, k: Kernel, s: Store, warps: Num) -> Num:
        """Cycles of waiting for each other, in one run: two barriers for the tiles of a step, one where they have two versions."""
        d, loop = self.d, combines(s)
        cost = BARRIER + warps
        if staged(s):
            return d.where(two_versions(d, s), 1.0, 2.0) * cost / float(sum(staged(o) for o in k.stores))
        return d.zero if loop is None else (loop.size > float(self.target.warp_size)) * cost
