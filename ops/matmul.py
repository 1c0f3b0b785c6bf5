"""Define matrix products and batched matrix products, with optionally transposed factors."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, flag
from tunesmith.ops.reduction import accumulator
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def matmul(a: Tensor, b: Tensor, ta: bool = False, tb: bool = False, name: str = "C") -> Tensor:
    """C[i, j] = sum over k of A[i, k] * B[k, j], with the loops i, j, k; tensors of rank 3 have a leading batch dimension b.

    Args:
        a: [m, k], or [k, m] if `ta`.
        b: [k, n], or [n, k] if `tb`.
        ta: A is stored transposed.
        tb: B is stored transposed.
        name: name of the result.
    Raises:
        ScriptError: the shapes do not fit.
    """
    rank = len(a.shape)
    m, k = (a.shape[-1], a.shape[-2]) if ta else (a.shape[-2], a.shape[-1])
    kb, n = (b.shape[-1], b.shape[-2]) if tb else (b.shape[-2], b.shape[-1])
    if rank not in (2, 3) or len(b.shape) != rank or a.shape[:-2] != b.shape[:-2] or k != kb:
        raise ScriptError(f"matmul {name}: {a!r}{' transposed' * ta} and {b!r}{' transposed' * tb} do not fit together")
    r = te.reduce_axis(k, "k")

    def element(*index: Poly) -> Expr:
        *batch, i, j = index
        x = a[(*batch, r, i)] if ta else a[(*batch, i, r)]
        y = b[(*batch, j, r)] if tb else b[(*batch, r, j)]
        return te.sum(x * y, axis=r)

    return te.compute((*a.shape[:-2], m, n), element, name, axes=("i", "j") if rank == 2 else ("b", "i", "j"))


def _tensors(*, m: int, n: int, k: int, ta: int, tb: int, dtype: str, b: int | None = None) -> list[Tensor]:
    batch = () if b is None else (b,)
    left = te.placeholder((*batch, k, m) if ta else (*batch, m, k), dtype, "A")
    right = te.placeholder((*batch, n, k) if tb else (*batch, k, n), dtype, "B")
    return [left, right, matmul(left, right, bool(ta), bool(tb))]


def matmul_reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """numpy.matmul; floats are accumulated in float64 and rounded once, integers in their own type."""
    return np.asarray(a.astype(accumulator(a)) @ b.astype(accumulator(b))).astype(a.dtype)


def _reference(a: np.ndarray, b: np.ndarray, /, *, ta: int, tb: int, **_: object) -> list[np.ndarray]:
    return [matmul_reference(a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b)]


def _flops(*, m: int, n: int, k: int, b: int = 1, **_: object) -> int:
    return 2 * b * m * n * k


_SIZES = (IntParameter("m"), IntParameter("n"), IntParameter("k"))
_FORM = (flag("ta"), flag("tb"), FLOATS)

MATMUL = Operator("matmul", (*_SIZES, *_FORM), _tensors, _reference, _flops)
BATCH_MATMUL = Operator("batch_matmul", (IntParameter("b"), *_SIZES, *_FORM), _tensors, _reference, _flops)
