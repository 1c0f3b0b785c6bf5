"""Find depthwise convolutions, which read images of bytes."""

from __future__ import annotations

from tunesmith.graph.ir.node import Call, Operand


def image_of_depthwise(call: Call) -> Operand | None:
    """The image of a depthwise two-dimensional convolution; None for other calls.

    A convolution is depthwise if it has as many groups as input channels, or a filter of three dimensions, which ignores `groups`.
    """
    if call.operator != "conv2d" or call.args[0] in call.args[1:]:
        return None
    if len(call.args[1].type.shape) == 3:
        return call.args[0]
    layout = str(call.keywords.get("image_layout") or call.attr("layout"))
    channels = call.args[0].type.shape[layout.index("C")]
    return call.args[0] if call.attr("groups") != 1 and channels == call.attr("groups") else None
