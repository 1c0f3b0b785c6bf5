"""Compute the GPU features of a block: size and occupancy of its kernel, memory access patterns of its threads.

They describe a kernel or the requests of warps, which CPU features do not cover; features of iterations, footprints and buffers apply to
both.
"""

from __future__ import annotations

from tunesmith.costmodel.analysis.gpu_access import requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, combines, index_extent, kernels, own_loops, staged, two_versions
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store
from tunesmith.costmodel.formulas.expr_graph import Num
from tunesmith.ir.gpu import SHARED_SCOPES, is_virtual_axis
from tunesmith.ir.target.target import Target


def gpu_features(a: ProgramAnalysis, target: Target) -> list[dict[str, Num]]:
    """The features of each block of the program, by the names of `store_features.GPU`."""
    out: dict[Store, dict[str, Num]] = {}
    for i, k in enumerate(kernels(a, target)):
        shared = _of_kernel(a, target, k) | {"kernel": a.dag.const(i + 1)}
        for s in k.stores:
            out[s] = shared | _of_store(a, target, k, s)
    return [out[s] for s in a.stores]


def _of_kernel(a: ProgramAnalysis, target: Target, k: Kernel) -> dict[str, Num]:
    d, sms = a.dag, float(target.num_cores)
    warps = d.ceildiv(k.threads, float(target.warp_size))
    return {
        "blocks": k.grid,
        "threads": k.threads,
        "thread_x": d.poly(index_extent(k, "threadIdx.x")),
        "shared_bytes": k.shared,
        "local_words": k.local,
        "registers": k.registers,
        "spilled": d.maximum(k.registers - k.cap, 0.0),
        "resident": k.resident,
        "occupancy": d.minimum(k.resident * warps / float(target.warps_per_sm), 1.0),
        "waves": k.waves,
        "busy": k.grid / (d.ceildiv(k.grid, sms) * sms),
    }


def _of_store(a: ProgramAnalysis, target: Target, k: Kernel, s: Store) -> dict[str, Num]:
    d, loop = a.dag, combines(s)
    virtual = [x.size for x in s.loops if is_virtual_axis(x.thread)]
    out = {
        "virtual": d.product(virtual),
        "own": d.product([x.size for x in own_loops(s)]),
        "combines": d.one if loop is None else loop.size,
        "versions": 1.0 + two_versions(d, s) if staged(s) else d.one,
    }
    out["writes_shared"] = d.const(any(u.writes and u.buffer.scope in SHARED_SCOPES for u in s.uses.values()))
    out["reads_shared"] = d.const(any(u.reads and u.buffer.scope in SHARED_SCOPES for u in s.uses.values()))
    return out | _of_requests(a, target, k, s)


def _of_requests(a: ProgramAnalysis, target: Target, k: Kernel, s: Store) -> dict[str, Num]:
    """Maxima over the block's accesses, and total numbers of requests and transfers."""
    d = a.dag
    warps = d.ceildiv(k.threads, float(target.warp_size)) * k.grid
    found = requests(a, k, s)
    out: dict[str, Num] = {}
    for name, parts, group in (
        ("global", "sectors", [r for r in found if r.use.buffer.scope == "global"]),
        ("shared", "wavefronts", [r for r in found if r.use.buffer.scope in SHARED_SCOPES]),
    ):
        runs = [r.each * r.runs * warps for r in group]
        out[f"{name}_stride"] = d.largest([r.stride for r in group])
        out[f"{name}_vector"] = d.largest([r.width * r.use.item for r in group])
        out[f"{name}_excess"] = d.largest([r.parts / r.ideal for r in group])
        out[f"{name}_requests"] = d.total(runs)
        out[parts] = d.total([n * r.parts for n, r in zip(runs, group, strict=True)])
    return out
