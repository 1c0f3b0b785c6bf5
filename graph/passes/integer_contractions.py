"""Compute contractions of dequantised operands in integers (source: Jacob et al., "Quantization and training of neural networks for
efficient integer-arithmetic-only inference", CVPR 2018).

    conv2d(dequantize(x, s, z), dequantize(w, t, 0))  ->  (conv2d(x, w) - z * sum(w)) * (s * t)

The convolution multiplies bytes and sums in int32; its padding has the value of the zero point.  The correction is a constant for each
output channel.  What follows, up to the next `quantize`, stays float32, and is fused with the contraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.ir.function import IRModule


def integer_contractions(mod: IRModule) -> IRModule:
    """Apply these rewrites to `conv2d` without groups and to `matmul` with a matrix of weights:

    - a contraction of a dequantised activation, which has one scale, with dequantised constant weights, which have one scale or one for
      each output channel, is computed in integers.  Weights must be int8 after their zero point is subtracted, the padding of images
      must be 0, the products of scales normal numbers, and no sum may exceed int32;
    - a `matmul` of a float32 activation with dequantised constant weights multiplies the bytes, and scales the result, so that sums of
      activations beyond 1e34 may overflow that would not before;
    - `quantize` to int8 before it becomes one to uint8, with a zero point larger by 128, as instructions multiply uint8 with int8.
    """
    # Scales may be computed from constants.
    known = fold_constants(mod, keep="dequantize")
    done = {name: _Integers()(f) for name, f in known.items() if isinstance(f, GraphFunc)}
    return dead_code(known.update(done)) if any(done[name] is not known[name] for name in done) else known


def fits_int32(weights: np.ndarray, axes: tuple[int, ...], largest: int) -> bool:
    """Whether all sums of products of integer weights over `axes` with factors of magnitude up to `largest` fit int32."""
    return bool(np.abs(weights.astype(np.int64)).sum(axes).max(initial=0) * largest < 2**31)


class _Integers(Rewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if not isinstance(operation, Call):
            return None
        if operation.operator in ("conv2d", "matmul"):
            return self._contraction(operation, build)
        return None

    def _contraction(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        activation, weights = self._dequantized(call.args[0]), self._weights(call.args[1])
        if weights is None or (call.operator == "matmul" and len(call.args[1].type.shape) != 2):
            return None
        if call.operator == "conv2d" and (activation is None or call.attr("groups") != 1 or len(call.args[1].type.shape) != 4):
            return None
        if call.operator == "conv2d" and call.attr("padding_value"):
            return None
        w, factors = weights
        last = call.operator == "matmul" or call.attr("layout") == "NHWC"
        axis = w.ndim - 1 if last else 0
        others = tuple([d for d in range(w.ndim) if d != axis])
        if factors.size != 1 and (factors.ndim != w.ndim or factors.size != factors.shape[axis] or factors.size != w.shape[axis]):
            return None
        channels = w.shape[axis]
        if activation is None:
            return self._weights_only(call, w, np.broadcast_to(factors.reshape(-1), channels), build)
        if not fits_int32(w, others, 255):
            return None
        q, scale, zero = activation
        with np.errstate(over="ignore"):
            product = np.float32(scale) * factors.astype(np.float32)
        if not np.isfinite(product).all() or np.any(np.abs(product) < np.finfo(np.float32).tiny):
            return None
        unsigned = self._unsigned(q, build)
        if unsigned is not None:
            q, zero = unsigned, zero + (128 if unsigned is not q else 0)
        attributes: dict[str, Any] = {**call.keywords, "out_dtype": "int32"}
        if call.operator == "conv2d":
            attributes["padding_value"] = zero
        total = build.call(call.operator, q, Constant(call.args[1].name, w), **attributes)
        shape = (-1,) if last else (-1, 1, 1)
        if zero:
            total = build.add(total, Constant("correction", (-zero * w.sum(others, dtype=np.int64)).astype(np.int32).reshape(shape)))
        scales = np.broadcast_to(product.reshape(-1), channels).reshape(shape)
        return [build.multiply(build.cast(total, dtype="float32"), Constant("scale", scales))]

    def _weights_only(self, call: Call, w: np.ndarray, factors: np.ndarray, build: RegionBuilder) -> Sequence[Operand] | None:
        """The product with bytes, scaled afterwards: memory holds a quarter of the weights of float32."""
        if call.args[0].type.dtype != "float32":
            return None
        made = build.call(call.operator, call.args[0], Constant(call.args[1].name, w), **call.keywords)
        return [build.multiply(made, Constant("scale", np.array(factors, np.float32)))]

    def _dequantized(self, o: Operand) -> tuple[Operand, float, int] | None:
        """The bytes, scale and zero point of a dequantised activation."""
        call = self.made_by(o)
        if call is None or call.operator != "dequantize" or call.args[0].type.dtype not in ("int8", "uint8"):
            return None
        q, scale, zero = call.args
        if isinstance(q, Constant) or not _is_number(scale) or not _is_number(zero) or scale.type.dtype != "float32":
            return None
        if q.type.shape != o.type.shape:
            return None
        return q, float(_number(scale)), int(_number(zero))

    def _weights(self, o: Operand) -> tuple[np.ndarray, np.ndarray] | None:
        """The int8 weights with zero point 0, and their scales with the rank of the weights, or of one element."""
        made, call, axes = o, self.made_by(o), None
        if call is not None and call.operator == "permute_dims":
            made, axes = call.args[0], call.attr("axes") or range(len(o.type.shape))[::-1]
            call = self.made_by(made)
        if call is None or call.operator != "dequantize" or not all(isinstance(a, Constant) for a in call.args):
            return None
        q, scale, zero = (a.data for a in call.args if isinstance(a, Constant))
        if q.dtype.itemsize != 1 or scale.dtype != np.float32 or (scale.size > 1 and scale.ndim != q.ndim):
            return None
        centred = q.astype(np.int16) - zero
        if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
            return None
        w = centred.astype(np.int8)
        if w.shape != tuple([e.const for e in made.type.shape]):
            return None
        return (w, scale) if axes is None else (w.transpose(axes), scale.transpose(axes) if scale.size > 1 else scale)

    def _unsigned(self, q: Operand, build: RegionBuilder) -> Operand | None:
        """The uint8 operand of the same values plus 128, if `q` is int8 and quantised in the graph; uint8 itself; None for others."""
        if q.type.dtype == "uint8":
            return q
        call = self.made_by(q)
        if call is None or call.operator != "quantize" or not _is_number(call.args[2]):
            return None
        x, scale, zero = call.args
        shifted = np.full([e.as_int() for e in zero.type.shape], int(_number(zero)) + 128, np.uint8)
        made: Operand = build.quantize(x, scale, Constant(zero.name, shifted), name=q.name)
        return made


def _is_number(o: Operand) -> bool:
    return isinstance(o, Constant) and o.data.size == 1


def _number(o: Operand) -> Any:
    assert isinstance(o, Constant)
    return o.data.reshape(()).item()
