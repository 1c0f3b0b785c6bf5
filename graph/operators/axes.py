"""Normalise axis attributes: negative axes count from the end, normalised axes are positions from 0."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.support.errors import ScriptError


def axis_of(axis: int, rank: int) -> int:
    """The position of an axis.  ScriptError if the axis does not exist."""
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise ScriptError(
            f"axis {axis!r} is not an axis of {rank} dimensions; axes are {-rank} to {rank - 1}" if rank else "a scalar has no axis"
        )
    return axis % rank


def axes_of(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """The positions of axes, in the given order.  ScriptError if an axis does not exist or is repeated."""
    positions = tuple([axis_of(a, rank) for a in ([axes] if isinstance(axes, int) else axes)])
    if len(set(positions)) != len(positions):
        raise ScriptError(f"axes {axes} contain an axis twice")
    return positions


def permutation_of(axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The operand axis of each result axis of a permute_dims; None reverses the axes.  ScriptError if it is no permutation."""
    if axes is None:
        return tuple(range(rank))[::-1]
    order = axes_of(axes, rank)
    if len(order) != rank:
        raise ScriptError(f"axes {axes} must contain each of the {rank} axes once")
    return order
