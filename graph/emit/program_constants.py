"""Provide the parts common to the programs of all executors: unique tensor names and the constant table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tunesmith.graph.ir.node import Constant
from tunesmith.runtime.executor.executable import NamedArrays


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique: a number is appended to repeated names."""
    taken: set[str] = set()
    found = []
    for name in names:
        fresh, number = name, 1
        while fresh in taken:
            fresh, number = f"{name}_{number}", number + 1
        taken.add(fresh)
        found.append(fresh)
    return found


class ConstantTable:
    """The constants of a program; constants with equal types and elements share one entry."""

    def __init__(self) -> None:
        self._constants: list[Constant] = []
        self._numbers: dict[str, int] = {}

    def number(self, constant: Constant) -> int:
        """The index of the entry of a constant."""
        if constant.digest not in self._numbers:
            self._numbers[constant.digest] = len(self._constants)
            self._constants.append(constant)
        return self._numbers[constant.digest]

    def arrays(self) -> NamedArrays:
        """The names and storage arrays of all entries."""
        names = unique_names([c.name for c in self._constants])
        return tuple([(n, _storage(c.data)) for n, c in zip(names, self._constants, strict=True)])


def _storage(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
