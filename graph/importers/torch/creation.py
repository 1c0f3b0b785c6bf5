"""Convert torch operators that create tensors from numbers and sizes."""

from __future__ import annotations

from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, SizeNumber, TorchCall, converts
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt


def filled(call: TorchCall, value: Any) -> Operand:
    """A constant-filled tensor with the shape and type of the result."""
    if isinstance(value, (Poly, SizeNumber)):
        scalar = call.operand(value)
        return call.emit("broadcast_to", scalar, shape=call.shape) if call.shape else scalar
    number = float(value) if dt.is_float(call.dtype) else bool(value) if call.dtype == "bool" else int(value)
    if not call.shape:
        return call.number(number, call.dtype)
    return call.emit("full", shape=call.shape, value=number, dtype=call.dtype)


for _name in "zeros zeros_like new_zeros empty empty_like new_empty empty_permuted zero".split():
    # The contents of an empty tensor are unspecified, so zeros are valid.
    TORCH_OPERATORS.register(f"aten.{_name}.{'memory_format' if _name == 'empty' else 'default'}", lambda call, *_: filled(call, 0))
for _name in "ones ones_like new_ones".split():
    TORCH_OPERATORS.register(f"aten.{_name}.default", lambda call, *_: filled(call, 1))
for _name in "full full_like fill.Scalar".split():
    TORCH_OPERATORS.register(f"aten.{_name}" if "." in _name else f"aten.{_name}.default", lambda call, _, value, *__: filled(call, value))
TORCH_OPERATORS.register("aten.new_full.default", lambda call, _, __, value, *___: filled(call, value))
TORCH_OPERATORS.register("aten.scalar_tensor.default", lambda call, value, *_: call.operand(value))


def _arange(call: TorchCall, start: Any, end: Any, step: Any) -> Operand:
    if any(isinstance(x, SizeNumber) for x in (start, end, step)):
        call.refuse("its bounds are floating-point numbers computed from sizes; create an integer range and multiply it")
    return call.emit("arange", start=start, stop=end, step=step, dtype=call.dtype)


TORCH_OPERATORS.register("aten.arange.default", lambda call, end, *_: _arange(call, 0, end, 1))
TORCH_OPERATORS.register("aten.arange.start", lambda call, start, end, *_: _arange(call, start, end, 1))
TORCH_OPERATORS.register("aten.arange.start_step", lambda call, start, end, step, *_: _arange(call, start, end, step))


@converts("aten.eye.default")
def eye(call: TorchCall, *_: Any) -> Operand:
    """Ones on the diagonal."""
    return call.emit("eye", n=call.shape[0], m=call.shape[1], dtype=call.dtype)


TORCH_OPERATORS.register("aten.eye.m", eye)
