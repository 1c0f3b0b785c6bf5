"""What a warp asks of memory at once: width of a thread's accesses, 32-byte sectors of device memory, conflicts of shared-memory banks.

The address of a thread is looked at for threads 0, 1, 2, 4, 8 and 16 of a warp.  Where axes are split among threads by powers of two, which
they are in the spaces, all other addresses follow, since each bit of the thread's number adds its own distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.costmodel.analysis.gpu_kernels import AXES, WARP, Kernel, index_extent, own_loops, pitches, tile_loops
from tunesmith.costmodel.analysis.program_analysis import SHARED, Loop, ProgramAnalysis, Store, Use
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.ir.poly import ONE, ZERO, Poly, Var, floordiv, mod, poly, substitute

BITS = 5
"""Bits of the number of a thread in a warp."""
SECTOR = 32
"""Bytes that device memory and the L2 cache move at once."""
BANK = 4
"""Bytes of a shared-memory bank."""
WIDEST = 16
"""Bytes of the widest access of a thread."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The accesses of one block to one buffer that is not a thread's own.

    Attributes:
        use: which.
        each: requests of a thread for one run of its straight-line code.
        runs: how often a thread runs that.
        width: elements of a request.
        stride: elements between neighbouring threads.
        parts: pieces that the memory moves for a request of a warp: sectors of device memory, wavefronts of shared memory.
        ideal: parts of a request of a warp whose threads access neighbouring elements.
    """

    use: Use
    each: Num
    runs: Num
    width: Num
    stride: Num
    parts: Num
    ideal: Num


def requests(a: ProgramAnalysis, kernel: Kernel, s: Store) -> list[Requests]:
    """The accesses of a block to memory that threads have in common."""
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
    if u.buffer.scope in SHARED:
        parts = wavefronts(d, steps, width * (u.item / BANK), u.item / BANK)
        ideal = d.maximum(active * nbytes / float(BANK * 32), 1.0)
    else:
        parts = sectors(d, [x * float(u.item) for x in steps], nbytes)
        ideal = d.maximum(active * nbytes / float(SECTOR), 1.0)
    return Requests(u, each, runs, width, steps[0], parts, ideal)


def _width(a: ProgramAnalysis, s: Store, u: Use, tile: Sequence[Loop], pitch: Sequence[Num]) -> Num:
    """Elements of an access: as many as lie together and begin at a multiple of themselves."""
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
    """Elements between thread 0 and threads 1, 2, 4, 8, 16 of a warp; 0 where there is no such thread."""
    d = a.dag
    own = {x.thread: x.var for x in s.loops if x.thread in AXES}
    start: dict[Var, Poly] = {x.var: ZERO for x in s.path}
    out: list[Num] = []
    for b in range(BITS):
        at, rest = dict(start), poly(1 << b)
        for tag in AXES:
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


def sectors(d: Dag, steps: Sequence[Num], nbytes: Num) -> Num:
    """32-byte sectors that the threads of a warp touch, who access `nbytes` bytes each.

    Args:
        steps: bytes between thread 0 and threads 1, 2, 4, 8, 16.
    """
    span, pieces = nbytes, d.one
    for step in _sorted(d, steps):
        # What follows closely makes the run longer; what is far away begins another one.
        near = 1.0 - (step > d.maximum(span, float(SECTOR)))
        pieces = d.where(near, pieces, pieces * 2.0)
        span = d.where(near * d.equal(pieces, 1.0), d.maximum(span, nbytes + step + (span - nbytes)), span)
    return pieces * d.ceildiv(span, float(SECTOR))


def wavefronts(d: Dag, steps: Sequence[Num], words: Num, word: float) -> Num:
    """Passes of shared memory for a request of a warp: of each bank one word a pass; threads that want the same word share it.

    Args:
        steps: elements between thread 0 and threads 1, 2, 4, 8, 16.
        words: 4-byte words of a thread.
        word: words of an element.
    """
    # Requests of 8 and 16 bytes are served for halves and quarters of a warp, from banks that are so much wider.
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
    # Phases whose threads want the same words are served together, as far as is known by half of them.
    distinct = d.product([d.where(d.equal(x, 0.0), 1.0, 2.0) for x in steps]) * words / float(WARP)
    phases = d.minimum(words, d.maximum((words + distinct) * 0.5, 1.0))
    return phases * degree


def _sorted(d: Dag, xs: Sequence[Num]) -> list[Num]:
    """Five numbers in ascending order."""
    out = list(xs)
    for i, j in ((0, 1), (3, 4), (2, 4), (2, 3), (1, 4), (0, 3), (0, 2), (1, 3), (1, 2)):
        out[i], out[j] = d.minimum(out[i], out[j]), d.maximum(out[i], out[j])
    return out
