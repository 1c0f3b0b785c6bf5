"""Compute quantities of the GPU cost model for a concrete program by lowering it and enumerating its threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tunesmith.codegen.device.build import device_source
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Op, Poly, Var
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules import gpu_fallback
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import Sketch, collect
from tunesmith.support.seeds import stream

H200 = Target("nvidia/h200")
OPENCL = Target("opencl -num-cores=2")

WORKLOADS = (
    "matmul(m=128,n=128,k=64)",
    "matmul(m=100,n=70,k=30)",
    "conv2d(n=1,h=14,w=14,ci=8,co=16,kh=3,kw=3,pad=1)",
    "softmax(m=37,n=200)",
    "sum(shape=64x100,axis=1)",
    "sum(shape=40x5000)",
    "relu(shape=64x256)",
    "fallback",
)


@cache
def sketches(text: str, target: Target = H200) -> tuple[Sketch, ...]:
    """The sketches of a workload; for `fallback`, that of a product without a matching rule."""
    if text != "fallback":
        return generate(workload(text).func, target).sketches
    func = workload("matmul(m=40,n=48,k=20)").func
    return tuple(collect(gpu_fallback.sketches(func, target), func))


def rows_of(sketch: Sketch, n: int) -> np.ndarray:
    """Admissible rows from a fixed seed."""
    return sketch.space.sample(n, stream(0, "gpu rows", sketch.name))


@dataclass(frozen=True)
class Lowered:
    """For each kernel of a function: blocks, threads, bytes of shared memory, and estimated registers."""

    blocks: list[int]
    threads: list[int]
    shared: list[int]
    registers: list[int]


def lowered(func: PrimFunc, target: Target) -> Lowered:
    """The kernels of a function after lowering."""
    source = device_source(func, target)
    launches = [k.launch for k in source.kernels]
    return Lowered(
        [int(np.prod(x.grid)) for x in launches],
        [int(np.prod(x.block)) for x in launches],
        [k.shared_bytes for k in source.kernels],
        [k.registers for k in source.kernels],
    )


def resident(threads: int, registers: int, shared: int, reserved: int, memory: int) -> int:
    """Blocks on a multiprocessor of 64 warps, 32 blocks and 65,536 registers: the table of NVIDIA's occupancy calculator."""
    warps = -(-threads // 32)
    each = 256 * -(-32 * registers // 256)
    if each * 4 * -(-warps // 4) > 65536:
        return 0
    return min(4 * (16384 // each) // warps, 64 // warps, 32, memory // (128 * -(-(shared + reserved) // 128)))


def value(p: Poly, env: dict[Var, int]) -> int:
    """An index expression; unknown variables are 0."""
    total = 0
    for m, c in p.terms:
        for a in m:
            if type(a) is not Op:
                c *= env.get(a, 0)  # type: ignore[call-overload]
                continue
            x, y = (value(q, env) for q in a.args)
            c *= {"min": min, "max": max, "mod": int.__mod__, "floordiv": int.__floordiv__, "ceildiv": lambda p, q: -(-p // q)}[a.op](x, y)
        total += c
    return total


def addresses(indices: tuple[Poly, ...], buffer: Buffer, axes: list[tuple[Var | None, int]], warp: int = 32) -> list[int]:
    """Elements that the threads of the first warp access: `axes` are loop and extent along x, y, z."""
    strides = [int(x.as_int()) for x in buffer.strides]
    threads = min(int(np.prod([n for _, n in axes])), warp)
    out = []
    for t in range(threads):
        env, rest = {}, t
        for v, n in axes:
            if v is not None:
                env[v] = rest % n
            rest //= n
        out.append(sum(value(e, env) * s for e, s in zip(indices, strides, strict=True)))
    return out


def count_sectors(elements: list[int], item: int, width: int) -> int:
    """Distinct 32-byte sectors of an array that is aligned to a sector."""
    return len({b // 32 for e in elements for b in range(e * item, (e + width) * item)})


def mean_conflicts(words: list[int]) -> float:
    """Average over the distinct 4-byte words accessed in shared memory of the number of words in the same bank."""
    distinct = sorted(set(words))
    return float(np.mean([sum(y % 32 == x % 32 for y in distinct) for x in distinct]))
