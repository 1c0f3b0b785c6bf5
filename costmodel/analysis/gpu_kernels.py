"""Derive the kernels of a parametric GPU program: grid, threads, shared memory, registers and occupancy.

Quantities are expressions over Params.  A kernel is a root statement of the function.  Shared memory is exact: it is counted as lowering
allocates it.  Registers are an estimate for ranking; they do not decide legality, because the compiler fits any kernel by spilling.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.codegen.c.registers import ADDRESSES
from tunesmith.costmodel.analysis.program_analysis import Loop, ProgramAnalysis, Store
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, THREAD_AXES, WARP, is_virtual_axis
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ir.target.occupancy import register_cap, resident_blocks
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype as dt

ALIGNMENT = 16
"""Arrays in shared memory are rounded up to this many bytes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel.

    Attributes:
        stores: its blocks, in order.
        extents: extent of each thread axis that it uses.
        grid: number of blocks.
        threads: threads per block.
        shared: shared-memory bytes per block.
        local: 32-bit words of thread-local buffers.
        registers: estimated registers per thread.
        cap: maximum of registers per thread for this block size.
        resident: resident blocks per multiprocessor, at least 1.
        waves: rounds needed to run all blocks.
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
    """Estimated registers per thread of each kernel of a concrete function.

    Args:
        func: loops around blocks, without Params.
        target: a GPU.
    """
    a = ProgramAnalysis(func, ())
    found = [k.registers.const for k in kernels(a, target)]
    return [int(n) for n in found if n is not None]


def staged(s: Store) -> bool:
    """Whether a block copies a tile from device memory to shared memory."""
    return s.written.buffer.scope in SHARED_SCOPES and any(u.reads and u.buffer.scope == "global" for u in s.uses.values())


def combines(s: Store) -> Loop | None:
    """The thread loop of a cross-thread reduction, None if the block has none."""
    return next((x for x in s.loops if x.thread in THREAD_AXES and s.reduces(x)), None)


def tile_loops(s: Store) -> list[Loop]:
    """Loops that become straight-line code of a thread: the innermost vectorised and unrolled loops, and virtual threads."""
    out: list[Loop] = []
    for x in s.loops:
        if x.kind not in ("vectorized", "unrolled"):
            if x.thread in THREAD_AXES and not combines(s):
                continue
            break
        out.append(x)
    return out + [x for x in s.loops if is_virtual_axis(x.thread)]


def own_loops(s: Store) -> list[Loop]:
    """The loops that each thread executes itself."""
    return [x for x in s.loops if x.thread is None or is_virtual_axis(x.thread)]


def _kernel(a: ProgramAnalysis, target: Target, stores: tuple[Store, ...]) -> Kernel:
    d = a.dag
    extents: dict[str, Poly] = {}
    sizes: dict[str, Num] = {}
    for s in stores:
        for x in s.path:
            if x.thread in (*BLOCK_AXES, *THREAD_AXES):
                extents.setdefault(x.thread, x.extent)
                sizes[x.thread] = d.maximum(sizes.get(x.thread, d.one), x.size)
    grid = d.product([n for tag, n in sizes.items() if tag in BLOCK_AXES])
    threads = d.product([n for tag, n in sizes.items() if tag in THREAD_AXES])
    shared = _shared_bytes(a, target, stores)
    local, registers = _registers(a, stores)
    cap = register_cap(d, target, threads, 1.0)
    resident = d.maximum(resident_blocks(d, target, threads, d.minimum(registers, cap), shared), 1.0)
    waves = d.ceildiv(grid, resident * float(target.num_cores))
    axes = {tag: e for tag, e in extents.items() if tag in THREAD_AXES}
    return Kernel(stores, axes, grid, threads, shared, local, registers, cap, resident, waves)


def buffers(a: ProgramAnalysis, stores: tuple[Store, ...], scopes: tuple[str, ...]) -> list[Buffer]:
    """Intermediates in these scopes that the stores use, in order."""
    return list(dict.fromkeys([b for s in stores for b in s.uses if b in a.reuse_levels and b.scope in scopes]))


def pitches(a: ProgramAnalysis, b: Buffer) -> tuple[Num, ...]:
    """Strides in elements of the dimensions of a buffer, as allocated."""
    d = a.dag
    shape = a.allocated(b) if b in a.reuse_levels and b.scope != "global" else tuple([d.poly(n) for n in b.shape])
    out = [d.one] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
        if i == len(shape) - 2:
            out[i] = out[i] + d.poly(b.pad)
        for at in b.align:
            if at.axis == i - len(shape):
                factor = d.poly(at.factor)
                out[i] = d.ceildiv(out[i] - d.poly(at.offset), factor) * factor + d.poly(at.offset)
    return tuple(out)


def _shared_bytes(a: ProgramAnalysis, target: Target, stores: tuple[Store, ...]) -> Num:
    d, unit = a.dag, float(ALIGNMENT)
    out = d.zero
    for b in buffers(a, stores, SHARED_SCOPES):
        shape = a.allocated(b)
        size = pitches(a, b)[0] * shape[0] if shape else d.one
        size = size * (1.0 + d.largest([two_versions(d, s) for s in stores if staged(s) and s.written.buffer is b]))
        out = out + d.ceildiv(size * dt.nbytes(b.dtype), unit) * unit
    for s in stores:
        out = out + d.ceildiv(_scratch(a, target, s), unit) * unit
    return out


def two_versions(d: Dag, s: Store) -> Num:
    """1 if the tile that a block fills is double-buffered: one version is filled while threads use the other."""
    return d.largest([d.equal(x.double, 2.0) * x.non_trivial for x in s.path if x.double is not None])


def steps(d: Dag, loop: Loop) -> Num:
    """Steps of a tree reduction across the threads of a loop."""
    return d.total([loop.size > float(1 << b) for b in range(10)])


def _scratch(a: ProgramAnalysis, target: Target, s: Store) -> Num:
    """Shared-memory bytes of a block's cross-thread reduction."""
    d, loop = a.dag, combines(s)
    if loop is None:
        return d.zero
    dtype = s.written.buffer.dtype
    others = d.product([x.size for x in s.path if x.thread in THREAD_AXES and x.var is not loop.var])
    tree = others * loop.size * dt.nbytes(dtype)
    if target.base != "cuda" or loop.thread != THREAD_AXES[0] or not dt.is_float(dtype) or dt.bits(dtype) < 32:
        return tree
    few = d.total([d.equal(loop.size, float(n)) for n in (1, 2, 4, 8, 16)])
    whole = d.equal(d.make("mod", loop.size, float(WARP)), 0.0)
    warps = loop.size / float(WARP)
    met = d.where(warps > 1.0, others * warps * dt.nbytes(dtype), 0.0)
    return d.where(few, 0.0, d.where(whole, met, tree))


def _registers(a: ProgramAnalysis, stores: tuple[Store, ...]) -> tuple[Num, Num]:
    """Words of thread-local buffers, and the estimated registers per thread."""
    d = a.dag
    local = d.zero
    for b in buffers(a, stores, ("local",)):
        local = local + d.product(a.allocated(b)) * _words(b)
    for s in stores:
        if staged(s):  # the next version of the tile is in flight in registers
            local = local + two_versions(d, s) * d.product([x.size for x in tile_loops(s)]) * _words(s.written.buffer)
        elif combines(s) is not None:
            local = local + _words(s.written.buffer)
    return local, local + float(ADDRESSES)


def _words(b: Buffer) -> float:
    return max(dt.nbytes(b.dtype) / 4, 0.5)


def index_extent(kernel: Kernel, tag: str) -> Poly:
    """Number of threads along an axis."""
    return kernel.extents.get(tag, ONE)
