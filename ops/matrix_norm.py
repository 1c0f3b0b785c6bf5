"""Define the Frobenius norm of each matrix of a batch: a reduction to few elements, followed by a square root."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import call
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter
from tunesmith.ops.reduction import reduced
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def matrix_norm(x: Tensor) -> Tensor:
    """The stages S, the sum of squares over the last two axes, and Y, its square root.

    Raises:
        ScriptError: `x` has fewer than two dimensions.
    """
    rank = len(x.shape)
    if rank < 2:
        raise ScriptError(f"matrix_norm: {x!r} has no matrices")
    total = reduced(x, (rank - 2, rank - 1), te.sum, "S", value=lambda e: e * e)
    return te.compute(total.shape, lambda *i: call("sqrt", total[i]), "Y", axes=[v.name for v in total.axes])


def _tensors(*, b: int, m: int, n: int, dtype: str) -> list[Tensor]:
    x = te.placeholder((b, m, n), dtype, "X")
    return [x, matrix_norm(x)]


def _reference(x: np.ndarray, /, **_: object) -> list[np.ndarray]:
    return [np.sqrt(np.square(x.astype(np.float64)).sum((1, 2))).astype(x.dtype)]


def _flops(*, b: int, m: int, n: int, **_: object) -> int:
    """Operations per element: square and sum."""
    return 2 * b * m * n


MATRIX_NORM = Operator("matrix_norm", (IntParameter("b"), IntParameter("m"), IntParameter("n"), FLOATS), _tensors, _reference, _flops)
