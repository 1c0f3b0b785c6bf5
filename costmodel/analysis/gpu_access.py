"""Model the memory requests of a warp: access width, 32-byte sectors of device memory, shared-memory bank conflicts.

Addresses are computed for threads 0, 1, 2, 4, 8 and 16 of a warp.  If axes are split among threads by powers of two, as in the search
spaces, they determine all other addresses, because each bit of the thread index adds its own offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.costmodel.analysis.gpu_kernels import Kernel, index_extent, own_loops, pitches, tile_loops
from tunesmith.costmodel.analysis.program_analysis import Loop, ProgramAnalysis, Store, Use
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.gpu import SHARED_SCOPES, THREAD_AXES, WARP
from tunesmith.ir.poly import ONE, ZERO, Poly, Var, floordiv, mod, poly, substitute

BITS = 5
"""Bits of the lane index in a warp."""
SECTOR = 32
"""Bytes per transfer of device memory and the L2 cache."""
LINE = 128
"""Bytes of a line of the L1 cache."""
BANK = 4
"""Bytes of a shared-memory bank."""
WIDEST = 16
"""Bytes of the widest access of one thread."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The accesses of one block to one buffer that is not thread-local.

    Attributes:
        use: the accesses.
        each: requests of a thread in one run of its straight-line code.
        runs: runs of that code per thread.
        width: elements of a request.
        stride: elements between neighbouring threads.
        parts: transfers for a request of a warp: sectors of device memory, wavefronts of shared memory.
        lines: cache lines that a request of a warp touches; those of shared memory are its wavefronts.
        ideal: `parts` if the threads of the warp access neighbouring elements.
    """

    use: Use
    each: Num
    runs: Num
    width: Num
    stride: Num
    parts: Num
    lines: Num
    ideal: Num


def requests(a: ProgramAnalysis, kernel: Kernel, s: Store) -> list[Requests]:
    """The accesses of a block to memory shared by threads."""
    return [_request(a, kernel, s, u) for u in s.uses.values() if u.buffer.scope not in ("local", "register", "workspace")]


def _request(a: ProgramAnalysis, kernel: Kernel, s: Store, u: Use) -> Requests:
    d, tile = a.dag, tile_loops(s)
    pitch = pitches(a, u.buffer)
    width = _width(a, s, u, tile, pitch)
    runs = d.product([x.size for x in own_loops(s)]) / d.product([x.size for x in tile])
    each = d.product([d.where(s.indexed(u, x), x.size, 1.0) for x in tile]) / width
    steps = _thread_steps(a, kernel, s, u, pitch)
    nbytes = width * u.item
    active = d.minimum(kernel.threads, float(WARP))
    if u.buffer.scope in SHARED_SCOPES:
        parts = wavefronts(d, steps, width * (u.item / BANK), u.item / BANK)
        lines, ideal = parts, d.maximum(active * nbytes / float(BANK * 32), 1.0)
    else:
        parts, lines = (sectors(d, [x * float(u.item) for x in steps], nbytes, size) for size in (SECTOR, LINE))
        ideal = d.maximum(active * nbytes / float(SECTOR), 1.0)
    return Requests(u, each, runs, width, steps[0], parts, lines, ideal)


def _width(a: ProgramAnalysis, s: Store, u: Use, tile: Sequence[Loop], pitch: Sequence[Num]) -> Num:
    """Elements of an access: the largest contiguous and aligned vector."""
    d = a.dag
    if not tile or tile[0].kind != "vectorized" or u.item > WIDEST // 2:
        return d.one
    lane = tile[0]
    together = s.indexed(u, lane) * d.equal(s.stride(u, lane), 1.0)
    out = d.one
    n = 2
    while n * u.item <= WIDEST:
        whole = d.equal(d.make("mod", lane.size, float(n)), 0.0)
        if len(pitch) > 1:
            whole = whole * d.equal(d.make("mod", pitch[-2], float(n)), 0.0)
        out = d.where(whole, float(n), out)
        n *= 2
    return d.where(together, out, 1.0)


def _thread_steps(a: ProgramAnalysis, kernel: Kernel, s: Store, u: Use, pitch: Sequence[Num]) -> list[Num]:
    """Elements between thread 0 and threads 1, 2, 4, 8, 16 of a warp; 0 if there is no such thread."""
    d = a.dag
    own = {x.thread: x.var for x in s.loops if x.thread in THREAD_AXES}
    start: dict[Var, Poly] = {x.var: ZERO for x in s.path}
    out: list[Num] = []
    for b in range(BITS):
        at, rest = dict(start), poly(1 << b)
        for tag in THREAD_AXES:
            size = index_extent(kernel, tag)
            if tag in own:
                at[own[tag]] = mod(rest, size)
            rest = floordiv(rest, size) if size != ONE else rest
        moved = d.zero
        for e, p in zip(u.at[0], pitch, strict=True):
            if any(v in e.vars for v in own.values()):
                moved = moved + d.poly(substitute(e, at) - substitute(e, start)) * p
        out.append(d.maximum(moved, 0.0 - moved) * (kernel.threads > float(1 << b)))
    return out


def sectors(d: Dag, steps: Sequence[Num], nbytes: Num, size: int = SECTOR) -> Num:
    """Sectors of `size` bytes in the footprint of a warp whose threads access `nbytes` bytes each.

    Args:
        steps: bytes between thread 0 and threads 1, 2, 4, 8, 16.
    """
    span, pieces = nbytes, d.one
    for step in _sorted(d, steps):
        # A small step extends the current run; a large one starts another.
        near = 1.0 - (step > d.maximum(span, float(size)))
        pieces = d.where(near, pieces, pieces * 2.0)
        span = d.where(near * d.equal(pieces, 1.0), d.maximum(span, nbytes + step + (span - nbytes)), span)
    return pieces * d.ceildiv(span, float(size))


def wavefronts(d: Dag, steps: Sequence[Num], words: Num, word: float) -> Num:
    """Shared-memory passes of a warp request: one word per bank and pass; threads that access the same word share it.

    Args:
        steps: elements between thread 0 and threads 1, 2, 4, 8, 16.
        words: 4-byte words of a thread.
        word: words of an element.
    """
    # Requests of 8 and 16 bytes are served for half and quarter warps, from banks two and four times as wide.
    words = d.maximum(words, 1.0)
    units = [x * word / words for x in steps]
    inside = [d.one * (float(WARP >> b) > words) for b in range(BITS)]
    banks = float(WARP) / words
    units = [x * i for x, i in zip(units, inside, strict=True)]
    still = d.product([d.where(d.equal(x, 0.0), 2.0, 1.0) for x in units])
    met = d.zero
    for signs in itertools.product((0, 1, -1), repeat=BITS):
        first = next((x for x in signs if x), 0)
        if first != 1:
            continue
        apart = d.total([x * float(c) for x, c in zip(units, signs, strict=True) if c])
        pairs = 2.0 * 2 ** signs.count(0)
        met = met + d.equal(d.make("mod", apart, banks), 0.0) * (1.0 - d.equal(apart, 0.0)) * pairs
    degree = 1.0 + met / float(WARP) / still
    # Phases whose threads access the same words are merged; this is known for half of them on average.
    distinct = d.product([d.where(d.equal(x, 0.0), 1.0, 2.0) for x in steps]) * words / float(WARP)
    phases = d.minimum(words, d.maximum((words + distinct) * 0.5, 1.0))
    return phases * degree


def _sorted(d: Dag, xs: Sequence[Num]) -> list[Num]:
    """Sort five numbers in ascending order with a sorting network."""
    out = list(xs)
    for i, j in ((0, 1), (3, 4), (2, 4), (2, 3), (1, 4), (0, 3), (0, 2), (1, 3), (1, 2)):
        out[i], out[j] = d.minimum(out[i], out[j]), d.maximum(out[i], out[j])
    return out
