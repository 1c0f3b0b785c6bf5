"""Run operators with JAX (XLA's CPU compiler), each as one jitted function on arrays that are already on the device."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.ops.convolution import DIMENSIONS, LAYOUTS

_DTYPES = ("float32", "float16", "int32", "int8", "uint8")
"""64-bit dtypes are excluded, because JAX converts them to 32 bits by default."""


class JaxBaseline(Baseline):
    """JAX on CPU devices.

    XLA creates its thread pool on first use and keeps it: this baseline has the requested number of threads only if it is the first
    user of JAX in the process.
    """

    name: ClassVar[str] = "jax"
    package: ClassVar[str] = "jax"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator; for convolutions one per layout."""
        if call.dtype not in _DTYPES or not call.is_common:
            return []
        device = _cpu(self.threads)
        if call.name in ("conv1d", "conv2d", "conv3d"):
            return [_convolution(call, device, layout) for layout in LAYOUTS[len(call.window)]]
        function = _functions().get(call.name)
        if (
            function is None
            or call.workload.params.get("groups", 1) != 1
            or call.workload.params.get("coordinates", "half_pixel") != "half_pixel"
        ):
            return []
        if call.workload.params.get("mode") == "nearest":  # JAX rounds to another pixel
            return []
        return [_jitted("jit", partial(function, call), [_narrow(x) for x in call.inputs.values()], device)]


def _narrow(x: np.ndarray) -> np.ndarray:
    """Indices as 32-bit integers, the type that JAX has by default."""
    return x.astype(np.int32) if x.dtype == np.int64 else x


def _cpu(threads: int) -> Any:
    """The CPU device.  XLA reads NPROC once, when the client is created."""
    import jax

    before = os.environ.get("NPROC")
    os.environ["NPROC"] = str(threads)
    try:
        return jax.devices("cpu")[0]
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def _jitted(
    variant: str, function: Callable[..., Any], arrays: Sequence[np.ndarray], device: Any, back: Sequence[int] = ()
) -> PreparedCall:
    """Compile for arrays on the device.  `back` transposes the result to the requested layout."""
    import jax

    arguments = [jax.device_put(array, device) for array in arrays]
    compiled = jax.jit(function)

    def run() -> object:
        return compiled(*arguments).block_until_ready()

    def output(value: object) -> np.ndarray:
        array = np.asarray(value)
        return array.transpose(back) if back else array

    return PreparedCall(variant, run, output)


def _functions() -> dict[str, Callable[..., Any]]:
    """All operators except convolutions, each a function of the call and the arrays."""
    import jax
    import jax.numpy as jnp

    def dense(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
        y = jnp.matmul(x, w)
        if bias is not None:
            y = y + bias
        return jax.nn.relu(y) if call.activation == "relu" else jax.nn.gelu(y, approximate=False) if call.activation == "gelu" else y

    def along(function: Any) -> Callable[..., Any]:
        return lambda call, x: function(x, axis=call.number("axis") % x.ndim)

    def total(call: OperatorCall, x: Any) -> Any:
        return jnp.sum(x, axis=call.axes("axis") or None, dtype=x.dtype)

    def product(call: OperatorCall, x: Any) -> Any:
        return jnp.prod(x, axis=call.axes("axis") or None, dtype=x.dtype)

    def variance(call: OperatorCall, x: Any) -> Any:
        return jnp.var(x, axis=call.axes("axis") or None, ddof=call.number("correction"))

    def layer_norm(call: OperatorCall, x: Any, gamma: Any, beta: Any) -> Any:
        return _standardised(x, -1, call) * gamma + beta

    def rms_norm(call: OperatorCall, x: Any, gamma: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + call.real("eps")) * gamma

    def attention(call: OperatorCall, q: Any, k: Any, v: Any) -> Any:
        scores = jnp.matmul(q, k.swapaxes(1, 2)) * (1 / math.sqrt(q.shape[2]))
        if call.number("causal"):
            scores = jnp.where(np.tri(*scores.shape[1:], dtype=np.bool_), scores, -jnp.inf)
        return jnp.matmul(jax.nn.softmax(scores, axis=-1), v)

    return {
        "matmul": lambda call, a, b: jnp.matmul(a, b),
        "batch_matmul": lambda call, a, b: jnp.matmul(a, b),
        "dense": dense,
        "softmax": lambda call, x: jax.nn.softmax(x, axis=call.number("axis")),
        "log_softmax": lambda call, x: jax.nn.log_softmax(x, axis=call.number("axis")),
        "sum": total,
        "prod": product,
        "variance": variance,
        **{name: along(getattr(jax.lax, name)) for name in ("cumsum", "cumprod", "cummax", "cummin")},
        "logcumsumexp": along(jax.lax.cumlogsumexp),
        "matrix_norm": lambda call, x: jnp.sqrt(jnp.sum(x * x, axis=(1, 2))),
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "instance_norm": _instance_norm,
        "attention": attention,
        "gather": lambda call, x, index: jnp.take(x, index, axis=0, mode="clip"),
        "embedding": lambda call, index, w: jnp.take(w, index, axis=0, mode="clip"),
        "resize2d": lambda call, x: jax.image.resize(x, call.output, "linear", antialias=False),
        **{f"conv{rank}d_transpose": _transposed for rank in LAYOUTS},
        **{f"{kind}_pool{rank}d": _pool for kind in ("max", "avg") for rank in LAYOUTS},
        "relu": lambda call, x: jax.nn.relu(x),
        "add": lambda call, a, b: a + b,
    }


def _standardised(x: Any, axes: Any, call: OperatorCall) -> Any:
    import jax
    import jax.numpy as jnp

    mean, variance = jnp.mean(x, axis=axes, keepdims=True), jnp.var(x, axis=axes, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + call.real("eps"))


def _instance_norm(call: OperatorCall, x: Any, gamma: Any, beta: Any) -> Any:
    last = call.text("layout").endswith("C")
    shape = [-1 if d == (x.ndim - 1 if last else 1) else 1 for d in range(x.ndim)]
    axes = tuple(range(1, x.ndim - 1)) if last else tuple(range(2, x.ndim))
    return _standardised(x, axes, call) * gamma.reshape(shape) + beta.reshape(shape)


def _pool(call: OperatorCall, x: Any) -> Any:
    """Windows reduced by XLA; the numbers of elements of windows are constants."""
    import jax
    import jax.numpy as jnp

    stride, pad = call.number("stride"), call.number("pad")
    once, none = ([1], [(0, 0)]) if call.text("layout").endswith("C") else ([], [])
    lead, no = [1] * (2 - len(once)), [(0, 0)] * (2 - len(none))
    window, strides = (*lead, *call.window, *once), (*lead, *[stride] * len(call.window), *once)
    padding = [*no, *[(pad, pad)] * len(call.window), *none]
    if call.name.startswith("max"):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)

    def sums(values: Any) -> Any:
        return jax.lax.reduce_window(values, np.zeros((), x.dtype)[()], jax.lax.add, window, strides, padding)

    if call.number("count_include_pad"):
        return sums(x) / math.prod(call.window)
    return sums(x) / sums(jnp.ones_like(x))


def _transposed(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
    """A convolution of the image with zeros between its elements, with mirrored filters."""
    import jax
    import jax.numpy as jnp

    layout, rank = call.text("layout"), len(call.window)
    stride, pad, added, dilation = (call.number(name) for name in ("stride", "pad", "output_pad", "dilation"))
    last, dims = layout.endswith("C"), DIMENSIONS[rank].upper()
    edges = [dilation * (k - 1) - pad for k in call.window]
    y = jax.lax.conv_general_dilated(
        x,
        jnp.flip(w, tuple(range(rank)) if last else tuple(range(2, rank + 2))),
        window_strides=(1,) * rank,
        padding=[(edge, edge + added) for edge in edges],
        lhs_dilation=(stride,) * rank,
        rhs_dilation=(dilation,) * rank,
        dimension_numbers=(layout, f"{dims}OI" if last else f"IO{dims}", layout),
    )
    if bias is not None:
        y = y + bias.reshape([-1 if d == (rank + 1 if last else 1) else 1 for d in range(rank + 2)])
    return jax.nn.relu(y) if call.number("relu") else y


def _convolution(call: OperatorCall, device: Any, layout: str) -> PreparedCall:
    """A convolution computed in `layout`, independent of the layout of the call."""
    import jax

    x, w, own, rank = call.inputs["X"], call.inputs["W"], call.text("layout"), len(call.window)
    axes, last, dims = tuple(range(rank + 2)), layout.endswith("C"), DIMENSIONS[rank].upper()
    back: tuple[int, ...] = ()
    if own != layout:
        x, w = np.moveaxis(x, *((1, -1) if last else (-1, 1))), np.moveaxis(w, *(((0, 1), (-1, -2)) if last else ((-1, -2), (0, 1))))
        back = (0, axes[-1], *axes[1:-1]) if last else (0, *axes[2:], 1)
    stride, pad, dilation, groups, relu = (call.number(name) for name in ("stride", "pad", "dilation", "groups", "relu"))

    def function(x: Any, w: Any, bias: Any = None) -> Any:
        y = jax.lax.conv_general_dilated(
            x,
            w,
            window_strides=(stride,) * rank,
            padding=((pad, pad),) * rank,
            rhs_dilation=(dilation,) * rank,
            dimension_numbers=(layout, f"{dims}IO" if last else f"OI{dims}", layout),
            feature_group_count=groups,
        )
        if bias is not None:
            y = y + bias.reshape([-1 if d == (rank + 1 if last else 1) else 1 for d in axes])
        return jax.nn.relu(y) if relu else y

    arrays = [np.ascontiguousarray(x), np.ascontiguousarray(w), *([call.inputs["bias"]] if "bias" in call.inputs else [])]
    return _jitted(layout, function, arrays, device, back)
