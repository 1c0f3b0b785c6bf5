"""Compare arrays with a reference, and describe the elements that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

GUARD = 64
"""Elements before and behind an array of `guarded`."""
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


def guarded(like: np.ndarray, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """An array of the shape and type of `like`, filled with `fill`, and the memory around it, to detect writes out of bounds.

    The array begins a multiple of `GUARD` elements into the memory, and as many follow it.
    """
    memory = np.full(like.size + 2 * GUARD, fill).astype(like.dtype)
    return memory[GUARD : GUARD + like.size].reshape(like.shape), memory


def check_guards(memory: np.ndarray, fill: float, what: str) -> None:
    """Raise an AssertionError if elements around an array of `guarded` were written."""
    untouched = np.full(GUARD, fill).astype(memory.dtype)
    for place, part in (("before", memory[:GUARD]), ("behind", memory[-GUARD:])):
        assert part.tobytes() == untouched.tobytes(), f"{what}: elements {place} the array were written"


def _at(array: np.ndarray, index: np.ndarray) -> Any:
    return np.atleast_1d(array)[tuple(index)].item()
