"""Axes of attributes: negative ones count from the end; inside they are positions from 0."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.support.errors import ScriptError


def axis_of(axis: int, rank: int) -> int:
    """The position of one axis.  ScriptError if there is none."""
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise ScriptError(
            f"axis {axis!r} is no axis of {rank} dimensions; axes go from {-rank} to {rank - 1}" if rank else "a scalar has no axis"
        )
    return axis % rank


def axes_of(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """The positions of axes, in the order given.  ScriptError if one is no axis or comes twice."""
    positions = tuple([axis_of(a, rank) for a in ([axes] if isinstance(axes, int) else axes)])
    if len(set(positions)) != len(positions):
        raise ScriptError(f"axes {axes} name an axis twice")
    return positions


def loop_names(rank: int) -> list[str]:
    """The names that `te.compute` gives the loops of a tensor."""
    return list("ijkl"[:rank]) if rank <= 4 else [f"i{d}" for d in range(rank)]
