"""Predict the time of a candidate on an OpenCL CPU, whose cores execute work-groups with vectors.

A core executes one work-group at a time.  Neighbouring work-items are the lanes of its vectors, so their accesses should be contiguous;
a barrier ends a loop over the work-items, and values live across it are stored in memory.  The model is coarse and meant for ranking:
only the target's attributes are known of the device.
"""

from __future__ import annotations

import math

from tunesmith.costmodel.analysis.gpu_access import SECTOR, Requests, requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, combines, kernels, own_loops, staged, steps, tile_loops, two_versions
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store, Use
from tunesmith.costmodel.analytic.cost import TERMS, AnalyticCost
from tunesmith.costmodel.analytic.gpu_traffic import block_bytes, kernel_bytes, memory_bytes
from tunesmith.costmodel.formulas.expr_graph import Num
from tunesmith.ir.gpu import SHARED_SCOPES, is_block_axis
from tunesmith.ir.poly import ONE, ZERO, Poly, Var, substitute
from tunesmith.ir.target.target import Target

LANES = 16.0
"""Work-items per vector in CPU compilers."""
DIVISION = 8.0
"""Slots of a division; a slot is a vector operation."""
GATHER = 0.5
"""Slots per 32-byte piece of an access beyond those of a contiguous access."""
APART = 3.0
"""Slots per element whose neighbour does not belong to the next work-item: vectors are assembled from elements."""
GATHERED = 5.0
"""Slots per element of an access whose address is not linear in the work-item."""
GROUP = 200.0
"""Slots of starting a work-group."""
SWITCH = 4.0
"""Slots of a barrier per vector of work-items, besides the values live across it."""
REGISTERS = 24.0
"""Values of a work-item held in registers."""
SPILL = 0.2
"""Slots of an operation per multiple of the register count that its values need."""
MOST = 2.0
"""Upper limit of the slots of an operation for values that do not fit."""
LOOP = 2.0
"""Slots per loop iteration."""
FAR = 3.0
"""Slots of an access to rows that map to the same few sets of the first cache."""
SETS = 4096
"""Distance in bytes of addresses that map to the same sets."""
CACHE = 32768.0
"""Bytes of the first-level cache."""


def opencl_cpu_cost(a: ProgramAnalysis, target: Target) -> AnalyticCost:
    """The cost of a parametric program on a CPU with OpenCL."""
    d, cores = a.dag, float(target.num_cores)
    slots_per_second = target.peak_gflops * 1e9 / (2 * cores * LANES)
    terms = dict.fromkeys(TERMS, d.zero)
    for k in kernels(a, target):
        turns = d.ceildiv(k.grid, cores)
        issue, overhead, l2, dram = _group(a, target, k)
        found = {
            "issue": issue * turns / slots_per_second,
            "l2": l2 * turns * cores / (target.l2_gbs * 1e9),
            "dram": dram / (target.dram_gbs * 1e9),
            "overhead": (overhead + GROUP) * turns / slots_per_second + target.launch_us * 1e-6,
        }
        for name, x in found.items():
            terms[name] = terms[name] + x
    return AnalyticCost(d.total(list(terms.values())), terms)


def _group(a: ProgramAnalysis, target: Target, k: Kernel) -> tuple[Num, Num, Num, Num]:
    """Slots of a work-group, overhead slots, bytes that it transfers from the second cache, and bytes of the kernel from memory."""
    d = a.dag
    vectors = d.ceildiv(k.threads, LANES)
    issue = overhead = l2 = dram = d.zero
    total = kernel_bytes(a, k)
    for s in k.stores:
        tile = d.product([x.size for x in tile_loops(s)])
        runs = d.product([x.size for x in own_loops(s)]) / tile
        found = requests(a, k, s)
        c, loop = s.counts, combines(s)
        simple = max(c["add"], c["mul"]) + c["max"] + c["select"] + c["mask"] + c["cast"] + c["integer"] + c["call"]
        work = tile * float(simple + DIVISION * c["div"])
        if c["mul"]:
            work = work + tile * d.minimum(d.maximum(k.local / REGISTERS - 1.0, 0.0) * SPILL, MOST)
        issue = issue + runs * vectors * (work + d.total([_slots(a, s, r) + _conflict_slots(a, s, r) for r in found]))
        overhead = overhead + runs * vectors * LOOP
        if staged(s):
            waits = d.where(two_versions(d, s), 1.0, 2.0) / float(sum(staged(o) for o in k.stores))
            overhead = overhead + runs * waits * vectors * (SWITCH + k.local)
        if loop is not None:
            overhead = overhead + runs * vectors * steps(d, loop) * (SWITCH + k.local)
        for r in found:
            if r.use.buffer.scope == "global":
                everything = runs * k.threads * r.each * r.width * r.use.item
                fetched = block_bytes(a, s, r, everything, d.const(CACHE))
                l2 = l2 + fetched
                dram = dram + memory_bytes(a, target, k, s, r.use, fetched, total)
    return issue, overhead, l2, dram


def _conflict_slots(a: ProgramAnalysis, s: Store, r: Requests) -> Num:
    """Slots of cache misses on rows that evict each other because their distance is a power of two."""
    d, u = a.dag, r.use
    level = next((i for i, x in enumerate(s.loops) if is_block_axis(x.thread)), len(s.loops))
    extents = s.extents(u, level)
    row = u.buffer.shape[-1].const if len(extents) > 1 else None
    if row is None or u.buffer.scope in SHARED_SCOPES:
        return d.zero
    apart = math.gcd(row * u.item, SETS)
    if apart < 4 * 64:
        return d.zero
    crowd = d.product(extents[:-1]) * float(apart)
    return r.each * r.width * FAR * d.minimum(d.maximum(crowd / float(SETS) / 12.0 - 1.0, 0.0), 1.0)


def _slots(a: ProgramAnalysis, s: Store, r: Requests) -> Num:
    """Slots of an access per vector of work-items."""
    d = a.dag
    wide = 128.0 / SECTOR if r.use.buffer.scope in SHARED_SCOPES else 1.0
    apart = d.maximum((r.stride > 1.0) * APART, (1.0 - _linear(a, s, r.use)) * GATHERED)
    return r.each * (r.width * (1.0 + apart) + GATHER * d.maximum(r.parts - r.ideal, 0.0) * wide)


def _linear(a: ProgramAnalysis, s: Store, u: Use) -> Num:
    """1 if the address is linear in the work-item along the first axis, so that compilers can vectorise it."""
    d = a.dag
    loop = next((x for x in s.loops if x.thread == "threadIdx.x"), None)
    if loop is None:
        return d.one
    start: dict[Var, Poly] = {x.var: ZERO for x in s.path}
    out = d.one
    for e in u.at[0]:
        if loop.var in e.vars:
            first, last = [d.poly(substitute(e, start | {loop.var: t}) - substitute(e, start)) for t in (ONE, loop.extent - 1)]
            out = out * d.equal(last, first * (loop.size - 1.0))
    return out
