"""Define the call of a prepared model: its timed part, its results as arrays, and its compute precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model with bound inputs.

    Attributes:
        run: the timed part: computes all results.
        results: runs, and returns a tensor or array, or several.
        precision: the compute precision, as `tunesmith.measure.precision` spells it; `int8` if contractions have operands of bytes.
    """

    run: Callable[[], Any]
    results: Callable[[], Any]
    precision: str = "f32"

    def outputs(self) -> list[np.ndarray]:
        """The results of a run as arrays of their own."""
        return arrays(self.results())


def arrays(results: Any) -> list[np.ndarray]:
    """The results of a model, one or several, as a list of copies."""
    return [np.array(np.asarray(r)) for r in (results if isinstance(results, (tuple, list)) else (results,))]
