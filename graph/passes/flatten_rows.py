"""Flatten leading dimensions of products with a matrix, and of row-wise operators that follow, to one axis of rows.

Batch and sequence, or batch and image of a convolution with a window of one pixel, become one axis, which schedules tile as a whole;
lowered programs do not depend on the leading dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Operand, Operation, TensorType
from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GRAPH_OPERATORS
from tunesmith.graph.passes.layout_rewriter import LayoutRewriter
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import ONE, Poly, product

_ROWWISE = {"layer_norm": "axes", "rms_norm": "axes", "softmax": "axis", "log_softmax": "axis", "batch_norm": "axis"}
"""Row-wise operator -> the attribute with the axis of its rows."""


def flatten_rows(mod: IRModule) -> IRModule:
    """Rewrite matmul(x[a, b, k], w[k, n]) to a matmul of x[a * b, k], and float32 convolutions in NHWC with a window of one pixel and
    stride 1 to a matmul of x[n * h * w, c]; following elementwise operators and norms also use rows."""
    return mod.update({name: _Flatten()(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Flatten(LayoutRewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, Call):
            return None
        ranks = [len(a.type.shape) for a in operation.args]
        if operation.operator in ("matmul", "matmul_int4") and ranks[0] > 2 and ranks[1] == 2:
            x, *weights = operation.args
            rows = build.call(operation.operator, self.convert(x, build), *weights, **operation.keywords)
            return self._unflatten(rows, x.type.shape[:-1], build)
        if operation.operator == "conv2d" and _is_product(operation):
            x, w = operation.args
            matrix = build.reshape(w, shape=w.type.shape[2:], name=w.name)
            rows = build.matmul(self.convert(x, build), matrix, out_dtype=operation.attr("out_dtype"))
            return self._unflatten(rows, x.type.shape[:-1], build)
        if operation.operator == "reshape" and operation.args[0] in self.converted:
            return [build.reshape(self.converted[operation.args[0]], shape=operation.attr("shape"))]
        if operation.operator in _ROWWISE and operation.args[0] in self.converted:
            return self._rows(operation, build)
        pointwise = GRAPH_OPERATORS.get(operation.operator).kind in (ELEMENTWISE, BROADCAST)
        return self._pointwise(operation, build) if pointwise and any(a in self.converted for a in operation.args) else None

    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        shape = o.type.shape
        return build.reshape(o, shape=(product(shape[:-1]), shape[-1]), name=o.name)

    def inverse(self, converted: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        return build.reshape(converted, shape=type.shape, name=converted.name)

    def _unflatten(self, rows: Operand, lead: tuple[Poly, ...], build: RegionBuilder) -> list[Operand]:
        return self.restore(rows, TensorType((*lead, rows.type.shape[-1]), rows.type.dtype), build)

    def _rows(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        x, key = call.args[0], _ROWWISE[call.operator]
        axes = call.attr(key) if key == "axes" else (call.attr(key),)
        rank = len(x.type.shape)
        if tuple([a % rank for a in axes]) != (rank - 1,):
            return None
        last = {key: (-1,) if key == "axes" else -1}
        rows = build.call(call.operator, self.converted[x], *call.args[1:], **{**call.keywords, **last})
        return self._unflatten(rows, x.type.shape[:-1], build)

    def _pointwise(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        """Rewrite a call if every operand has the unconverted shape, or is one row or one number."""
        shape = next(a.type.shape for a in call.args if a in self.converted)
        args = [self._aligned(a, shape, build) for a in call.args]
        if any(a is None for a in args):
            return None
        return self._unflatten(build.call(call.operator, *[a for a in args if a is not None], **call.keywords), shape[:-1], build)

    def _aligned(self, o: Operand, shape: tuple[Poly, ...], build: RegionBuilder) -> Operand | None:
        own = o.type.shape
        if own == shape:
            return self.convert(o, build)
        if len(own) > len(shape):  # the result has more dimensions than the converted values
            return None
        if all(e == ONE for e in own):
            return build.reshape(o, shape=()) if own else o
        if own[-1] == shape[-1] and all(e == ONE for e in own[:-1]):
            return o if len(own) == 1 else build.reshape(o, shape=own[-1:])
        return None


def _is_product(conv: Call) -> bool:
    """Whether a convolution multiplies each pixel of an image of float32 by one matrix."""
    x, w = conv.args
    layouts = conv.attr("layout") == "NHWC" and conv.attr("image_layout") in ("", "NHWC")
    window = [e.const for e in w.type.shape[:2]] == [1, 1] and len(w.type.shape) == 4 and conv.attr("groups") == 1
    apart = conv.attr("strides") != (1, 1) or any(conv.attr("padding"))
    return layouts and window and not apart and x.type.dtype == w.type.dtype == "float32"
