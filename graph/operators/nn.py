"""Define contractions: matrix products, einsum, convolutions and transposed convolutions.

Matrix products and convolutions are those of `ops/`, with the same stages, loops and numpy reference, so that records of workloads apply
to graphs.  A graph's matmul also takes vectors and broadcasts batches, as numpy does, and never a transposed operand, which is a
`permute_dims` there; these forms have a stage of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import ZERO, Poly
from tunesmith.ops import convolution
from tunesmith.ops import tensor_expression as te
from tunesmith.ops import transposed_convolution as transposed
from tunesmith.ops.contraction_types import contracted, multiply_together, product, result_type, rounded
from tunesmith.ops.matmul import matmul as plain_matmul
from tunesmith.ops.matmul import matmul_reference
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError

LAYOUTS = ("NCHW", "NHWC")

_SUMS = (
    "Products of 16-bit floats are summed in float32, products of bytes in int32; `out_dtype` is the type of the result, by default that of"
    " the operands."
)


def _batch(a: Sequence[Poly], b: Sequence[Poly]) -> list[Poly]:
    """The broadcast batch extents."""
    out = list(a if len(a) >= len(b) else b)
    for d in range(1, min(len(a), len(b)) + 1):
        if a[-d] != 1 and b[-d] != 1 and a[-d] != b[-d]:
            raise ScriptError(f"the batch extents {a[-d]} and {b[-d]} cannot be broadcast")
        out[-d] = b[-d] if a[-d] == 1 else a[-d]
    return out


def _batch_index(extents: Sequence[Poly], index: Sequence[Poly]) -> tuple[Poly, ...]:
    """The batch index of an operand with these batch extents."""
    return tuple([ZERO if e == 1 else i for e, i in zip(extents, index[len(index) - len(extents) :], strict=True)])


def _matmul(a: Tensor, b: Tensor, *, out_dtype: str = "") -> Tensor:
    if not a.shape or not b.shape:
        raise ScriptError("a scalar has no matrix product; use multiply")
    if not multiply_together(a.dtype, b.dtype):
        raise ScriptError("the operands have different element types; cast one of them")
    if a.shape[-1] != b.shape[-2 if len(b.shape) > 1 else 0]:
        raise ScriptError(
            f"{a.shape[-1]} columns of the first and {b.shape[-2 if len(b.shape) > 1 else 0]} rows of the second operand differ"
        )
    if len(a.shape) == len(b.shape) and len(a.shape) in (2, 3) and a.shape[:-2] == b.shape[:-2]:
        return plain_matmul(a, b, out_dtype=out_dtype)
    batch = _batch(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    r = te.reduce_axis(a.shape[-1], "k")

    def element(*index: Poly) -> Expr:
        at, inner = index[: len(batch)], index[len(batch) :]
        left, right = _batch_index(a.shape[:-2], at), _batch_index(b.shape[:-2], at)
        return te.sum(product(a[(*left, *inner[: len(rows)], r)], b[(*right, r, *inner[len(rows) :])]), axis=r)

    names = ["b"] if len(batch) == 1 else [f"b{d}" for d in range(len(batch))]
    sums = te.compute((*batch, *rows, *columns), element, "C", axes=[*names, *(["i"] if rows else []), *(["j"] if columns else [])])
    return rounded(sums, result_type(a.dtype, out_dtype))


MATMUL = GraphOperator(
    "matmul",
    FUSABLE,
    _matmul,
    matmul_reference,
    meaning=f"numpy.matmul: vectors, matrices, and batches of matrices with broadcasting. {_SUMS}",
)


def terms_of(equation: str) -> tuple[str, str, str]:
    """The letters of both operands and of the result of an equation such as "bik,bkj->bij".

    Raises:
        ScriptError: the equation has another form.
    """
    found = re.fullmatch("([a-z]*),([a-z]*)->([a-z]*)", equation)
    if found is None:
        raise ScriptError(f'the equation {equation!r} is not of the form "bik,bkj->bij": two operands with a letter for each axis')
    x, y, out = found.groups()
    if any(len(set(term)) != len(term) for term in (x, y, out)):
        raise ScriptError(f"the equation {equation!r} repeats a letter in a term: take the diagonal first")
    both = set(x) & set(y)
    if not set(out) <= set(x) | set(y) or not (set(x) | set(y)) - both <= set(out):
        raise ScriptError(
            f"the equation {equation!r}: the result must have only letters of the operands, and all letters of a single operand"
        )
    return x, y, out


def _einsum(a: Tensor, b: Tensor, *, equation: str, out_dtype: str = "") -> Tensor:
    x, y, out = terms_of(equation)
    if not multiply_together(a.dtype, b.dtype):
        raise ScriptError("the operands have different element types; cast one of them")
    if len(a.shape) != len(x) or len(b.shape) != len(y):
        raise ScriptError(f"the equation {equation!r} is for operands of {len(x)} and {len(y)} axes, not {len(a.shape)} and {len(b.shape)}")
    extents = dict(zip(x, a.shape, strict=True))
    for letter, e in zip(y, b.shape, strict=True):
        if extents.setdefault(letter, e) != e:
            raise ScriptError(f"the equation {equation!r}: {letter} is {extents[letter]} in the first operand and {e} in the second")
    summed = [c for c in x if c not in out]
    axes = {c: te.reduce_axis(extents[c], c) for c in summed}

    def element(*index: Poly) -> Expr:
        at = {**dict(zip(out, index, strict=True)), **axes}
        term = product(a[tuple([at[c] for c in x])], b[tuple([at[c] for c in y])])
        return te.sum(term, axis=list(axes.values())) if axes else term

    sums = te.compute(tuple([extents[c] for c in out]), element, "C", axes=list(out))
    return rounded(sums, result_type(a.dtype, out_dtype))


def _einsum_reference(a: np.ndarray, b: np.ndarray, *, equation: str, out_dtype: str = "") -> np.ndarray:
    return contracted(lambda x, y: np.einsum(equation, x, y), a, b, out_dtype)


EINSUM = GraphOperator(
    "einsum",
    FUSABLE,
    _einsum,
    _einsum_reference,
    meaning=f"numpy.einsum of two operands: products are summed over the letters that are not in the result. {_SUMS}",
)


def _window(strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], layout: str) -> None:
    """Raise ScriptError for invalid window attributes."""
    if layout not in LAYOUTS:
        raise ScriptError(f"unknown layout {layout!r}; layouts are {', '.join(LAYOUTS)}")
    if not len(strides) == len(dilation) == 2 or len(padding) != 4:
        raise ScriptError(
            f"strides {strides} and dilation {dilation} must be (vertical, horizontal),"
            f" padding {padding} must be (top, left, bottom, right)"
        )
    if min(*strides, *dilation) < 1 or min(padding) < 0:
        raise ScriptError(f"strides {strides} and dilation {dilation} must be positive, padding {padding} must not be negative")


def _conv2d(
    x: Tensor,
    w: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    image_layout: str = "",
    out_dtype: str = "",
    padding_value: float = 0,
) -> Tensor:
    _window(strides, padding, dilation, layout)
    if image_layout not in ("", *LAYOUTS):
        raise ScriptError(f"unknown layout {image_layout!r} of the image; layouts are {', '.join(LAYOUTS)}")
    if not multiply_together(x.dtype, w.dtype):
        raise ScriptError("the image and the filter have different element types; cast one of them")
    return convolution.convolution(x, w, strides, padding, dilation, groups, layout, image_layout or None, out_dtype, padding_value)


def _conv2d_reference(
    x: np.ndarray,
    w: np.ndarray,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    image_layout: str = "",
    out_dtype: str = "",
    padding_value: float = 0,
) -> np.ndarray:
    if (image_layout or layout) != layout:
        x = x.transpose((0, 2, 3, 1) if layout == "NHWC" else (0, 3, 1, 2))
    return convolution.convolved_as(x, w, strides, padding, dilation, groups, layout, out_dtype, padding_value)


CONV2D = GraphOperator(
    "conv2d",
    FUSABLE,
    _conv2d,
    _conv2d_reference,
    meaning=(
        "Two-dimensional cross-correlation. Filters are OIHW for NCHW and HWIO for NHWC; depthwise filters may omit the "
        "axis of extent 1, which gives the program of the workload. Padding is (top, left, bottom, right). "
        f"`image_layout` is the layout of the image if it differs from that of the filter and the result. "
        f"`padding_value` is the value of the padding, such as the zero point of a quantised image. {_SUMS}"
    ),
)


def _conv2d_transpose(
    x: Tensor,
    w: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
) -> Tensor:
    _window(strides, padding, dilation, layout)
    return transposed.transposed_convolution(x, w, strides, padding, output_padding, dilation, groups, layout)


def _conv2d_transpose_reference(
    x: np.ndarray,
    w: np.ndarray,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
) -> np.ndarray:
    out = transposed.transposed_convolved(x, w, strides, padding, output_padding, dilation, groups, layout)
    return convolution.in_layout(out, layout, x.dtype)


CONV2D_TRANSPOSE = GraphOperator(
    "conv2d_transpose",
    FUSABLE,
    _conv2d_transpose,
    _conv2d_transpose_reference,
    wide=True,
    meaning=(
        "The gradient of a convolution with respect to its image (torch.conv_transpose2d, ONNX ConvTranspose). Filters "
        "are [ci, co / groups, kh, kw] for NCHW and [kh, kw, co / groups, ci] for NHWC; padding is removed from the "
        "result, and output_padding adds rows at the bottom and columns at the right."
    ),
)
