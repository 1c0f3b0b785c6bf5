"""Convert ONNX Fourier transforms to products with cosine and sine matrices; lengths must be known at import."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, extents, normalised, rank
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode

_MOST_POINTS = 4096


def _transformed(node: OnnxNode, real: Datum, imaginary: Datum | None, length: int, bins: int, inverse: bool) -> Datum:
    """The first `bins` of the `length`-point transform along the last axis; a new last axis holds real and imaginary parts."""
    b = node.b
    if length > _MOST_POINTS:
        raise UnsupportedNode(f"a Fourier transform of more than {_MOST_POINTS} points")
    used = extents(real)[-1]
    angles = 2 * np.pi * ((np.arange(used)[:, None] * np.arange(bins)[None, :]) % length) / length
    scale = 1 / length if inverse else 1.0
    cosine = b.constant(np.cos(angles) * scale, real.type.dtype)
    sine = b.constant((np.sin(angles) if inverse else -np.sin(angles)) * scale, real.type.dtype)
    parts = [b.matmul(real, cosine), b.matmul(real, sine)]
    if imaginary is not None:
        parts[0] = b.subtract(parts[0], b.matmul(imaginary, sine))
        parts[1] = b.add(parts[1], b.matmul(imaginary, cosine))
    return b.concat(*[b.expand_dims(p, axes=(-1,)) for p in parts], axis=rank(real))


def _component(node: OnnxNode, x: Datum, i: int) -> Datum:
    last = rank(x) - 1
    return node.b.squeeze(node.b.strided_slice(x, axes=(last,), begin=(i,), end=(i + 1,)), axes=(last,))


def _dft(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    if node.version >= 20:
        axis = node.numbers(2, "axis")[0] if node.has(2) else -2
    else:
        axis = node.attr("axis", 1)
    axis = normalised(axis, rank(x))
    shape = extents(x)
    if shape[-1] not in (1, 2):
        raise node.refuse(f"a last extent of {shape[-1]}; it must be 1 for real and 2 for complex tensors")
    length = node.numbers(1, "dft_length")[0] if node.has(1) else shape[axis]
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if inverse and onesided:
        raise node.refuse("an inverse transform of a one-sided spectrum")
    if shape[axis] > length:
        x = b.strided_slice(x, axes=(axis,), begin=(0,), end=(length,))
    order = (*[i for i in range(rank(x) - 1) if i != axis], axis)
    parts = [b.permute_dims(_component(node, x, i), axes=order) for i in range(shape[-1])]
    bins = length // 2 + 1 if onesided else length
    made = _transformed(node, parts[0], parts[1] if len(parts) > 1 else None, length, bins, inverse)
    return b.permute_dims(made, axes=(*[order.index(i) for i in range(rank(x) - 1)], rank(x) - 1))


def _stft(node: OnnxNode) -> Converted:
    """Windowed frames of the signal, transformed."""
    x, b = node.input(0), node.b
    step = node.numbers(1, "frame_step")[0]
    window = node.get(2)
    length = node.numbers(3, "frame_length")[0] if node.has(3) else extents(node.input(2))[0]
    shape = extents(x)
    starts = np.arange((shape[1] - length) // step + 1) * step
    at = b.constant(starts[:, None] + np.arange(length)[None, :], "int64")
    parts = []
    for i in range(shape[-1] if rank(x) == 3 else 1):
        frames = b.take(_component(node, x, i) if rank(x) == 3 else x, at, axis=1)
        parts.append(frames if window is None else b.multiply(frames, window))
    bins = length // 2 + 1 if node.attr("onesided", 1) else length
    return _transformed(node, parts[0], parts[1] if len(parts) > 1 else None, length, bins, False)


CONVERTERS: Mapping[str, Converter] = {"DFT": _dft, "STFT": _stft}
