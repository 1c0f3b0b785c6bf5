"""Define matrix products and batched matrix products, with optionally transposed factors."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.contraction_types import CONTRACTION_TYPES, contracted, in_type, product, result_type, rounded, settle_types, types_of
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def matmul(a: Tensor, b: Tensor, ta: bool = False, tb: bool = False, name: str = "C", out_dtype: str = "") -> Tensor:
    """C[i, j] = sum over k of A[i, k] * B[k, j], with the loops i, j, k; tensors of rank 3 have a leading batch dimension b.

    Products of float16 and bfloat16 are summed in float32, products of bytes in int32.

    Args:
        a: [m, k], or [k, m] if `ta`.
        b: [k, n], or [n, k] if `tb`.
        ta: A is stored transposed.
        tb: B is stored transposed.
        name: name of the stage of the sums.
        out_dtype: type of the result, to which the sums are rounded; default: the type of `a`.
    Raises:
        ScriptError: the shapes or types do not fit.
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
        return te.sum(product(x, y), axis=r)

    sums = te.compute((*a.shape[:-2], m, n), element, name, axes=("i", "j") if rank == 2 else ("b", "i", "j"))
    return rounded(sums, result_type(a.dtype, out_dtype))


def _tensors(*, m: int, n: int, k: int, ta: int, tb: int, b: int | None = None, **types: str) -> list[Tensor]:
    batch, t = () if b is None else (b,), types_of(**types)
    left = te.placeholder((*batch, k, m) if ta else (*batch, m, k), t.lhs, "A")
    right = te.placeholder((*batch, n, k) if tb else (*batch, k, n), t.rhs, "B")
    return [left, right, matmul(left, right, bool(ta), bool(tb), out_dtype=t.out)]


def matmul_reference(a: np.ndarray, b: np.ndarray, *, out_dtype: str = "") -> np.ndarray:
    """numpy.matmul; floats are summed in float64 and rounded once, integers in their own type."""
    return contracted(np.matmul, a, b, out_dtype)


def _reference(
    a: np.ndarray, b: np.ndarray, /, *, ta: int, tb: int, dtype: str, rhs_dtype: str, out_dtype: str, **_: object
) -> list[np.ndarray]:
    x, y = (array.swapaxes(-1, -2) if transposed else array for array, transposed in ((a, ta), (b, tb)))
    return [in_type(x.astype(np.float64) @ y.astype(np.float64), types_of(dtype, rhs_dtype, out_dtype).out)]


def _flops(*, m: int, n: int, k: int, b: int = 1, **_: object) -> int:
    return 2 * b * m * n * k


_SIZES = (IntParameter("m"), IntParameter("n"), IntParameter("k"))
_FORM = (flag("ta"), flag("tb"), *CONTRACTION_TYPES)

MATMUL = Operator("matmul", (*_SIZES, *_FORM), _tensors, _reference, _flops, settle=settle_types)
BATCH_MATMUL = Operator("batch_matmul", (IntParameter("b"), *_SIZES, *_FORM), _tensors, _reference, _flops, settle=settle_types)
