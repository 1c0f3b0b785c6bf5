"""Convert torch convolutions over one to three dimensions, and resizing, in torch's layouts (NCHW, weights OIHW)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.ir.node import Constant, Operand
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

# ---- convolutions -----------------------------------------------------------------------------------------------------------------------


def each_axis(value: Any, dims: int) -> tuple[Any, ...]:
    """A per-axis attribute as one entry for each axis; a single number applies to all axes."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(values) if len(values) == dims else (values[0],) * dims


def sides(padding: Sequence[Any]) -> tuple[int, ...]:
    """Padding as all low sides and then all high sides, from a number or a (before, after) pair per axis."""
    pairs = [p if isinstance(p, tuple) else (p, p) for p in padding]
    return (*[low for low, _ in pairs], *[high for _, high in pairs])


def _convolution(
    call: TorchCall,
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    transposed: bool = False,
    output_padding: Any = 0,
) -> Operand:
    """Convolution over one to three spatial dimensions, of a batch or a single image."""
    dims = len(weight.type.shape) - 2
    single = len(x.type.shape) < len(weight.type.shape)
    if single:
        x = call.emit("expand_dims", x, axes=(0,))
    strides, pads, dilations, added = [each_axis(v, dims) for v in (stride, padding, dilation, output_padding)]
    if dims == 1:  # 1-D is 2-D with height 1
        x, weight = [call.emit("expand_dims", t, axes=(2,)) for t in (x, weight)]
        strides, pads, dilations, added = (1, *strides), (0, *pads), (1, *dilations), (0, *added)
    layout = "NCDHW" if dims == 3 else "NCHW"
    common = {"strides": strides, "padding": sides(pads), "dilation": dilations, "groups": groups, "layout": layout}
    operator = f"conv{max(dims, 2)}d"
    if transposed:
        made = call.emit(f"{operator}_transpose", x, weight, output_padding=added, **common)
    else:
        made = call.emit(operator, x, weight, **common)
    if bias is not None:
        made = call.emit("add", made, call.reshaped(bias, (*bias.type.shape, *[1] * max(dims, 2))))
    if dims == 1:
        made = call.emit("squeeze", made, axes=(2,))
    return call.emit("squeeze", made, axes=(0,)) if single else made


TORCH_OPERATORS.register("aten.convolution.default", lambda call, x, w, b, s, p, d, t, o, g: _convolution(call, x, w, b, s, p, d, g, t, o))
for _name in ("conv1d", "conv2d", "conv3d"):
    TORCH_OPERATORS.register(f"aten.{_name}.default", _convolution)
for _name in ("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"):
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, x, w, b, s, p, o, g, d: _convolution(call, x, w, b, s, p, d, g, True, o))


@converts("aten.conv2d.padding")
def conv_padded(
    call: TorchCall, x: Operand, weight: Operand, bias: Operand | None, stride: Any, padding: str, dilation: Any, groups: int
) -> Operand:
    """Convolution with padding "valid" (none) or "same" (output extents equal input extents; an odd element is added at the end)."""
    kernel = weight.type.shape[2:]
    amounts: list[Any] = [0] * len(kernel)
    if padding == "same":
        totals = [d * (k.as_int() - 1) for d, k in zip(each_axis(dilation, len(kernel)), kernel, strict=True)]
        amounts = [(t // 2, t - t // 2) for t in totals]
    return _convolution(call, x, weight, bias, stride, amounts, dilation, groups)


TORCH_OPERATORS.register("aten.conv1d.padding", conv_padded)
TORCH_OPERATORS.register("aten.conv3d.padding", conv_padded)


# ---- resizing ---------------------------------------------------------------------------------------------------------------------------


def _exact(call: TorchCall, x: Operand, scales: Sequence[Any]) -> bool:
    """Whether each scale factor is the quotient of the extents, or none is given; torch uses an unrounded factor as it is."""
    exact = True
    for old, new, scale in zip(x.type.shape[2:], call.shape[2:], scales, strict=True):
        if scale is not None and not (float(scale) == int(scale) and new == old * int(scale)):
            exact &= old.const is not None and new.const is not None and abs(old.const * float(scale) - new.const) <= 1e-6
    return exact


def _nearest(call: TorchCall, x: Operand, _: Any, *scales: Any) -> Operand:
    """Nearest-neighbour resize: index floor(i * scale) with a float32 scale, which may differ from floor(i * old / new)."""
    given = (scales[0] if len(scales) == 1 else scales) or (None, None)
    size = call.shape[2:]
    exact = _exact(call, x, given)
    for old, new, scale in zip(x.type.shape[2:], size, given, strict=True):
        if old.const is not None and new.const is not None:
            exact &= bool((_nearest_rows(old.const, new.const, scale) == np.arange(new.const) * old.const // new.const).all())
        else:  # for symbolic sizes only powers of two are known to be exact
            exact &= old == new or (scale is not None and new == old * int(scale) and math.frexp(float(scale))[0] == 0.5)
    if exact:
        return call.emit("resize2d", x, size=size, mode="nearest", coordinate_mode="asymmetric")
    for axis, scale in zip((2, 3), given, strict=True):
        old, new = x.type.shape[axis], call.shape[axis]
        if old.const is not None and new.const is not None:
            rows: Operand = Constant("rows", _nearest_rows(old.const, new.const, scale))
        else:
            rows = _symbolic_rows(call, old, new, scale)
        x = call.emit("take", x, rows, axis=axis)
    return x


def _nearest_rows(old: int, new: int, scale: Any) -> np.ndarray:
    """Source indices of torch's nearest-neighbour resize along an axis (`nearest_idx` in ATen/native/UpSample.h)."""
    if new == old or new == 2 * old:
        return np.arange(new) * old // new
    factor = np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(old) / np.float32(new)
    return np.minimum(np.floor(np.arange(new).astype(np.float32) * factor), old - 1).astype(np.int64)


def _symbolic_rows(call: TorchCall, old: Poly, new: Poly, scale: Any) -> Operand:
    """`_nearest_rows` for dynamic shapes."""
    if scale is None:
        factor = call.emit("divide", call.operand(old, "float32"), call.operand(new, "float32"))
    else:
        factor = call.number(1.0 / scale, "float32")
    positions = call.cast(call.emit("arange", start=0, stop=new, step=1, dtype="int64"), "float32")
    rows = call.cast(call.emit("floor", call.emit("multiply", positions, factor)), "int64")
    return call.emit("minimum", rows, call.operand(old - 1, "int64"))


def _bilinear(call: TorchCall, x: Operand, _: Any, corners: bool, *scales: Any) -> Operand:
    given = ((None, None) if corners else scales[0] if len(scales) == 1 else scales) or (None, None)  # align_corners ignores the factors
    wide = dt.widened(call.dtype)
    x = call.cast(x, wide)
    if _exact(call, x, given):
        mode = "align_corners" if corners else "half_pixel"
        return call.cast(call.emit("resize2d", x, size=call.shape[2:], mode="linear", coordinate_mode=mode), call.dtype)
    for axis, scale in zip((2, 3), given, strict=True):
        old, new = x.type.shape[axis].as_int(), call.shape[axis].as_int()
        at = np.maximum((np.arange(new) + 0.5) / (scale or new / old) - 0.5, 0.0)
        low = np.minimum(at.astype(np.int64), old - 1)
        part = (at - low).astype(dt.to_numpy(wide)).reshape([-1] + [1] * (3 - axis))
        ends = [call.emit("take", x, Constant("rows", rows), axis=axis) for rows in (low, np.minimum(low + 1, old - 1))]
        shares = [call.constant(share, wide) for share in (1 - part, part)]
        weighted = [call.emit("multiply", e, share) for e, share in zip(ends, shares, strict=True)]
        x = call.emit("add", *weighted)
    return call.cast(x, call.dtype)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.clip(1 - np.abs(x), 0, None)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -1/2, which torch uses with antialiasing, as Pillow does."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0))


def _antialiased(kernel: Any, reach: float) -> Any:
    """Resize with a kernel that is widened when the image becomes smaller: a product with a matrix of weights along each axis."""

    def convert(call: TorchCall, x: Operand, _: Any, corners: bool, *scales: Any) -> Operand:
        given = (scales[0] if len(scales) == 1 else scales) or (None, None)
        for axis, scale in zip((2, 3), given, strict=True):
            if x.type.shape[axis].const is None or call.shape[axis].const is None:
                call.refuse("antialiasing of an image of dynamic shape is not supported; fix its height and width")
            matrix = _weights(x.type.shape[axis].as_int(), call.shape[axis].as_int(), corners, scale, kernel, reach)
            weights = call.constant(matrix, call.dtype)
            x = call.emit("matmul", weights, x) if axis == 2 else call.emit("matmul", x, Constant("weights", weights.data.T.copy()))
        return x

    return convert


def _weights(old: int, new: int, corners: bool, scale: Any, kernel: Any, reach: float) -> np.ndarray:
    """The weight of each old element in each new one (ATen/native/cpu/UpSampleKernel.cpp)."""
    if corners:
        step = (old - 1) / (new - 1) if new > 1 else 0.0
    else:
        step = 1.0 / scale if scale else old / new
    wide = max(step, 1.0)
    centre = step * (np.arange(new) + 0.5)[:, None]
    first = np.maximum((centre - reach * wide + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * wide + 0.5).astype(np.int64), old)
    at = np.arange(old)[None, :]
    made = np.where((at >= first) & (at < last), kernel((at - centre + 0.5) / wide), 0.0)
    return np.asarray(made / made.sum(1, keepdims=True))


for _overload in ("vec", "default"):
    TORCH_OPERATORS.register(f"aten.upsample_nearest2d.{_overload}", _nearest)
    TORCH_OPERATORS.register(f"aten.upsample_bilinear2d.{_overload}", _bilinear)
    TORCH_OPERATORS.register(f"aten._upsample_bilinear2d_aa.{_overload}", _antialiased(_triangle, 1.0))
    TORCH_OPERATORS.register(f"aten._upsample_bicubic2d_aa.{_overload}", _antialiased(_cubic, 2.0))


@converts("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(call: TorchCall, x: Operand, grid: Operand, mode: int, padding: int, align_corners: bool) -> Operand:
    """Pixels at the coordinates of a grid; torch numbers modes and paddings (aten/src/ATen/native/GridSamplerUtils.h)."""
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return call.emit("grid_sample", x, grid, mode=modes[mode], padding=paddings[padding], align_corners=align_corners)
