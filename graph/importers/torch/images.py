"""Convert torch image operators: 1-D and 2-D convolution, pooling and resizing, in torch's layouts (NCHW, weights OIHW)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.importers.torch.reductions import reduced
from tunesmith.graph.ir.node import Constant, Operand
from tunesmith.ir.poly import Poly

# ---- convolutions -----------------------------------------------------------------------------------------------------------------------


def _pair(value: Any) -> tuple[Any, Any]:
    """A per-axis attribute as a pair; a single number applies to both axes."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return (values[0], values[-1])


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
    """Convolution over one or two spatial dimensions, of a batch or a single image."""
    line = len(weight.type.shape) == 3
    if len(weight.type.shape) not in (3, 4):
        call.refuse(f"only convolutions over one and two dimensions are supported, not over {len(weight.type.shape) - 2}")
    single = len(x.type.shape) < len(weight.type.shape)
    if single:
        x = call.emit("expand_dims", x, axes=(0,))
    if line:  # 1-D is 2-D with height 1
        x, weight = [call.emit("expand_dims", t, axes=(2,)) for t in (x, weight)]
    (sh, sw), (ph, pw), (dh, dw), (oh, ow) = [_pair(v) for v in (stride, padding, dilation, output_padding)]
    if line:
        sh, ph, dh, oh = 1, 0, 1, 0
    common = {"strides": (sh, sw), "padding": _sides(ph, pw), "dilation": (dh, dw), "groups": groups, "layout": "NCHW"}
    if transposed:
        made = call.emit("conv2d_transpose", x, weight, output_padding=(oh, ow), **common)
    else:
        made = call.emit("conv2d", x, weight, **common)
    if bias is not None:
        made = call.emit("add", made, call.reshaped(bias, (*bias.type.shape, 1, 1)))
    if line:
        made = call.emit("squeeze", made, axes=(2,))
    return call.emit("squeeze", made, axes=(0,)) if single else made


def _sides(vertical: Any, horizontal: Any) -> tuple[int, int, int, int]:
    """Padding as (top, left, bottom, right), from a number or a (before, after) pair per axis."""
    (top, bottom), (left, right) = [a if isinstance(a, tuple) else (a, a) for a in (vertical, horizontal)]
    return (top, left, bottom, right)


TORCH_OPERATORS.register("aten.convolution.default", lambda call, x, w, b, s, p, d, t, o, g: _convolution(call, x, w, b, s, p, d, g, t, o))
for _name in ("conv1d", "conv2d"):
    TORCH_OPERATORS.register(f"aten.{_name}.default", _convolution)
for _name in ("conv_transpose1d.default", "conv_transpose2d.input"):
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, x, w, b, s, p, o, g, d: _convolution(call, x, w, b, s, p, d, g, True, o))


@converts("aten.conv2d.padding")
def conv_padded(
    call: TorchCall, x: Operand, weight: Operand, bias: Operand | None, stride: Any, padding: str, dilation: Any, groups: int
) -> Operand:
    """Convolution with padding "valid" (none) or "same" (output extents equal input extents; an odd element is added at the end)."""
    amounts: list[Any] = [0, 0]
    if padding == "same":
        kernel = weight.type.shape[2:]
        dilations = _pair(dilation)[-len(kernel) :]
        totals = [d * (k.as_int() - 1) for d, k in zip(dilations, kernel, strict=True)]
        amounts = [(t // 2, t - t // 2) for t in totals]
    return _convolution(call, x, weight, bias, stride, amounts, dilation, groups)


TORCH_OPERATORS.register("aten.conv1d.padding", conv_padded)


# ---- pooling -----------------------------------------------------------------------------------------------------------------------------


def _pool(call: TorchCall, operator: str, x: Operand, kernel: Any, stride: Any, padding: Any, dims: int, **attrs: Any) -> Operand:
    """Pooling over one or two spatial dimensions, of a batch or a single image."""
    single, line = len(x.type.shape) == dims + 1, dims == 1
    if single:
        x = call.emit("expand_dims", x, axes=(0,))
    if line:
        x = call.emit("expand_dims", x, axes=(2,))
    (kh, kw), (sh, sw), (ph, pw) = _pair(kernel), _pair(stride or kernel), _pair(padding)
    if line:
        kh, sh, ph = 1, 1, 0
    made = call.emit(operator, x, kernel=(kh, kw), strides=(sh, sw), padding=_sides(ph, pw), layout="NCHW", **attrs)
    if line:
        made = call.emit("squeeze", made, axes=(2,))
    return call.emit("squeeze", made, axes=(0,)) if single else made


def _max_pool(dims: int) -> Any:
    def convert(call: TorchCall, x: Operand, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Operand:
        (dh, dw) = _pair(dilation)
        pair = (1 if dims == 1 else dh, dw)
        return _pool(call, "max_pool2d", x, kernel, stride, padding, dims, dilation=pair, ceil_mode=ceil_mode)

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
        if divisor is not None:
            call.refuse("divisor_override is not supported; multiply the result instead")
        return _pool(call, "avg_pool2d", x, kernel, stride, padding, dims, ceil_mode=ceil_mode, count_include_pad=count_padding)

    return convert


for _dims in (1, 2):
    TORCH_OPERATORS.register(f"aten.max_pool{_dims}d.default", _max_pool(_dims))
    TORCH_OPERATORS.register(f"aten.avg_pool{_dims}d.default", _avg_pool(_dims))


def _values_only(convert: Any) -> Any:
    """Wrap a pooling converter for torch's operators that also return indices, which are not supported."""
    return lambda call, *args: [convert(call, *args), None]


TORCH_OPERATORS.register("aten.max_pool2d_with_indices.default", _values_only(_max_pool(2)))


def _adaptive(dims: int, operator: str, reduction: str) -> Any:
    """Pool to a given output size: a reduction for size 1, else equal windows; unequal windows are refused."""

    def convert(call: TorchCall, x: Operand, _: Any) -> Operand:
        rank = len(x.type.shape)
        inner, outer = x.type.shape[rank - dims :], call.shape[rank - dims :]
        if inner == outer:
            return x
        if all(e == 1 for e in outer):
            return reduced(call, reduction, x, list(range(rank - dims, rank)), True)
        if any(i.const is None or o.const is None or i.const % o.const for i, o in zip(inner, outer, strict=True)):
            call.refuse(f"its windows have different sizes: {inner} pixels in {outer} windows; pool to a divisor of the size")
        kernel = [i.as_int() // o.as_int() for i, o in zip(inner, outer, strict=True)]
        return _pool(call, operator, x, kernel, kernel, 0, dims)

    return convert


for _dims in (1, 2):
    TORCH_OPERATORS.register(f"aten.adaptive_avg_pool{_dims}d.default", _adaptive(_dims, "avg_pool2d", "mean"))
    TORCH_OPERATORS.register(f"aten.adaptive_max_pool{_dims}d.default", _values_only(_adaptive(_dims, "max_pool2d", "max")))
TORCH_OPERATORS.register("aten._adaptive_avg_pool2d.default", _adaptive(2, "avg_pool2d", "mean"))


# ---- resizing ---------------------------------------------------------------------------------------------------------------------------


def _check_factors(call: TorchCall, x: Operand, scales: Sequence[Any]) -> None:
    """Refuse scale factors whose output extent is rounded: torch then still uses the unrounded factor."""
    for old, new, scale in zip(x.type.shape[2:], call.shape[2:], scales, strict=True):
        exact = scale is None or (float(scale) == int(scale) and new == old * int(scale))
        if not exact and (old.const is None or new.const is None or abs(old.const * float(scale) - new.const) > 1e-6):
            call.refuse(f"the factor {scale} times the extent {old} is not an integer; give the size, or recompute_scale_factor=True")


def _nearest(call: TorchCall, x: Operand, _: Any, *scales: Any) -> Operand:
    """Nearest-neighbour resize: index floor(i * scale) with a float32 scale, which may differ from floor(i * old / new)."""
    given = (scales[0] if len(scales) == 1 else scales) or (None, None)
    _check_factors(call, x, given)
    size = call.shape[2:]
    exact = True
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
    given = (None, None) if corners else scales[0] if len(scales) == 1 else scales  # align_corners ignores the factors
    _check_factors(call, x, given or (None, None))
    return call.emit("resize2d", x, size=call.shape[2:], mode="linear", coordinate_mode="align_corners" if corners else "half_pixel")


for _overload in ("vec", "default"):
    TORCH_OPERATORS.register(f"aten.upsample_nearest2d.{_overload}", _nearest)
    TORCH_OPERATORS.register(f"aten.upsample_bilinear2d.{_overload}", _bilinear)
