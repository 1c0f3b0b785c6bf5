"""Provide the constant table, which the programs of all executors have."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.node import Constant
from tunesmith.runtime.executor.executable import NamedArrays
from tunesmith.support.unique_names import unique_names


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
