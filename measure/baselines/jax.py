"""Run operators with JAX (XLA's CPU compiler), each as one jitted function on arrays that are already on the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall

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
        if call.name == "conv2d":
            return [_conv2d(call, device, layout) for layout in ("NHWC", "NCHW")]
        function = _functions().get(call.name)
        if function is None:
            return []
        return [_jitted("jit", partial(function, call), list(call.inputs.values()), device)]


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
    """All operators except conv2d, each a function of the call and the arrays."""
    import jax
    import jax.numpy as jnp

    def dense(call: OperatorCall, x: Any, w: Any, bias: Any = None) -> Any:
        y = jnp.matmul(x, w)
        if bias is not None:
            y = y + bias
        return jax.nn.relu(y) if call.activation == "relu" else jax.nn.gelu(y, approximate=False) if call.activation == "gelu" else y

    def total(call: OperatorCall, x: Any) -> Any:
        return jnp.sum(x, axis=call.axes("axis") or None, dtype=x.dtype)

    def layer_norm(call: OperatorCall, x: Any, gamma: Any, beta: Any) -> Any:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.var(x, axis=-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + call.real("eps")) * gamma + beta

    return {
        "matmul": lambda call, a, b: jnp.matmul(a, b),
        "batch_matmul": lambda call, a, b: jnp.matmul(a, b),
        "dense": dense,
        "softmax": lambda call, x: jax.nn.softmax(x, axis=-1),
        "sum": total,
        "layer_norm": layer_norm,
        "relu": lambda call, x: jax.nn.relu(x),
        "add": lambda call, a, b: a + b,
    }


def _conv2d(call: OperatorCall, device: Any, layout: str) -> PreparedCall:
    """A convolution computed in `layout`, independent of the layout of the call."""
    import jax

    x, w = call.inputs["X"], call.inputs["W"]
    back: tuple[int, ...] = ()
    if call.text("layout") == "NHWC" and layout == "NCHW":
        x, w, back = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (0, 2, 3, 1)
    elif call.text("layout") == "NCHW" and layout == "NHWC":
        x, w, back = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), (0, 3, 1, 2)
    stride, pad, dilation, groups, relu = (call.number(name) for name in ("stride", "pad", "dilation", "groups", "relu"))
    kernel = "HWIO" if layout == "NHWC" else "OIHW"
    channels = (1, 1, 1, -1) if layout == "NHWC" else (1, -1, 1, 1)

    def function(x: Any, w: Any, bias: Any = None) -> Any:
        y = jax.lax.conv_general_dilated(
            x,
            w,
            window_strides=(stride, stride),
            padding=((pad, pad), (pad, pad)),
            rhs_dilation=(dilation, dilation),
            dimension_numbers=(layout, kernel, layout),
            feature_group_count=groups,
        )
        if bias is not None:
            y = y + bias.reshape(channels)
        return jax.nn.relu(y) if relu else y

    arrays = [np.ascontiguousarray(x), np.ascontiguousarray(w), *([call.inputs["bias"]] if "bias" in call.inputs else [])]
    return _jitted(layout, function, arrays, device, back)
