"""Convert torch pooling over one to three dimensions: windows of one size, windows that adapt to the size of the result, and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, array_of, converts
from tunesmith.graph.importers.torch.images import each_axis, sides
from tunesmith.graph.importers.torch.reductions import reduced
from tunesmith.graph.ir.node import Constant, Operand
from tunesmith.support import dtype as dt


def _pool(
    call: TorchCall,
    operator: str,
    x: Operand,
    kernel: Any,
    stride: Any,
    padding: Any,
    dims: int,
    dilation: Any = None,
    *,
    of: Operand | None = None,
    **attrs: Any,
) -> Operand:
    """Pooling over one to three spatial dimensions, of a batch or a single image; `of` is a second operand, the result of another
    pooling of the same windows."""
    single = len(x.type.shape) == dims + 1
    added = (*([0] if single else []), *([2] if dims == 1 else []))
    images = [call.emit("expand_dims", v, axes=added) if added else v for v in (x, of) if v is not None]
    kernels, strides, pads = each_axis(kernel, dims), each_axis(stride or kernel, dims), each_axis(padding, dims)
    dilations = each_axis(1 if dilation is None else dilation, dims)
    if dims == 1:
        kernels, strides, pads, dilations = (1, *kernels), (1, *strides), (0, *pads), (1, *dilations)
    window = {"kernel": kernels, "strides": strides, "padding": sides(pads), "dilation": dilations}
    name, layout = (operator.format("3d"), "NCDHW") if dims == 3 else (operator.format("2d"), "NCHW")
    made = call.emit(name, *images, layout=layout, **window, **attrs)
    return call.emit("squeeze", made, axes=added) if added else made


def _max_pool(dims: int) -> Any:
    def convert(call: TorchCall, x: Operand, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Operand:
        return _pool(call, "max_pool{}", x, kernel, stride, padding, dims, dilation, ceil_mode=ceil_mode)

    return convert


def _avg_pool(dims: int) -> Any:
    def convert(
        call: TorchCall,
        x: Operand,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_padding: bool,
        divisor: int | None = None,
    ) -> Operand:
        if divisor is None:
            return _pool(call, "avg_pool{}", x, kernel, stride, padding, dims, ceil_mode=ceil_mode, count_include_pad=count_padding)
        if ceil_mode:
            call.refuse(
                "divisor_override with ceil_mode is not supported, because windows beyond the padding differ in size; pad the input"
            )
        made = _pool(call, "avg_pool{}", x, kernel, stride, padding, dims, count_include_pad=True)
        return call.emit("multiply", made, call.operand(math.prod(each_axis(kernel, dims)) / divisor))

    return convert


for _dims in (1, 2, 3):
    TORCH_OPERATORS.register(f"aten.max_pool{_dims}d.default", _max_pool(_dims))
    TORCH_OPERATORS.register(f"aten.avg_pool{_dims}d.default", _avg_pool(_dims))


# ---- maxima with their indices ----------------------------------------------------------------------------------------------------------


def _max_pool_with_indices(dims: int) -> Any:
    """Maxima, and for each the flat index of its first occurrence in the image."""

    def convert(
        call: TorchCall, x: Operand, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Sequence[Operand]:
        window = (kernel, stride, padding, dims, dilation)
        values = _pool(call, "max_pool{}", x, *window, ceil_mode=ceil_mode)
        return [values, _pool(call, "max_pool{}_indices", x, *window, of=values, ceil_mode=ceil_mode)]

    return convert


for _dims in (2, 3):
    TORCH_OPERATORS.register(f"aten.max_pool{_dims}d_with_indices.default", _max_pool_with_indices(_dims))


# ---- windows that adapt to the size of the result ---------------------------------------------------------------------------------------


def _windows(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Torch's windows along an axis, from floor(i old / new) to ceil((i + 1) old / new): indices, with the last one repeated to the
    length of the longest window, and which of them count."""
    i = np.arange(new)
    start, end = i * old // new, -((i + 1) * old // -new)
    taps = start[:, None] + np.arange((end - start).max())
    return np.minimum(taps, end[:, None] - 1), taps < end[:, None]


def _along(call: TorchCall, x: Operand, axis: int, new: int, mean: bool) -> Operand:
    """Pool one axis with windows of different sizes: gather each window, then reduce it."""
    taps, counts = _windows(x.type.shape[axis].as_int(), new)
    made = call.emit("take", x, Constant("taps", taps), axis=axis)
    if not mean:
        return call.emit("max", made, axes=(axis + 1,), keepdims=False)
    beyond = [1] * (len(x.type.shape) - axis - 1)
    if not counts.all():
        made = call.emit("where", Constant("inside", counts.reshape(*counts.shape, *beyond)), made, call.operand(0.0, x.type.dtype))
    total = call.emit("sum", made, axes=(axis + 1,), keepdims=False)
    sizes = counts.sum(1).reshape(-1, *beyond)
    return call.emit("divide", total, call.constant(sizes, x.type.dtype))


def _adaptive(dims: int, operator: str, reduction: str) -> Any:
    """Pool to a given output size: a reduction for size 1, equal windows, or one axis after the other."""

    def convert(call: TorchCall, x: Operand, _: Any) -> Operand:
        rank = len(x.type.shape)
        inner, outer = x.type.shape[rank - dims :], call.shape[rank - dims :]
        if inner == outer:
            return x
        if all(e == 1 for e in outer):
            return reduced(call, reduction, x, list(range(rank - dims, rank)), True)
        if any(i.const is None or o.const is None for i, o in zip(inner, outer, strict=True)):
            call.refuse(f"its windows depend on dynamic sizes: {inner} pixels in {outer} windows; fix the sizes, or pool to one window")
        if all(i.as_int() % o.as_int() == 0 for i, o in zip(inner, outer, strict=True)):
            kernel = [i.as_int() // o.as_int() for i, o in zip(inner, outer, strict=True)]
            return _pool(call, operator, x, kernel, kernel, 0, dims)
        made = call.cast(x, dt.widened(x.type.dtype)) if reduction == "mean" else x
        for d, (i, o) in enumerate(zip(inner, outer, strict=True)):
            if i != o:
                made = _along(call, made, rank - dims + d, o.as_int(), reduction == "mean")
        return call.cast(made, x.type.dtype)

    return convert


def _with_indices(convert: Any, dims: int) -> Any:
    """Wrap a converter of maxima for torch's operators that also return indices, which are supported along one axis."""

    def converted(call: TorchCall, x: Operand, size: Any) -> Sequence[Operand | None]:
        return [convert(call, x, size), _adaptive_indices(call, x) if dims == 1 and _is_static(x, call) else None]

    return converted


def _is_static(x: Operand, call: TorchCall) -> bool:
    return x.type.shape[-1].const is not None and call.shape[-1].const is not None


def _adaptive_indices(call: TorchCall, x: Operand) -> Operand:
    """The place of the first maximum of each window along the last axis."""
    axis = len(x.type.shape) - 1
    taps, _ = _windows(x.type.shape[axis].as_int(), call.shape[axis].as_int())
    windows = call.emit("take", x, Constant("taps", taps), axis=axis)
    place = call.emit("argmax", windows, axis=axis + 1, keepdims=False)
    return call.emit("add", place, Constant("start", taps[:, 0].astype(np.int64)))


for _dims in (1, 2, 3):
    TORCH_OPERATORS.register(f"aten.adaptive_avg_pool{_dims}d.default", _adaptive(_dims, "avg_pool{}", "mean"))
    TORCH_OPERATORS.register(f"aten.adaptive_max_pool{_dims}d.default", _with_indices(_adaptive(_dims, "max_pool{}", "max"), _dims))
for _dims in (2, 3):
    TORCH_OPERATORS.register(f"aten._adaptive_avg_pool{_dims}d.default", _adaptive(_dims, "avg_pool{}", "mean"))


# ---- all windows ------------------------------------------------------------------------------------------------------------------------


@converts("aten.unfold.default")
def unfold(call: TorchCall, x: Operand, dim: int, size: int, step: int) -> Operand:
    """The windows along an axis, as a new last axis."""
    if not x.type.shape:
        return call.reshaped(x, (1,))
    return call.emit("unfold", x, axis=call.axis(dim, len(x.type.shape)), size=size, step=step)


@converts("aten.im2col.default")
def im2col(call: TorchCall, x: Operand, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Operand:
    """The windows of an image as columns: result[n, (c, kh, kw), (h, w)]."""
    kernels, dilations, pads, strides = [each_axis(v, 2) for v in (kernel, dilation, padding, stride)]
    lead = (0,) * (len(x.type.shape) - 2)
    rank = len(lead)
    made = call.emit("pad", x, before=(*lead, *pads), after=(*lead, *pads)) if any(pads) else x
    for d in range(2):
        made = call.emit("unfold", made, axis=rank + d, size=kernels[d], step=strides[d], dilation=dilations[d])
    order = (*range(rank), rank + 2, rank + 3, rank, rank + 1)
    return call.reshaped(call.emit("permute_dims", made, axes=order), call.shape)


@converts("aten.col2im.default")
def col2im(call: TorchCall, x: Operand, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Operand:
    """The sum of windows at their places in an image: a transposed convolution with a filter of a single 1 for each tap."""
    kernels, dilations, pads, strides = [each_axis(v, 2) for v in (kernel, dilation, padding, stride)]
    (height, width), single, taps = call.shape[-2:], len(x.type.shape) == 2, math.prod(kernels)
    columns = call.reshaped(x, (1, *x.type.shape)) if single else x
    if any(e.const is None for e in (height, width, columns.type.shape[1])):
        call.refuse("a fold to an image of dynamic shape is not supported; fix its sizes")
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernels, strict=True)]
    counts = [(e.as_int() + 2 * p - r) // s + 1 for e, p, r, s in zip((height, width), pads, reach, strides, strict=True)]
    channels = columns.type.shape[1].as_int() // taps
    blocks = call.reshaped(columns, (columns.type.shape[0], channels * taps, *counts))
    places = array_of(np.tile(np.eye(taps).reshape(taps, 1, *kernels), (channels, 1, 1, 1)), x.type.dtype)
    rest = [e.as_int() - ((n - 1) * s - 2 * p + r) for e, n, s, p, r in zip((height, width), counts, strides, pads, reach, strict=True)]
    made = call.emit(
        "conv2d_transpose",
        blocks,
        Constant("places", places),
        strides=strides,
        padding=sides(pads),
        dilation=dilations,
        output_padding=tuple(rest),
        groups=channels,
    )
    return call.reshaped(made, call.shape)
