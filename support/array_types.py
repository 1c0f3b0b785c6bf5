"""Name the numpy array types by their elements, for annotations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

FloatArray = npt.NDArray[np.floating]
"""Floats of any width."""
IntArray = npt.NDArray[np.integer]
"""Integers of any width."""
