"""Define scaled dot-product attention (Vaswani et al., 2017) of a batch of heads, with an optional causal mask."""

from __future__ import annotations

import math

import numpy as np

from tunesmith.ir.expr import Expr, const, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.matmul import matmul
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, flag
from tunesmith.ops.softmax import softmax, softmax_reference
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V, in the stages P (products), T (scaled, and -inf where masked), those of softmax, and C.

    Args:
        q: Q[b, m, d], the queries of each head.
        k: K[b, n, d], the keys.
        v: V[b, n, e], the values.
        causal: query i attends to the keys 0 to i only, as in torch.
    Raises:
        ScriptError: the shapes do not fit.
    """
    if len(q.shape) != 3 or len(v.shape) != 3 or q.shape[2].const is None:
        raise ScriptError(f"attention: Q[b, m, d], K[b, n, d] and V[b, n, e] with a constant d are needed, got {q!r}, {k!r} and {v!r}")
    products, scale = matmul(q, k, tb=True, name="P"), const(1 / math.sqrt(q.shape[2].const), q.dtype)

    def scaled(b: Poly, i: Poly, j: Poly) -> Expr:
        value = products[b, i, j] * scale
        return select(j <= i, value, const(-math.inf, q.dtype)) if causal else value

    return matmul(softmax(te.compute(products.shape, scaled, "T", axes=("b", "i", "j"))), v)


def _tensors(*, b: int, m: int, n: int, d: int, causal: int, dtype: str) -> list[Tensor]:
    q, k, v = [te.placeholder((b, rows, d), dtype, name) for rows, name in ((m, "Q"), (n, "K"), (n, "V"))]
    return [q, k, v, attention(q, k, v, bool(causal))]


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, /, *, causal: int, **_: object) -> list[np.ndarray]:
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / math.sqrt(q.shape[2])
    if causal:
        scores = np.where(np.tri(*scores.shape[1:], dtype=np.bool_), scores, -np.inf)
    return [(softmax_reference(scores) @ v.astype(np.float64)).astype(q.dtype)]


def _flops(*, b: int, m: int, n: int, d: int, **_: object) -> int:
    """Those of both matrix products, with masked elements, which are computed too."""
    return 4 * b * m * n * d


ATTENTION = Operator(
    "attention",
    (*[IntParameter(name) for name in ("b", "m", "n", "d")], flag("causal"), FLOATS),
    _tensors,
    _reference,
    _flops,
)
