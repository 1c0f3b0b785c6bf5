"""Extract features of every buffer store and its loops: those of Ansor and TenSet, and additional ones.

Features are expressions over Params.  A store is a block.  Its row has a *head* (operation counts, loop annotations, waste, registers,
allocation) and a group of columns for each of its five largest buffers (bytes, cache lines, reuse, stride), largest first.  The groups
are those of Zheng et al., "Ansor" (OSDI 2020, appendix B); additional are the share of useful iterations, recomputation, registers and
scopes, and the GPU columns.  Data-dependent choices are arithmetic: sorting is by ranks, and leaving a loop early is a mask that stays
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.costmodel.analysis.operation_kinds import COUNTS
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store, Use
from tunesmith.costmodel.features.gpu_features import gpu_features
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.stmt import TENSORIZED
from tunesmith.ir.target.target import Target

SCHEMA_VERSION = 3
"""Incremented whenever a column changes its meaning, so that stored features of different versions are not mixed."""
LINE = 64
"""Bytes of a cache line, and of the vector registers that register counts refer to."""
BUFFERS = 5
CURVE = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A feature.

    Attributes:
        name: unique in its row.
        log: stored as log2(value + 1).
        adds: the values of a program's stores can be summed.
    """

    name: str
    log: bool = True
    adds: bool = False


def _kind_columns(tag: str) -> list[Column]:
    return [Column(f"{tag}_num", log=False), Column(f"{tag}_prod"), Column(f"{tag}_len")]


HEAD = (
    *[Column(name, adds=True) for name in COUNTS],
    Column("work", adds=True),
    Column("iterations", adds=True),
    Column("executed", adds=True),
    *_kind_columns("vec"),
    *_kind_columns("unr"),
    *_kind_columns("par"),
    Column("guarded", log=False),
    Column("useful", log=False),
    Column("recompute"),
    Column("loops", log=False),
    Column("reduction"),
    Column("tile"),
    Column("inner_trip"),
    Column("prefetch", log=False),
    Column("alloc_bytes"),
    Column("alloc_times"),
    Column("register_elements"),
    Column("register_vectors"),
    Column("writes_register", log=False),
    Column("writes_workspace", log=False),
    Column("reads_register", log=False),
    Column("reads_workspace", log=False),
)
"""work: operations executed, plus one for each store; executed: iterations that pass the guards; *_num, *_prod, *_len: number, product
and innermost (for parallel loops outermost) extent of vectorised, unrolled and parallel loops; useful: executed / iterations;
recompute: executed / instances of the block; reduction: product of the reduction loops; tile: product of vectorised and unrolled
loops; inner_trip: extent of the innermost serial loop; alloc_*: bytes of the written intermediate as allocated, and how often it is
filled; register_*: size of the register buffers of the store (on a GPU those of a thread), in elements and in vectors of 64 bytes."""

ACCESS = (
    Column("reads", log=False),
    Column("writes", log=False),
    Column("both", log=False),
    Column("local", log=False),
    Column("bytes", adds=True),
    Column("unique_bytes", adds=True),
    Column("lines", adds=True),
    Column("unique_lines", adds=True),
    Column("reuse_loop", log=False),
    Column("reuse_serial", log=False),
    Column("reuse_none", log=False),
    Column("reuse_iterations"),
    Column("reuse_bytes"),
    Column("reuse_count"),
    Column("bytes_by_reuse"),
    Column("unique_bytes_by_reuse"),
    Column("lines_by_reuse"),
    Column("unique_lines_by_reuse"),
    Column("stride"),
)
"""local: not in global memory; bytes, lines: accessed, with repetition; unique_*: without; reuse_*: kind, distance (iterations and
bytes between two uses) and number of uses, at the innermost loop that repeats the access; stride: in elements, of the innermost loop
that the access depends on."""

GPU = (
    Column("gpu.kernel", log=False),
    Column("gpu.blocks"),
    Column("gpu.threads"),
    Column("gpu.thread_x"),
    Column("gpu.shared_bytes"),
    Column("gpu.local_words"),
    Column("gpu.registers"),
    Column("gpu.spilled"),
    Column("gpu.resident", log=False),
    Column("gpu.occupancy", log=False),
    Column("gpu.waves"),
    Column("gpu.busy", log=False),
    Column("gpu.virtual"),
    Column("gpu.own"),
    Column("gpu.combines"),
    Column("gpu.versions", log=False),
    Column("gpu.writes_shared", log=False),
    Column("gpu.reads_shared", log=False),
    Column("gpu.global_stride"),
    Column("gpu.global_vector", log=False),
    Column("gpu.global_excess"),
    Column("gpu.global_requests", adds=True),
    Column("gpu.sectors", adds=True),
    Column("gpu.shared_stride"),
    Column("gpu.shared_vector", log=False),
    Column("gpu.shared_excess"),
    Column("gpu.shared_requests", adds=True),
    Column("gpu.wavefronts", adds=True),
)
"""All 0 except for GPU programs.  Of the kernel: its number, counted from 1; blocks, threads, bytes of shared memory; words of thread-local
buffers, estimated registers, and the number that does not fit; resident: resident blocks per multiprocessor; occupancy: resident warps /
maximum of warps; busy: share of active multiprocessors in the last round, with one block per round.  Of the block: virtual threads,
iterations per thread, threads of a cross-thread reduction, versions of a tile, scopes.  Of its accesses to device memory and to shared
memory: maximum stride in elements between neighbouring threads and maximum bytes of a thread's request; excess: sectors of 32 bytes or
passes of a warp request / their minimum for contiguous accesses (the maximum over accesses); and the numbers of warp requests, sectors
and passes."""


def columns(curve: bool = False) -> tuple[Column, ...]:
    """The columns of a store's row."""
    points = [Column(f"intensity{i}", log=False) for i in range(CURVE)] if curve else []
    return (*HEAD, *points, *[Column(f"buffer{b}.{c.name}", c.log, c.adds) for b in range(BUFFERS) for c in ACCESS], *GPU)


def extract(analysis: ProgramAnalysis, curve: bool = False, target: Target | None = None) -> list[list[Num]]:
    """The features of each store, in program order, before the logarithm of `Column.log`.

    Args:
        analysis: the program.
        curve: with the arithmetic-intensity curve, which makes the graph three times as large.
        target: a GPU fills the columns of `GPU`.
    """
    rows = [_store(analysis, s, curve) for s in analysis.stores]
    if target is None or not target.is_gpu:
        return [row + [analysis.dag.zero] * len(GPU) for row in rows]
    found = gpu_features(analysis, target)
    return [row + [values[c.name.removeprefix("gpu.")] for c in GPU] for row, values in zip(rows, found, strict=True)]


def _store(a: ProgramAnalysis, s: Store, curve: bool) -> list[Num]:
    values = _head(a, s)
    row = [values[c.name] for c in HEAD]
    if curve:
        row += _curve(a.dag, s)
    groups = [_access(a, s, u) for u in s.uses.values()]
    keys = [g[ACCESS_INDEX["unique_bytes"]] for g in groups]
    return row + _sorted(a.dag, keys, groups)


ACCESS_INDEX = {c.name: i for i, c in enumerate(ACCESS)}


def _head(a: ProgramAnalysis, s: Store) -> dict[str, Num]:
    d = a.dag
    out = {name: s.executed * s.counts[name] for name in COUNTS}
    out["work"] = s.executed * (1 + s.flops + s.counts["integer"])
    out["iterations"], out["executed"] = s.total, s.executed
    for tag, kind in (("vec", "vectorized"), ("unr", "unrolled"), ("par", "parallel")):
        out |= _loops_of_kind(d, s, tag, kind)
    out["guarded"], out["useful"], out["recompute"] = s.guarded, s.useful, s.executed / s.instances
    out["loops"] = d.total([x.non_trivial for x in s.loops])
    out["reduction"] = d.product([x.size for x in s.loops if s.reduces(x)])
    out["tile"] = d.product([x.size for x in s.loops if x.kind in ("vectorized", "unrolled", TENSORIZED)])
    trip = d.zero
    for x in s.loops:
        if x.kind == "serial":
            trip = d.where(trip, trip, x.non_trivial * x.size)
    out["inner_trip"] = trip
    hinted = any(k == "prefetch" for k, _ in s.block.annotations)
    out["prefetch"] = d.largest([d.const(hinted), *[x.non_trivial for x in s.loops if x.prefetch]])
    return out | _memory(a, s)


def _loops_of_kind(d: Dag, s: Store, tag: str, kind: str) -> dict[str, Num]:
    number, prod, length = d.zero, d.one, d.zero
    for x in s.loops:
        if x.kind == kind:
            number, prod = number + x.non_trivial, prod * x.size
            length = d.where(x.non_trivial, x.size, length) if kind == "parallel" else d.where(length, length, x.non_trivial * x.size)
    return {f"{tag}_num": number, f"{tag}_prod": d.where(number, prod, 0.0), f"{tag}_len": length}


def _memory(a: ProgramAnalysis, s: Store) -> dict[str, Num]:
    d, written = a.dag, s.written.buffer
    out = {"alloc_bytes": d.zero, "alloc_times": d.zero}
    if written in a.reuse_levels:
        out["alloc_bytes"] = d.product(a.allocated(written)) * s.written.item
        out["alloc_times"] = d.product([x.size for x in s.loops[a.reuse_level(s, written) :]])
    elements, vectors = d.zero, d.zero
    for u in s.uses.values():
        if u.buffer.scope in ("register", "local") and u.buffer in a.reuse_levels:
            extents = a.allocated(u.buffer)
            elements = elements + d.product(extents)
            vectors = vectors + (d.product(extents[:-1]) * d.ceildiv(extents[-1] * u.item, LINE) if extents else d.one)
    out["register_elements"], out["register_vectors"] = elements, vectors
    for name, scopes in (("register", ("register", "local")), ("workspace", ("workspace",))):
        out[f"writes_{name}"] = d.const(any(u.writes and u.buffer.scope in scopes for u in s.uses.values()))
        out[f"reads_{name}"] = d.const(any(u.reads and u.buffer.scope in scopes for u in s.uses.values()))
    return out


def _access(a: ProgramAnalysis, s: Store, u: Use) -> list[Num]:
    d, top = a.dag, len(s.loops)
    accessed, unique = s.total * u.item, s.nbytes(u, top)
    stride, ratio = _stride(d, s, u)
    lines = d.maximum(s.total / ratio * d.minimum(1.0, stride * (u.item / LINE)), 1.0)
    extents = s.extents(u, top)
    rows = d.product(extents[:-1])
    unique_lines = rows * d.maximum(1.0, extents[-1] * (u.item / LINE)) if extents else d.one
    kind, iterations, distance, count = _reuse(a, s, u)
    by = d.maximum(count, 1.0)
    in_loop, serial = d.equal(kind, 1.0), d.equal(kind, 2.0)
    return [
        d.const(u.reads and not u.writes),
        d.const(u.writes and not u.reads),
        d.const(u.reads and u.writes),
        d.const(u.buffer.scope != "global"),
        accessed,
        unique,
        lines,
        unique_lines,
        in_loop,
        serial,
        1.0 - d.maximum(in_loop, serial),
        iterations,
        distance,
        count,
        accessed / by,
        unique / by,
        lines / by,
        unique_lines / by,
        stride,
    ]


def _stride(d: Dag, s: Store, u: Use) -> tuple[Num, Num]:
    """Stride at the innermost loop that the access depends on, and the iterations of the loops inside it."""
    stride, found, ratio = d.zero, d.zero, d.one
    for x in s.loops:
        hit = x.non_trivial * s.indexed(u, x)
        stride = d.where(found, stride, hit * s.stride(u, x))
        found = d.maximum(found, hit)
        ratio = d.where(found, ratio, ratio * x.size)
    return stride, ratio


def _reuse(a: ProgramAnalysis, s: Store, u: Use) -> tuple[Num, Num, Num, Num]:
    """Kind (0 none, 1 a loop repeats the access, 2 another block accesses the buffer), iterations and bytes between, count.

    Determined by the innermost loop, of more than one iteration, that has either kind; outer loops are then ignored.
    """
    d = a.dag
    kind, iterations, distance, count, decided = d.zero, d.one, d.zero, d.one, d.zero
    inside, inside_bytes = d.one, _all_bytes(d, s, 0)
    for k, x in enumerate(s.loops):
        uses = s.indexed(u, x)
        here, here_bytes = s.iterations[k + 1], _all_bytes(d, s, k + 1)
        open_ = x.non_trivial * (1.0 - decided)
        repeated = open_ * (1.0 - uses)
        kind, count = d.where(repeated, 1.0, kind), d.where(repeated, x.size, count)
        iterations, distance = d.where(repeated, inside, iterations), d.where(repeated, inside_bytes, distance)
        decided = d.maximum(decided, repeated)
        others = a.others(s, x, u.buffer)
        if others:
            shared = open_ * uses
            kind, count = d.where(shared, 2.0, kind), d.where(shared, float(others), count)
            iterations, distance = d.where(shared, here, iterations), d.where(shared, here_bytes, distance)
            decided = d.maximum(decided, shared)
        inside, inside_bytes = here, here_bytes
    return kind, iterations, distance, count


def _all_bytes(d: Dag, s: Store, level: int) -> Num:
    return d.total([s.nbytes(u, level) for u in s.uses.values()])


def _curve(d: Dag, s: Store) -> list[Num]:
    """log2 of operations per byte at ten points, evenly spaced in log2 of operations, linear between the loop levels (Ansor)."""
    flops = float(max(s.flops, 1))
    xs = [d.slog2(flops * n) for n in s.iterations]
    ys = [d.slog2(flops * n / _all_bytes(d, s, k)) for k, n in enumerate(s.iterations)]
    points = []
    for q in range(CURVE):
        x = xs[-1] * ((q + 1) / CURVE)
        y = ys[-1]
        for k in range(len(xs) - 2, -1, -1):
            # A unit loop gives two knots with the same x; the segment between them has no length and is skipped.
            slope = (ys[k + 1] - ys[k]) / d.maximum(xs[k + 1] - xs[k], 1e-9)
            inside = d.where(xs[k + 1] > xs[k], ys[k] + (x - xs[k]) * slope, ys[k])
            y = d.where(x > xs[k + 1], y, inside)
        points.append(d.where(x > xs[0], y, ys[0]))
    return points


def _sorted(d: Dag, keys: Sequence[Num], groups: Sequence[Sequence[Num]]) -> list[Num]:
    """The groups of the `BUFFERS` largest keys in descending order, stable, padded with zeros."""
    n = len(groups)
    ranks = []
    for i in range(n):
        rank = d.zero
        for j in range(n):
            if j < i:
                rank = rank + (1.0 - (keys[i] > keys[j]))
            elif j > i:
                rank = rank + (keys[j] > keys[i])
        ranks.append(rank)
    out: list[Num] = []
    for position in range(BUFFERS):
        if position >= n:
            out += [d.zero] * len(ACCESS)
            continue
        here = [d.equal(r, float(position)) for r in ranks]
        for c in range(len(ACCESS)):
            value = groups[-1][c]
            for i in range(n - 2, -1, -1):
                value = d.where(here[i], groups[i][c], value)
            out.append(value)
    return out
