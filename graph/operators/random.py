"""Define uniform random numbers as a function of a seed, a stream and the position (source: SplitMix64, Steele et al., OOPSLA 2014).

A number depends on nothing else: schedules, threads and fusion cannot change it, and two executions with one seed are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.graph.operators.element_types import scalar_type
from tunesmith.ir.expr import Binary, Expr, cast, const
from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

STEP = 0x9E3779B97F4A7C15
"""Difference of the states of neighbouring elements: 2**64 divided by the golden ratio, made odd."""
STREAM = 0xD1342543DE82EF95
"""Difference of the states of neighbouring streams."""
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""(shift, factor) of each round z = (z ^ (z >> shift)) * factor."""
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Bits of a number, as many as a significand has: multiples of 2**-DIGITS are exact, and 1 is never reached."""


def _check(seed: Any, stream: int, dtype: str) -> None:
    if seed.dtype != "int64" or len(seed.shape):
        raise ScriptError(f"the seed is one int64 number, a tensor without axes, not {seed!r}")
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream < 1 << 32:
        raise ScriptError(f"a stream is an integer from 0 to 2**32 - 1, got {stream!r}")
    if dtype not in DIGITS:
        raise ScriptError(f"random numbers are floats, not {dtype}: multiply, round and cast them")


def _mixed(z: Expr) -> Expr:
    for shift, factor in _ROUNDS:
        z = Binary("bitxor", z, Binary("shr", z, const(shift, "uint64")))
        z = z if factor == 1 else z * const(factor, "uint64")
    return z


def _uniform(seed: Tensor, *, shape: Sequence[Index], stream: int = 0, dtype: str = "float32") -> Tensor:
    _check(seed, stream, scalar_type(dtype))
    extents = [poly(e) for e in shape]
    first = const((STREAM * stream + STEP) % 2**64, "uint64")

    def element(*indices: Poly) -> Expr:
        position = poly(0)
        for i, extent in zip(indices, extents, strict=True):
            position = position * extent + i
        state = cast("uint64", seed[()]) + first + cast("uint64", cast("int64", position)) * const(STEP, "uint64")
        wide = "float64" if dtype == "float64" else "float32"
        number = cast(wide, Binary("shr", _mixed(state), const(64 - DIGITS[dtype], "uint64"))) * const(2.0 ** -DIGITS[dtype], wide)
        return cast(dtype, number)

    return te.compute(extents, element, "U")


def _np_uniform(seed: np.ndarray, *, shape: tuple[int, ...], stream: int = 0, dtype: str = "float32") -> np.ndarray:
    with np.errstate(over="ignore"):
        start = np.uint64(int(seed) % 2**64) + np.uint64((STREAM * stream + STEP) % 2**64)
        z = start + np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64) * np.uint64(STEP)
        for shift, factor in _ROUNDS:
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    made = ((z >> np.uint64(64 - DIGITS[dtype])).astype(np.float64) * 2.0 ** -DIGITS[dtype]).reshape(shape)
    return np.asarray(made.astype(dt.to_numpy(dtype)))


RANDOM_UNIFORM = GraphOperator(
    "random_uniform",
    INJECTIVE,
    _uniform,
    _np_uniform,
    meaning="Uniform random numbers from 0 on and below 1, a function of the seed, the stream and the position of the element.",
)
