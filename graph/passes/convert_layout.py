"""Convert images from NCHW to NHWC, so that vectorised loops run along channels (source: TVM's ConvertLayout).

Operators with a layout attribute, and operators that work in any layout, are computed on converted values
(graph.passes.layout_rewriter).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation, TensorType
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.graph.passes.layout_rewriter import LayoutRewriter
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ONE

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
"""Axes of permute_dims from NCHW to NHWC, and from NHWC to NCHW."""
LANES = 16
"""Floats in the widest vectors."""
_NHWC_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}
"""Axis of NCHW -> axis of NHWC."""


def convert_layout(mod: IRModule) -> IRModule:
    """Compute convolutions and pools of NCHW images, and the operators between them, on NHWC images; weights become HWIO."""
    return mod.update({name: _Convert()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Convert(LayoutRewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call):
            return None
        if operation.operator in _RULES:
            return _RULES[operation.operator](self, operation, build)
        if GRAPH_OPERATORS.get(operation.operator).kind in (ELEMENTWISE, BROADCAST) and any(a in self.converted for a in operation.args):
            return self.pointwise(operation, build)
        return None

    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        return build.permute_dims(o, axes=TO_NHWC, name=o.name)

    def inverse(self, converted: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        return build.permute_dims(converted, axes=TO_NCHW, name=converted.name)

    def image(self, converted: Operand, build: RegionBuilder) -> list[Operand]:
        """The NCHW image of a converted value."""
        return self.restore(converted, converted.type, build)

    def pointwise(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        """Convert operands of rank 4; reshape or permute operands of lower rank so that they broadcast in NHWC."""
        if any(len(a.type.shape) > 4 for a in call.args):
            return None
        args = [self._aligned(a, build) for a in call.args]
        return self.image(build.call(call.operator, *args, **call.keywords), build)

    def _aligned(self, o: Operand, build: RegionBuilder) -> Operand:
        if o in self.converted:  # converted values have four dimensions, and so has the result
            return self.converted[o]
        shape = o.type.shape
        if len(shape) == 4 and (not isinstance(o, Constant) or o.data.size > 1):
            others = [e for d, e in enumerate(shape) if d != 1]
            return build.reshape(o, shape=shape[1:2]) if all(e == ONE for e in others) else self.convert(o, build)
        if all(e == ONE for e in shape):
            return build.reshape(o, shape=()) if shape else o
        full = (ONE,) * (4 - len(shape)) + shape
        if all(e == ONE for d, e in enumerate(full) if d != 1):
            return build.reshape(o, shape=full[1:2])
        return build.permute_dims(build.reshape(o, shape=full), axes=TO_NHWC)


def _has_narrow_groups(call: Call) -> bool:
    """Whether the output channels of a group are no whole vectors, so that a vector of channels would read the inputs of several groups.

    Vectors of pixels, as in NCHW, are ten times faster for groups of 2 or 4 channels, and 1.4 to 1.8 times for 12 and 24.
    """
    groups, shape = call.attr("groups"), call.args[1].type.shape
    if call.operator != "conv2d" or groups == 1 or len(shape) == 3:  # a depthwise filter of three dimensions ignores `groups`
        return False
    if image_of_depthwise(call) is not None and shape[0] == groups:
        return False
    channels = shape[0].const
    return channels is not None and channels // groups % LANES != 0


def _convolution(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    if call.attr("layout") != "NCHW" or call.keywords.get("image_layout"):  # `image_layout` already selects the layout of the image
        return None
    if _has_narrow_groups(call):
        return None
    x, w = call.args
    axes = (2, 3, 1, 0) if len(w.type.shape) == 4 else (1, 2, 0)  # a depthwise filter may have no axis of input channels
    weight = build.permute_dims(w, axes=axes, name=w.name)
    return c.image(build.call(call.operator, c.convert(x, build), weight, **{**call.keywords, "layout": "NHWC"}), build)


def _pool(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    if call.attr("layout") != "NCHW":
        return None
    return c.image(build.call(call.operator, c.convert(call.args[0], build), **{**call.keywords, "layout": "NHWC"}), build)


def _batch_norm(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x, *statistics = call.args
    if x not in c.converted:
        return None
    axis = _NHWC_AXIS[call.attr("axis") % 4]
    return c.image(build.call(call.operator, c.converted[x], *statistics, **{**call.keywords, "axis": axis}), build)


def _reduction(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    """Reduce over height and width, whose result is the same in both layouts unless `keepdims` is set."""
    x = call.args[0]
    axes = call.attr("axes")
    if x not in c.converted or axes is None or {a % 4 for a in axes} != {2, 3}:
        return None
    out = build.call(call.operator, c.converted[x], **{**call.keywords, "axes": (1, 2)})
    return c.image(out, build) if call.attr("keepdims") else [out]


def _concat(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    if not any(a in c.converted for a in call.args):
        return None
    return c.image(build.concat(*[c.convert(a, build) for a in call.args], axis=_NHWC_AXIS[call.attr("axis") % 4]), build)


def _slice(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x = call.args[0]
    if x not in c.converted:
        return None
    axes = tuple([_NHWC_AXIS[a % 4] for a in call.attr("axes")])
    return c.image(build.call(call.operator, c.converted[x], **{**call.keywords, "axes": axes}), build)


def _pad(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    x = call.args[0]
    if x not in c.converted:
        return None
    moved = {key: tuple([call.attr(key)[d] for d in TO_NHWC]) for key in ("before", "after")}
    return c.image(build.call(call.operator, c.converted[x], **{**call.keywords, **moved}), build)


def _reshape(c: _Convert, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
    """Reshape an image of one pixel, whose elements have the same order in both layouts."""
    x = call.args[0]
    if x not in c.converted or x.type.shape[2:] != (ONE, ONE):
        return None
    return [build.reshape(c.converted[x], shape=call.attr("shape"))]


_RULES: dict[str, Callable[[_Convert, Call, RegionBuilder], Sequence[Operand] | None]] = {
    "conv2d": _convolution,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "batch_norm": _batch_norm,
    "concat": _concat,
    "strided_slice": _slice,
    "pad": _pad,
    "reshape": _reshape,
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), _reduction),
}
