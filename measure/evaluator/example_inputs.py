"""Make seeded inputs of a model whose inputs have constant shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.runtime.executor.executor import TensorSpec
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream


def example_inputs(specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Values of each input: normal numbers, and zeros and ones of other types, which are valid indices of most tables."""
    return [_example(spec, n) for n, spec in enumerate(specs)]


def _example(spec: TensorSpec, position: int) -> np.ndarray:
    random = stream(0, "model check", position)
    shape = [int(n) for n in spec.shape]
    if dt.is_float(spec.dtype):
        return random.standard_normal(shape).astype(dt.to_numpy(spec.dtype))
    return random.integers(0, 2, shape).astype(dt.to_numpy(spec.dtype))
