"""Fold the few channels of an image into its width, so that the reduction has contiguous groups for dot-product instructions.

The taps of one row of a window are contiguous in an image with channels last: kw * ci elements.  So a convolution of [h, w, ci] with stride
s is one of [h, w * ci, 1] with stride s * ci and windows of kw * ci elements, filled up with zero weights to a multiple of the group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Call, Constant, Operand


def applies(call: Call, group: int) -> bool:
    """Whether a conv2d with constant filters has a number of channels that is no multiple of the group, and neighbouring taps."""
    x, w = call.args
    ci = x.type.shape[str(call.keywords["image_layout"] or call.attr("layout")).index("C")].const
    return (
        call.operator == "conv2d"
        and isinstance(w, Constant)
        and call.attr("layout") == "NHWC"
        and call.attr("groups") == 1
        and len(w.type.shape) == 4
        and ci is not None
        and ci % group != 0
        and call.attr("dilation")[1] == 1
    )


def folded(call: Call, x: Operand, group: int, build: RegionBuilder) -> tuple[Operand, Constant, dict[str, Any]]:
    """The image [n, h, w * ci, 1], the filters [kh, kw * ci + zeros, 1, co], and the attributes of the convolution.

    Args:
        call: a call to which the rewrite applies.
        x: its image with channels last.
        group: the number of taps in a row becomes a multiple of it.
        build: appends the view of the image.
    """
    filters = call.args[1]
    assert isinstance(filters, Constant)
    kh, kw, ci, co = filters.data.shape
    taps = -(-kw * ci // group) * group
    data = np.zeros((kh, taps, 1, co), filters.data.dtype)
    data[:, : kw * ci, 0] = filters.data.reshape(kh, kw * ci, co)
    n, h, width, _ = x.type.shape
    top, left, bottom, right = call.attr("padding")
    vertical, horizontal = call.attr("strides")
    attributes = {
        **call.keywords,
        "strides": (vertical, horizontal * ci),
        # The zeros of the filter read beyond the last window.
        "padding": (top, left * ci, bottom, right * ci + taps - kw * ci),
        "image_layout": "",
    }
    return build.reshape(x, shape=(n, h, width * ci, 1)), Constant(filters.name, data), attributes
