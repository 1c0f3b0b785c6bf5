"""Plan vectors with a small constant stride as contiguous loads and shuffles, which are faster than a gather."""

from __future__ import annotations

STRIDES = (-1, 2, 3, 4)
"""Strides for which the contiguous loads, one for each element of the stride, are fewer than the elements of a gather."""


def strided_pieces(lanes: int, stride: int) -> list[tuple[int, list[int]]]:
    """Contiguous loads, and how each is shuffled with the lanes found before; no element before the first or after the last one is read.

    Args:
        lanes: number of elements.
        stride: one of `STRIDES`.
    Returns:
        The first element of each load, and the lanes of the vector so far followed by the loaded one, `lanes` numbers; those of the first
        load are of the loaded vector alone.
    """
    if stride < 0:
        return [(1 - lanes, list(range(lanes))[::-1])]
    last = stride * (lanes - 1)
    out: list[tuple[int, list[int]]] = []
    done = 0
    for piece in range(stride):
        first = min(piece * lanes, last + 1 - lanes)
        held = [lane for lane in range(done, lanes) if stride * lane < first + lanes]
        picks = [*range(done), *[(lanes if out else 0) + stride * lane - first for lane in held]]
        out.append((first, picks + [0] * (lanes - len(picks))))
        done += len(held)
    return out
