"""Define convolutions and pooling of volumes (three spatial dimensions, NCDHW or NDHWC), as `nn` and `windows` do for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.ops import convolution, pooling
from tunesmith.ops import transposed_convolution as transposed
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError

Three = tuple[int, int, int]
Six = tuple[int, int, int, int, int, int]
ONES, NO_PADDING = (1, 1, 1), (0, 0, 0, 0, 0, 0)
LAYOUTS = ("NCDHW", "NDHWC")


def _check(layout: str, padding: Sequence[int], **positive: Sequence[int]) -> None:
    """Raise ScriptError for invalid attributes of windows."""
    if layout not in LAYOUTS:
        raise ScriptError(f"unknown layout {layout!r}; layouts are {', '.join(LAYOUTS)}")
    texts = ", ".join([f"{name} {values}" for name, values in positive.items()])
    if any(len(v) != 3 for v in positive.values()) or len(padding) != 6:
        raise ScriptError(f"{texts} must be (depth, height, width), padding {padding} must be three low sides and three high sides")
    if min(v for values in positive.values() for v in values) < 1 or min(padding) < 0:
        raise ScriptError(f"{texts} must be positive, padding {padding} must not be negative")


def _conv3d(
    x: Tensor,
    w: Tensor,
    *,
    strides: Three = ONES,
    padding: Six = NO_PADDING,
    dilation: Three = ONES,
    groups: int = 1,
    layout: str = "NCDHW",
    out_dtype: str = "",
) -> Tensor:
    _check(layout, padding, strides=strides, dilation=dilation)
    if x.dtype != w.dtype:
        raise ScriptError("the volume and the filter have different element types; cast one of them")
    return convolution.convolution(x, w, strides, padding, dilation, groups, layout, out_dtype=out_dtype)


def _conv3d_reference(
    x: np.ndarray,
    w: np.ndarray,
    *,
    strides: Three = ONES,
    padding: Six = NO_PADDING,
    dilation: Three = ONES,
    groups: int = 1,
    layout: str = "NCDHW",
    out_dtype: str = "",
) -> np.ndarray:
    return convolution.convolved_as(x, w, strides, padding, dilation, groups, layout, out_dtype)


CONV3D = GraphOperator(
    "conv3d",
    FUSABLE,
    _conv3d,
    _conv3d_reference,
    meaning=(
        "Three-dimensional cross-correlation. Filters are [co, ci / groups, kd, kh, kw] for NCDHW and [kd, kh, kw, ci / groups, co] "
        "for NDHWC. Padding is (front, top, left, back, bottom, right). `out_dtype` is as in conv2d."
    ),
)


def _conv3d_transpose(
    x: Tensor,
    w: Tensor,
    *,
    strides: Three = ONES,
    padding: Six = NO_PADDING,
    output_padding: Three = (0, 0, 0),
    dilation: Three = ONES,
    groups: int = 1,
    layout: str = "NCDHW",
) -> Tensor:
    _check(layout, padding, strides=strides, dilation=dilation)
    return transposed.transposed_convolution(x, w, strides, padding, output_padding, dilation, groups, layout)


def _conv3d_transpose_reference(
    x: np.ndarray,
    w: np.ndarray,
    *,
    strides: Three = ONES,
    padding: Six = NO_PADDING,
    output_padding: Three = (0, 0, 0),
    dilation: Three = ONES,
    groups: int = 1,
    layout: str = "NCDHW",
) -> np.ndarray:
    out = transposed.transposed_convolved(x, w, strides, padding, output_padding, dilation, groups, layout)
    return convolution.in_layout(out, layout, x.dtype)


CONV3D_TRANSPOSE = GraphOperator(
    "conv3d_transpose",
    FUSABLE,
    _conv3d_transpose,
    _conv3d_transpose_reference,
    wide=True,
    meaning=(
        "The gradient of a convolution of volumes with respect to its input (torch.conv_transpose3d). Filters are "
        "[ci, co / groups, kd, kh, kw] for NCDHW; padding is removed from the result, output_padding is added at its high sides."
    ),
)


def _max_pool3d(
    x: Tensor,
    *,
    kernel: Three,
    strides: Three,
    padding: Six = NO_PADDING,
    dilation: Three = ONES,
    ceil_mode: bool = False,
    layout: str = "NCDHW",
) -> Tensor:
    _check(layout, padding, kernel=kernel, strides=strides, dilation=dilation)
    return pooling.max_pool(x, kernel, strides, padding, dilation, ceil_mode, layout)


def _max_pool3d_indices(
    x: Tensor,
    y: Tensor,
    *,
    kernel: Three,
    strides: Three,
    padding: Six = NO_PADDING,
    dilation: Three = ONES,
    ceil_mode: bool = False,
    layout: str = "NCDHW",
) -> Tensor:
    _check(layout, padding, kernel=kernel, strides=strides, dilation=dilation)
    return pooling.max_pool_indices(x, y, kernel, strides, padding, dilation, ceil_mode, layout)


def _avg_pool3d(
    x: Tensor,
    *,
    kernel: Three,
    strides: Three,
    padding: Six = NO_PADDING,
    dilation: Three = ONES,
    ceil_mode: bool = False,
    layout: str = "NCDHW",
    count_include_pad: bool = False,
) -> Tensor:
    _check(layout, padding, kernel=kernel, strides=strides, dilation=dilation)
    return pooling.avg_pool(x, kernel, strides, padding, dilation, ceil_mode, layout, count_include_pad)


def _max_pool3d_reference(
    x: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str
) -> np.ndarray:
    return pooling.max_pool_reference(x, kernel, strides, padding, dilation, ceil_mode, layout)


def _max_pool3d_indices_reference(
    x: np.ndarray, y: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str
) -> np.ndarray:
    return pooling.max_pool_indices_reference(x, y, kernel, strides, padding, dilation, ceil_mode, layout)


def _avg_pool3d_reference(
    x: np.ndarray, *, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil_mode: bool, layout: str, count_include_pad: bool
) -> np.ndarray:
    return pooling.avg_pool_reference(x, kernel, strides, padding, dilation, ceil_mode, layout, count_include_pad)


MAX_POOL3D = GraphOperator(
    "max_pool3d", FUSABLE, _max_pool3d, _max_pool3d_reference, meaning="The maximum of each window of a volume; padding is ignored."
)
MAX_POOL3D_INDICES = GraphOperator(
    "max_pool3d_indices",
    FUSABLE,
    _max_pool3d_indices,
    _max_pool3d_indices_reference,
    meaning="The position in the volume of the first element of each window that is equal to y, its maximum; NaN counts as the greatest.",
)
AVG_POOL3D = GraphOperator(
    "avg_pool3d",
    FUSABLE,
    _avg_pool3d,
    _avg_pool3d_reference,
    wide=True,
    meaning="The mean of each window of a volume over its elements inside, or inside and in the padding if `count_include_pad`.",
)
