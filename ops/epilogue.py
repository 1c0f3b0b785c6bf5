"""Build the epilogue of a contraction: bias, residual and activation, each a separate elementwise stage.

Stages are named bias, residual, and after the activation.  Schedules inline them or compute them at the register tile.
"""

from __future__ import annotations

from tunesmith.ops import tensor_expression as te
from tunesmith.ops.binary import binary
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.ops.unary import unary
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError

ACTIVATIONS = ("none", "relu", "gelu", "tanh", "sigmoid")


def bias_add(x: Tensor, bias: Tensor, axis: int = -1) -> Tensor:
    """x + bias, where `bias` is a vector along `axis` of `x`.

    Raises:
        ScriptError: `bias` has another shape.
    """
    position = axis % len(x.shape)
    if bias.shape != (x.shape[position],):
        raise ScriptError(f"bias_add: {bias!r} is not a vector along axis {axis} of {x!r}")
    return te.compute(x.shape, lambda *index: x[index] + bias[index[position]], "bias", axes=loop_names(x))


def residual_add(x: Tensor, residual: Tensor) -> Tensor:
    """x + residual, which have the same shape."""
    return binary("add", x, residual, "residual", loop_names(x))


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation applied to every element; `x` itself for `none`."""
    return x if activation == "none" else unary(activation, x, activation, loop_names(x))


def check_activation(activation: str, dtype: str) -> None:
    """Raise UserError if the activation of a contraction of `dtype` operands has no integer form."""
    if activation not in ("none", "relu") and not dt.is_float(dtype):
        raise UserError(f"activation={activation}: sums of {dtype} products are integers, which have no activation but relu")


def loop_names(x: Tensor) -> tuple[str, ...] | None:
    """The names of the loops that compute `x`, for the stages that follow it."""
    return tuple([v.name for v in x.axes]) or None
