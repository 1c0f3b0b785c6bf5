"""Define softmax in four stages that avoid overflow: maximum, exponentials, their sum, quotients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.ir.expr import call
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter
from tunesmith.ops.reduction import reduce
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def without(index: Sequence[Poly], axis: int) -> tuple[Poly, ...]:
    """An index without the position along `axis`."""
    return (*index[:axis], *index[axis + 1 :])


def exponentials(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The stages M (max), E = exp(x - M) and S (sum of E) along an axis, a position from 0."""
    top = reduce("max", x, (axis,), "M")
    powers = te.compute(x.shape, lambda *i: call("exp", x[i] - top[without(i, axis)]), "E")
    return top, powers, reduce("sum", powers, (axis,), "S")


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Softmax along an axis, in the stages M (max), E = exp(x - M), S (sum of E) and Y = E / S."""
    rank = len(x.shape)
    if not rank:
        raise ScriptError(f"softmax: {x!r} has no axis")
    _top, powers, total = exponentials(x, axis % rank)
    return te.compute(x.shape, lambda *i: powers[i] / total[without(i, axis % rank)], "Y")


def softmax_reference(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax along an axis in numpy, computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    return np.asarray((powers / powers.sum(axis, keepdims=True)).astype(x.dtype))


def _tensors(*, m: int, n: int, dtype: str) -> list[Tensor]:
    x = te.placeholder((m, n), dtype, "X")
    return [x, softmax(x)]


def _reference(x: np.ndarray, /, **_: object) -> list[np.ndarray]:
    return [softmax_reference(x)]


def _flops(*, m: int, n: int, **_: object) -> int:
    """Operations per element: max, difference, exp, sum and quotient."""
    return 5 * m * n


SOFTMAX = Operator("softmax", (IntParameter("m"), IntParameter("n"), FLOATS), _tensors, _reference, _flops)
