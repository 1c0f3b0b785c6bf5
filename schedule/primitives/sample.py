"""Sample the tunable integers of a schedule: categorical choices and tile sizes.

In parametric mode the results are Params; in concrete mode they are recorded decisions or seeded draws.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.poly import Index, Poly, ceildiv, is_param_only, mod, poly, product
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

TILE_DOMAIN = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8), 160, 192, 224, 256, 320, 384, 448, 512)
"""Default tile sizes: dense for register tiles, sparser for cache blocks."""
MAX_PARTS = 64
"""Limit of the loops of a tiling: loop nests are traversed by recursion."""


@primitive
def sample_categorical(s: ScheduleState, candidates: Sequence[int], name: str = "choice", decision: Sequence[int] | None = None) -> IntRV:
    """One of `candidates` (integers).

    Requires:
        admissible: there is at least one candidate, and none is negative.
        decision: a given decision is one integer, from 0 to 2**31 - 1.
    """
    if not candidates:
        raise s.refuse("admissible", "there are no candidates to choose from")
    if min(candidates) < 0:
        raise s.refuse("admissible", f"a choice is an integer >= 0, got {list(candidates)}")
    return s.sample([name], [tuple(candidates)], decision)[0]


@primitive
def sample_tile(
    s: ScheduleState,
    loop: LoopRV,
    n: int,
    name: str = "tile",
    domains: Sequence[Sequence[int]] | None = None,
    waste: float = 0.25,
    slack: int = 4,
    decision: Sequence[int] | None = None,
) -> list[IntRV]:
    """The n - 1 inner factors of an *imperfect* tiling of `loop`; the outermost extent is derived by `split`.

    Args:
        loop: the loop to be tiled.
        n: number of loops after the split, at least 2.
        name: prefix of the Params' names.
        domains: values to try for each factor, default `TILE_DOMAIN`.
        waste: fraction of the extent by which the tiles may exceed it,
        slack: plus this number of iterations.
    Requires:
        parts: n is from 2 to 64, with one domain for each of the n - 1 factors.
        waste: the tiles cover at most (1 + waste) * extent + slack iterations.  Not checked for an extent with a dynamic size.
        loop-exists: the loop is still in the program.
        admissible: no domain is empty, and some draw meets the waste bound.
        decision: a given decision is n - 1 integers from 1 to 2**31 - 1.
    """
    extent = s.loop(loop).extent
    _check_parts(s, n)
    domains = [TILE_DOMAIN] * (n - 1) if domains is None else domains
    if len(domains) != n - 1:
        raise s.refuse("parts", f"a tiling into {n} loops needs {n - 1} domains, got {len(domains)}")
    _require_values(s, domains)

    def accept(d: Sequence[int]) -> bool:
        return covers(extent, product(d), waste, slack)

    out = s.sample([f"{name}{i + 1}" for i in range(n - 1)], domains, decision, accept)
    _require_positive(s, out)
    if is_param_only(extent):
        over = _excess(extent, product([v.expr for v in out]), waste, slack)
        s.require("le0", over, "waste", f"the tiles of {loop!r} exceed its extent too far")
    return out


def covers(extent: Index, tile: Index, waste: float = 0.25, slack: int = 4) -> bool:
    """Whether tiles of a size cover at most (1 + waste) * extent + slack iterations, or the extent has a dynamic size."""
    over = _excess(extent, tile, waste, slack).const
    return over is None or over <= 0


def _excess(extent: Index, tile: Index, waste: float, slack: int) -> Poly:
    """16 times the number of iterations by which tiles of a size exceed (1 + waste) * extent + slack."""
    tiles, n = poly(tile), poly(extent)
    return (ceildiv(n, tiles) * tiles - n) * 16 - n * round(waste * 16) - 16 * slack


@primitive
def sample_perfect_tile(
    s: ScheduleState, loop: LoopRV, n: int, max_innermost_factor: int = 16, name: str = "tile", decision: Sequence[int] | None = None
) -> list[IntRV]:
    """The n - 1 inner factors of a tiling that divides `loop` evenly (TVM returns n; here `split` derives the outermost).

    Requires:
        parts: n is from 2 to 64.
        divides: the product of the factors divides the extent.
        loop-exists: the loop is still in the program.
        admissible: no domain is empty, and some draw divides the extent.
        decision: a given decision is n - 1 integers from 1 to 2**31 - 1.
    """
    extent = s.loop(loop).extent
    _check_parts(s, n)
    size = extent.const  # only the domain depends on the workload: values outside it are valid too
    inner = tuple(d for d in (TILE_DOMAIN if size is None else range(1, size + 1)) if size is None or size % d == 0)
    last = tuple(d for d in inner if d <= max_innermost_factor)
    _require_values(s, [last])

    def accept(d: Sequence[int]) -> bool:
        return mod(extent, product(d)).const in (0, None)

    out = s.sample([f"{name}{i + 1}" for i in range(n - 1)], [inner] * (n - 2) + [last], decision, accept)
    _require_positive(s, out)
    s.require("eq0", mod(extent, product([v.expr for v in out])), "divides", f"the tiles of {loop!r} do not divide its extent {extent!r}")
    return out


def _check_parts(s: ScheduleState, n: int) -> None:
    if not 2 <= n <= MAX_PARTS:
        raise s.refuse("parts", f"a tiling has 2 to {MAX_PARTS} loops, got {n}")


def _require_values(s: ScheduleState, domains: Sequence[Sequence[int]]) -> None:
    if not all(domains):
        raise s.refuse("admissible", "there are no values to choose a tile from")


def _require_positive(s: ScheduleState, factors: Sequence[IntRV]) -> None:
    for f in factors:
        s.require("le0", 1 - f.expr, "decision", "a tile has at least one iteration", f.expr)
