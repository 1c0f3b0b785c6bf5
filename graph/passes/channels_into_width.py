"""Fold the few channels of an image into its width, so that the reduction has contiguous groups for dot-product instructions.

The taps of one row of a window are contiguous in an image with channels last: kw * ci elements.  So a convolution of [h, w, ci] with stride
s is one of [h, w * ci, 1] with stride s * ci and windows of kw * ci elements, filled up with zero weights to a multiple of the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.passes.convert_layout import TO_NHWC
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.ir.function import IRModule

GROUPS = {"bfloat16": 2, "int8": 4, "uint8": 4}
"""The products that an instruction sums in each lane, by the type of the image."""


def channels_into_width(mod: IRModule) -> IRModule:
    """Rewrite convolutions of bfloat16 and bytes in NHWC whose channels are no multiple of the group of an instruction.

    Their filters must be constant, and neighbouring taps of a row neighbouring pixels (horizontal dilation 1).
    """
    done = {name: _Fold()(f) for name, f in mod.items() if isinstance(f, GraphFunc)}
    return dead_code(mod.update(done)) if any(done[name] is not mod[name] for name in done) else mod


class _Fold(Rewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if not isinstance(operation, Call) or operation.operator != "conv2d" or operation.attr("layout") != "NHWC":
            return None
        x, w = operation.args
        group, first = GROUPS.get(x.type.dtype), operation.attr("image_layout") == "NCHW"
        channels = x.type.shape[1 if first else 3].const
        if group is None or channels is None or channels % group == 0 or not isinstance(w, Constant) or len(w.data.shape) != 4:
            return None
        if operation.attr("groups") != 1 or operation.attr("dilation")[1] != 1:
            return None
        if channels == 1 and w.data.shape[1] % group == 0 and not first:  # the taps of a row are whole groups
            return None
        return [self._folded(operation, self._last(x, build) if first else x, w, group, build)]

    def _last(self, x: Operand, build: RegionBuilder) -> Operand:
        """The image with channels last; of a converted image, so that one function does both."""
        cast = self.made_by(x)
        if cast is not None and cast.operator == "cast":
            return build.cast(build.permute_dims(cast.args[0], axes=TO_NHWC), dtype=cast.attr("dtype"), name=x.name)
        return build.permute_dims(x, axes=TO_NHWC, name=x.name)

    def _folded(self, call: Call, x: Operand, filters: Constant, group: int, build: RegionBuilder) -> Operand:
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
        made: Operand = build.conv2d(build.reshape(x, shape=(n, h, width * ci, 1)), Constant(filters.name, data), **attributes)
        return made
