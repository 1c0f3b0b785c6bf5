"""The kernels of a parametric GPU program: grid, threads, shared memory, registers, and what stays resident, as expressions over Params.

A kernel is a root statement of the function.  Shared memory is counted as lowering places it, so it is exact.  Registers are an
estimate of what the compiler will take, for ranking: they are no matter of legality, as compilers fit a kernel by spilling.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.costmodel.analysis.program_analysis import SHARED, Loop, ProgramAnalysis, Store
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ir.target.occupancy import register_cap, resident_blocks
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype as dt

BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
ALIGNMENT = 16
"""Bytes that arrays in shared memory are rounded up to."""
WARP = 32
"""Threads that exchange values without shared memory."""

ADDRESSES = 24.0
"""Registers of a thread beside its arrays: indices, addresses, what is on its way."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Attributes:
        stores: its blocks, in order.
        extents: of each axis of threads that it has.
        grid: blocks.
        threads: of a block.
        shared: bytes of a block.
        local: 32-bit words that a thread keeps in its own buffers.
        registers: of a thread, what the compiler is expected to take.
        cap: registers that a thread of a block of this size can have.
        resident: blocks on a multiprocessor together, at least 1.
        waves: rounds in which the multiprocessors take the blocks.
    """

    stores: tuple[Store, ...]
    extents: dict[str, Poly]
    grid: Num
    threads: Num
    shared: Num
    local: Num
    registers: Num
    cap: Num
    resident: Num
    waves: Num


def kernels(a: ProgramAnalysis, target: Target) -> list[Kernel]:
    """The kernels of a program, in order."""
    groups: dict[object, list[Store]] = {}
    for s in a.stores:
        groups.setdefault(s.path[0].var if s.path else s, []).append(s)
    return [_kernel(a, target, tuple(g)) for g in groups.values()]


def register_estimate(func: PrimFunc, target: Target) -> list[int]:
    """Registers of a thread that the compiler is expected to take, for each kernel of a concrete function.

    Args:
        func: loops around blocks, without Params.
        target: a GPU.
    """
    a = ProgramAnalysis(func, ())
    found = [k.registers.const for k in kernels(a, target)]
    return [int(n) for n in found if n is not None]


def staged(s: Store) -> bool:
    """Whether a block moves a tile from the memory of the device into shared memory."""
    return s.written.buffer.scope in SHARED and any(u.reads and u.buffer.scope == "global" for u in s.uses.values())


def combines(s: Store) -> Loop | None:
    """The loop of threads whose values a block combines, None when it does not."""
    return next((x for x in s.loops if x.thread in AXES and s.reduces(x)), None)


def tile_loops(s: Store) -> list[Loop]:
    """What a thread does as straight-line code: the innermost vectorised and unrolled loops, and virtual threads."""
    out: list[Loop] = []
    for x in s.loops:
        if x.kind not in ("vectorized", "unrolled"):
            if x.thread in AXES and not combines(s):
                continue
            break
        out.append(x)
    return out + [x for x in s.loops if (x.thread or "").startswith("vthread")]


def own_loops(s: Store) -> list[Loop]:
    """The loops that each thread runs by itself."""
    return [x for x in s.loops if x.thread is None or x.thread.startswith("vthread")]


def _kernel(a: ProgramAnalysis, target: Target, stores: tuple[Store, ...]) -> Kernel:
    d = a.dag
    extents: dict[str, Poly] = {}
    sizes: dict[str, Num] = {}
    for s in stores:
        for x in s.path:
            if x.thread in (*BLOCKS, *AXES):
                extents.setdefault(x.thread, x.extent)
                sizes[x.thread] = d.maximum(sizes.get(x.thread, d.one), x.size)
    grid = d.product([n for tag, n in sizes.items() if tag in BLOCKS])
    threads = d.product([n for tag, n in sizes.items() if tag in AXES])
    shared = _shared_bytes(a, target, stores)
    local, registers = _registers(a, stores)
    cap = register_cap(d, target, threads, 1.0)
    resident = d.maximum(resident_blocks(d, target, threads, d.minimum(registers, cap), shared), 1.0)
    waves = d.ceildiv(grid, resident * float(target.num_cores))
    axes = {tag: e for tag, e in extents.items() if tag in AXES}
    return Kernel(stores, axes, grid, threads, shared, local, registers, cap, resident, waves)


def buffers(a: ProgramAnalysis, stores: tuple[Store, ...], scopes: tuple[str, ...]) -> list[Buffer]:
    """Intermediates of these scopes that the stores use, in order."""
    return list(dict.fromkeys([b for s in stores for b in s.uses if b in a.reuse_levels and b.scope in scopes]))


def pitches(a: ProgramAnalysis, b: Buffer) -> tuple[Num, ...]:
    """Elements between neighbours along each dimension of a buffer as it is placed."""
    d = a.dag
    shape = a.allocated(b) if b in a.reuse_levels and b.scope != "global" else tuple([d.poly(n) for n in b.shape])
    out = [d.one] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
        if i == len(shape) - 2:
            out[i] = out[i] + d.poly(b.pad)
    return tuple(out)


def _shared_bytes(a: ProgramAnalysis, target: Target, stores: tuple[Store, ...]) -> Num:
    d, unit = a.dag, float(ALIGNMENT)
    out = d.zero
    for b in buffers(a, stores, SHARED):
        shape = a.allocated(b)
        size = pitches(a, b)[0] * shape[0] if shape else d.one
        size = size * (1.0 + d.largest([two_versions(d, s) for s in stores if staged(s) and s.written.buffer is b]))
        out = out + d.ceildiv(size * dt.nbytes(b.dtype), unit) * unit
    for s in stores:
        out = out + d.ceildiv(_scratch(a, target, s), unit) * unit
    return out


def two_versions(d: Dag, s: Store) -> Num:
    """1 where the tile that a block fills has two versions, of which one is filled while the threads work on the other."""
    return d.largest([d.equal(x.double, 2.0) * x.non_trivial for x in s.path if x.double is not None])


def steps(d: Dag, loop: Loop) -> Num:
    """Steps in which the threads of a loop combine their values, halving what is left each time."""
    return d.total([loop.size > float(1 << b) for b in range(10)])


def _scratch(a: ProgramAnalysis, target: Target, s: Store) -> Num:
    """Bytes through which the threads of a block combine their values."""
    d, loop = a.dag, combines(s)
    if loop is None:
        return d.zero
    dtype = s.written.buffer.dtype
    beside = d.product([x.size for x in s.path if x.thread in AXES and x.var is not loop.var])
    # As lowering places it: as if the half that adds were all threads.
    tree = beside * (loop.size + (loop.size > 1.0) * d.ceildiv(loop.size, 2.0)) * dt.nbytes(dtype)
    if target.base != "cuda" or loop.thread != AXES[0] or not dt.is_float(dtype) or dt.bits(dtype) < 32:
        return tree
    few = d.total([d.equal(loop.size, float(n)) for n in (1, 2, 4, 8, 16)])
    whole = d.equal(d.make("mod", loop.size, float(WARP)), 0.0)
    warps = loop.size / float(WARP)
    met = d.where(warps > 1.0, beside * warps * dt.nbytes(dtype), 0.0)
    return d.where(few, 0.0, d.where(whole, met, tree))


def _registers(a: ProgramAnalysis, stores: tuple[Store, ...]) -> tuple[Num, Num]:
    """Words of a thread's own buffers, and the registers that the compiler takes for them and for what else there is."""
    d = a.dag
    local = d.zero
    for b in buffers(a, stores, ("local",)):
        local = local + d.product(a.allocated(b)) * _words(b)
    for s in stores:
        if staged(s):  # the next version of the tile is on its way in registers
            local = local + two_versions(d, s) * d.product([x.size for x in tile_loops(s)]) * _words(s.written.buffer)
        elif combines(s) is not None:
            local = local + _words(s.written.buffer)
    return local, local + ADDRESSES


def _words(b: Buffer) -> float:
    return max(dt.nbytes(b.dtype) / 4, 0.5)


def index_extent(kernel: Kernel, tag: str) -> Poly:
    """Threads along an axis."""
    return kernel.extents.get(tag, ONE)
