"""Convert ONNX normalisations: batch, layer, RMS, instance, group and local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.ir.poly import Index, poly, product


def _channels(node: OnnxNode, v: Datum, n: int) -> Datum:
    """A per-channel tensor reshaped to broadcast along axis 1 of a tensor of `n` dimensions."""
    return node.b.reshape(v, shape=tuple([shape_of(v)[0] if i == 1 else 1 for i in range(n)]))


def _batch_norm(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    if node.version < 9 and not node.attr("spatial", 1):
        raise node.refuse("per-element statistics (spatial=0)")
    scale, bias, mean, variance = (cast_to(b, node.input(i), x.type.dtype) for i in range(1, 5))
    eps, momentum = node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    if not node.attr("training_mode", 0):
        return b.batch_norm(x, scale, bias, mean, variance, eps=eps, axis=1)
    axes = tuple([i for i in range(rank(x)) if i != 1])
    now = b.mean(x, axes=axes)
    apart = b.subtract(x, _channels(node, now, rank(x)))
    spread = b.mean(b.multiply(apart, apart), axes=axes)
    made = b.batch_norm(x, scale, bias, now, spread, eps=eps, axis=1)

    def running(old: Datum, new: Datum) -> Datum:
        return b.add(b.multiply(old, node.like(momentum, old)), b.multiply(new, node.like(1 - momentum, new)))

    return made, running(mean, now), running(variance, spread)


def _layer_norm(node: OnnxNode) -> Converted:
    x, b, n = node.input(0), node.b, rank(node.input(0))
    axis, eps = normalised(node.attr("axis", -1), n), node.attr("epsilon", 1e-5)
    axes = tuple(range(axis, n))
    made = _scaled(node, "layer_norm", x, axes, eps)
    if not node.wants(1) and not node.wants(2):
        return made
    wide = cast_to(b, x, "float32") if x.type.dtype in ("float16", "bfloat16") else x
    mean = b.mean(wide, axes=axes, keepdims=True)
    apart = b.subtract(wide, mean)
    variance = b.mean(b.multiply(apart, apart), axes=axes, keepdims=True)
    return made, mean, b.rsqrt(b.add(variance, node.like(eps, variance)))


def _rms_norm(node: OnnxNode) -> Converted:
    x = node.input(0)
    axes = tuple(range(normalised(node.attr("axis", -1), rank(x)), rank(x)))
    return _scaled(node, "rms_norm", x, axes, node.attr("epsilon", 1e-5))


def _scaled(node: OnnxNode, operator: str, x: Datum, axes: tuple[int, ...], eps: float) -> Datum:
    """The norm with scale and bias as operands if they have the normalised shape, else with separate broadcast arithmetic."""
    b = node.b
    inner = tuple([x.type.shape[a] for a in axes])
    parts = [cast_to(b, p, x.type.dtype) for p in (node.get(1), node.get(2)) if p is not None]
    if all(p.type.shape == inner for p in parts):
        return b.call(operator, x, *parts, axes=axes, eps=eps)
    made = b.call(operator, x, axes=axes, eps=eps)
    for combine, part in zip(("multiply", "add"), parts, strict=False):
        made = b.call(combine, made, part)
    return made


def _planes(node: OnnxNode, x: Datum) -> Datum:
    """[n, c, ...] reshaped to [n, c, h, w]."""
    shape = x.type.shape
    if rank(x) == 4:
        return x
    if rank(x) == 3:
        return node.b.expand_dims(x, axes=(3,))
    return node.b.reshape(x, shape=(shape[0], shape[1], product(shape[2:]), 1))


def _instance_norm(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    made = b.instance_norm(_planes(node, x), node.input(1), node.input(2), eps=node.attr("epsilon", 1e-5))
    return made if rank(x) == 4 else b.reshape(made, shape=shape_of(x))


def _group_norm(node: OnnxNode) -> Converted:
    x, b, groups = node.input(0), node.b, node.attr("num_groups")
    channels = x.type.shape[1]
    scale, bias = node.input(1), node.input(2)
    if node.version < 21:  # scale and bias are per group
        each = channels // groups
        scale, bias = (_repeated(node, v, groups, each) for v in (scale, bias))
    made = b.group_norm(_planes(node, x), scale, bias, groups=groups, eps=node.attr("epsilon", 1e-5))
    return made if rank(x) == 4 else b.reshape(made, shape=shape_of(x))


def _repeated(node: OnnxNode, v: Datum, groups: int, each: Index) -> Datum:
    b = node.b
    wide = b.broadcast_to(b.reshape(v, shape=(groups, 1)), shape=(groups, each))
    return b.reshape(wide, shape=(poly(each) * groups,))


def _lrn(node: OnnxNode) -> Converted:
    numbers = {k: float(node.attr(k, d)) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))}
    return node.b.lrn(node.input(0), size=node.attr("size"), **numbers)


CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
}
