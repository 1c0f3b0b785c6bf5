"""Compare arrays with a reference, and describe the elements that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_SHOWN = 5
"""Maximum number of differing elements in an error message."""


def check_arrays(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Raise an AssertionError that describes the differences unless all results agree with the expected ones.

    Integers and bools must be equal, floats within `atol + rtol * |expected|`; NaN and infinities must be at the same positions.

    Args:
        got: the results.
        expected: the reference, of the same shapes and types.
        what: names the computation in messages.
        rtol: relative tolerance, raised to at least four units in the last place of the type.
        atol: absolute tolerance.
    """
    for k, (result, want) in enumerate(zip(got, expected, strict=True)):
        place = f"{what}, result {k}"
        assert (result.shape, result.dtype) == (want.shape, want.dtype), (
            f"{place}: {result.dtype}{result.shape}, expected {want.dtype}{want.shape}"
        )
        if want.dtype.kind == "f":
            rtol_here = max(rtol, 4 * float(np.finfo(want.dtype).eps))
            good = np.isclose(result.astype(np.float64), want.astype(np.float64), rtol_here, atol, equal_nan=True)
        else:
            good = result == want
        wrong = np.argwhere(~np.atleast_1d(good))
        if len(wrong):
            shown = [f"at {tuple(i.tolist()) if want.ndim else ()} {_at(result, i)!r}, expected {_at(want, i)!r}" for i in wrong[:_SHOWN]]
            raise AssertionError(f"{place}: {len(wrong)} of {want.size} elements differ: {'; '.join(shown)}")


def _at(array: np.ndarray, index: np.ndarray) -> Any:
    return np.atleast_1d(array)[tuple(index)].item()
