"""Define the split of float32 into two bfloat16 parts, x = high + low + rest, where the rest is at most 2**-16 of x."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import INJECTIVE, GraphOperator
from tunesmith.ir.expr import Expr, cast
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.runtime.arrays import in_bfloat16, in_float32
from tunesmith.support.errors import ScriptError


def _split(x: Tensor, *, axis: int, parts: str) -> Tensor:
    if x.dtype != "float32":
        raise ScriptError(f"only float32 is split into bfloat16 parts, not {x.dtype}")
    at, last = _checked(axis, len(x.shape), parts), len(parts) - 1
    extent = x.shape[at]

    def element(*index: Poly) -> Expr:
        i = index[at]
        here = x[(*index[:at], i % extent, *index[at + 1 :])]
        high = cast("bfloat16", here)
        low = cast("bfloat16", here - cast("float32", high))
        out = low if parts[last] == "l" else high
        for n in reversed(range(last)):
            out = te.if_then_else(i < extent * (n + 1), low if parts[n] == "l" else high, out)
        return out

    return te.compute([e * len(parts) if d == at else e for d, e in enumerate(x.shape)], element, "parts")


def split_parts(x: np.ndarray, axis: int, parts: str) -> np.ndarray:
    """The parts of an array of float32 along an axis, in bfloat16 of ml_dtypes."""
    high = in_bfloat16(x)
    with np.errstate(invalid="ignore"):
        low = in_bfloat16(x - in_float32(high))
    return np.concatenate([low if part == "l" else high for part in parts], axis)


def _reference(x: np.ndarray, *, axis: int, parts: str) -> np.ndarray:
    return split_parts(x, axis, parts).astype(np.float32)


def _checked(axis: int, rank: int, parts: str) -> int:
    if not -rank <= axis < rank:
        raise ScriptError(f"axis {axis} is not one of the {rank} axes of the operand")
    if not parts or set(parts) - {"h", "l"}:
        raise ScriptError(f"parts={parts!r} must be letters h (high) and l (low), such as 'hhl'")
    return axis % rank


SPLIT_BFLOAT16 = GraphOperator(
    "split_bfloat16",
    INJECTIVE,
    _split,
    _reference,
    meaning=(
        "The parts of float32 elements in bfloat16, concatenated along an axis: `h` is x rounded, `l` is the difference x - h rounded. "
        "The matrix product of the parts hhl of one factor with hlh of the other has about the precision of float32."
    ),
)
