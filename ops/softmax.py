"""Define softmax of rows in four stages that avoid overflow: maximum, exponentials, their sum, quotients."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import call
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter
from tunesmith.ops.reduction import reduce
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def softmax(x: Tensor) -> Tensor:
    """Softmax along the last axis, in the stages M (max), E = exp(x - M), S (sum of E) and Y = E / S."""
    last = len(x.shape) - 1
    if last < 0:
        raise ScriptError(f"softmax: {x!r} has no axis")
    top = reduce("max", x, (last,), "M")
    powers = te.compute(x.shape, lambda *i: call("exp", x[i] - top[i[:-1]]), "E")
    total = reduce("sum", powers, (last,), "S")
    return te.compute(x.shape, lambda *i: powers[i] / total[i[:-1]], "Y")


def _tensors(*, m: int, n: int, dtype: str) -> list[Tensor]:
    x = te.placeholder((m, n), dtype, "X")
    return [x, softmax(x)]


def _reference(x: np.ndarray, /, **_: object) -> list[np.ndarray]:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return [(powers / powers.sum(axis=-1, keepdims=True)).astype(x.dtype)]


def _flops(*, m: int, n: int, **_: object) -> int:
    """Operations per element: max, difference, exp, sum and quotient."""
    return 5 * m * n


SOFTMAX = Operator("softmax", (IntParameter("m"), IntParameter("n"), FLOATS), _tensors, _reference, _flops)
