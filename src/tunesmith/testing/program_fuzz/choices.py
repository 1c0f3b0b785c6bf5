"""Draw weighted random choices from a named random stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tunesmith.support.seeds import stream

T = TypeVar("T")


class Choices:
    """Random draws that depend only on a seed and a path of names."""

    def __init__(self, seed: int, *names: str | int) -> None:
        self.rng = stream(seed, "program_fuzz", *names)

    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return bool(self.rng.random() < p)

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def one(self, xs: Sequence[T]) -> T:
        """A random element of the non-empty sequence `xs`."""
        return xs[int(self.rng.integers(len(xs)))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """A random key, with probability proportional to its weight."""
        at = float(self.rng.random()) * sum(weights.values())
        for key, w in weights.items():
            at -= w
            if at < 0:
                return key
        return next(iter(weights))

    def shuffled(self, xs: Sequence[T]) -> list[T]:
        """`xs` in random order."""
        return [xs[int(i)] for i in self.rng.permutation(len(xs))]
