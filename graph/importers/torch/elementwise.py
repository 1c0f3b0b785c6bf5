"""Convert torch elementwise operators (arithmetic, comparisons, activations, selection) with explicit casts for type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, Converter, TorchCall, converts, wrapped
from tunesmith.graph.ir.node import Operand
from tunesmith.support import dtype as dt


def _register(names: str, convert: Converter) -> None:
    for name in names.split():
        TORCH_OPERATORS.register(f"aten.{name}", convert)


# ---- one operand ------------------------------------------------------------------------------------------------------------------------


def _unary(operator: str, **attrs: Any) -> Converter:
    """Apply the operator to the operand cast to the result type: torch computes exp of ints in float32."""
    return lambda call, x, *_: call.emit(operator, call.operand(x), **attrs)


for _name in (
    "abs neg exp exp2 expm1 log log1p log2 sqrt rsqrt tanh sigmoid erf sin cos floor ceil trunc reciprocal relu silu square"
    " acos acosh asin asinh atan atanh cosh digamma erfc erfinv lgamma sinh tan"
).split():
    _register(f"{_name}.default", _unary(_name))
_register("round.default", _unary("round"))
_register("hardswish.default", _unary("hard_swish"))
_register("hardsigmoid.default", _unary("hard_sigmoid"))
_register("relu6.default", _unary("clip", min=0.0, max=6.0))
_register("selu.default", _unary("selu", alpha=1.6732632423543772, gamma=1.0507009873554805))


@converts("aten.round.decimals")
def round_decimals(call: TorchCall, x: Operand, decimals: int) -> Operand:
    """Round to decimals: scaled by a power of ten, rounded, and scaled back; torch computes float16 and bfloat16 in float32."""
    if not dt.is_float(call.dtype):
        return x
    wide = dt.widened(call.dtype)
    power, made = call.number(10.0 ** abs(decimals), wide), call.operand(x, wide)
    first, second = ("multiply", "divide") if decimals >= 0 else ("divide", "multiply")
    return call.cast(call.emit(second, call.emit("round", call.emit(first, made, power)), power), call.dtype)


@converts("aten.sign.default")
def sign(call: TorchCall, x: Operand) -> Operand:
    """-1, 0 or 1; 0 for NaN and for both signed zeros, as in torch."""
    if not dt.is_float(call.dtype):
        return x if call.dtype == "bool" else call.emit("sign", x)
    sides = [call.cast(call.emit(side, x, call.operand(0)), call.dtype) for side in ("greater", "less")]
    return call.emit("subtract", *sides)


TORCH_OPERATORS.register("aten.sgn.default", sign)


@converts("aten.log10.default")
def log10(call: TorchCall, x: Operand) -> Operand:
    """Base-10 logarithm computed in float64, with exact integers for powers of ten."""
    made = call.emit("multiply", call.emit("log", call.operand(x, "float64")), call.number(1 / math.log(10), "float64"))
    if call.dtype != "float64":
        return call.cast(made, call.dtype)
    near = call.emit("round", made)
    exact = call.emit("equal", call.emit("power", call.operand(10), near), call.operand(x))
    return call.emit("where", exact, near, made)


@converts("aten.gelu.default")
def gelu(call: TorchCall, x: Operand, approximate: str) -> Operand:
    """GELU, exact or with the tanh approximation."""
    return call.emit("gelu", x, approximate=approximate)


@converts("aten.leaky_relu.default")
def leaky_relu(call: TorchCall, x: Operand, slope: float) -> Operand:
    """x, or slope * x where x is negative."""
    return call.emit("leaky_relu", x, slope=float(slope))


@converts("aten.elu.default")
def elu(call: TorchCall, x: Operand, alpha: float, scale: float, input_scale: float) -> Operand:
    """ELU with torch's three factors, which selu and celu use."""
    scaled = x if input_scale == 1 else call.emit("multiply", x, call.operand(input_scale))
    made = call.emit("elu", scaled, alpha=float(alpha))
    if input_scale != 1:  # positive inputs are scaled only by `scale`
        made = call.emit("where", call.emit("greater", x, call.operand(0)), x, made)
    return made if scale == 1 else call.emit("multiply", made, call.operand(scale))


@converts("aten.softplus.default")
def softplus(call: TorchCall, x: Operand, beta: float, threshold: float) -> Operand:
    """log(1 + exp(beta x)) / beta, and x where beta x exceeds the threshold."""
    if beta == 1 and threshold >= _SOFTPLUS_IS_LINEAR.get(call.dtype, math.inf):
        return call.emit("softplus", x)
    scaled = x if beta == 1 else call.emit("multiply", x, call.operand(beta))
    made = call.emit("softplus", scaled)
    if beta != 1:
        made = call.emit("divide", made, call.operand(beta))
    return call.emit("where", call.emit("greater", scaled, call.operand(threshold)), x, made)


_SOFTPLUS_IS_LINEAR = {"bfloat16": 8.0, "float16": 12.0, "float32": 18.0, "float64": 40.0}
"""Inputs from which log(1 + exp(x)) - x is less than half a unit in the last place of x."""


@converts("aten.clamp.default")
def clamp(call: TorchCall, x: Any, least: Any = None, most: Any = None) -> Operand:
    """Clamp to bounds, each of which is optional."""
    if dt.is_int(call.dtype):
        least, most = [wrapped(b, call.dtype) if isinstance(b, int) else b for b in (least, most)]
    if all(b is None or (isinstance(b, (int, float)) and not math.isnan(b)) for b in (least, most)):
        return call.emit("clip", call.operand(x), min=least, max=most)
    made = call.operand(x)
    if least is not None:
        made = call.emit("maximum", made, call.operand(least))
    return made if most is None else call.emit("minimum", made, call.operand(most))


_register("hardtanh.default clamp_min.default clamp_min.Tensor clamp.Tensor", clamp)
_register("clamp_max.default clamp_max.Tensor", lambda call, x, most: clamp(call, x, None, most))


@converts("aten.bitwise_not.default")
def bitwise_not(call: TorchCall, x: Operand) -> Operand:
    """Logical negation of bools, -x - 1 for ints."""
    if call.dtype == "bool":
        return call.emit("logical_not", x)
    return call.emit("subtract", call.emit("neg", x), call.operand(1))


_register("logical_not.default", lambda call, x: call.emit("logical_not", call.cast(x, "bool")))


@converts("aten.isnan.default")
def isnan(call: TorchCall, x: Operand) -> Operand:
    """NaN test; False for ints."""
    return call.emit("isnan", x if dt.is_float(x.type.dtype) else call.cast(x, "float64"))


@converts("aten.isinf.default")
def isinf(call: TorchCall, x: Operand) -> Operand:
    """Test for |x| = infinity."""
    real = x if dt.is_float(x.type.dtype) else call.cast(x, "float64")
    return call.emit("equal", call.emit("abs", real), call.number(math.inf, real.type.dtype))


_register(
    "alias.default detach.default clone.default contiguous.default lift_fresh_copy.default lift_fresh.default"
    " _to_copy.default to.dtype to.device to.dtype_layout to.other type_as.default",
    lambda call, x, *_: call.cast(x, call.dtype),
)


# ---- two operands -----------------------------------------------------------------------------------------------------------------------


def _arithmetic(operator: str, of_bools: str | None = None) -> Converter:
    """Apply a binary operator to both operands cast to the result type."""

    def convert(call: TorchCall, a: Any, b: Any) -> Operand:
        name = of_bools if of_bools and call.dtype == "bool" else operator
        wide = call.product_type(a, b) if name == "multiply" else call.dtype
        return call.cast(call.emit(name, call.operand(a, wide), call.operand(b, wide)), call.dtype)

    return convert


_register("mul.Tensor mul.Scalar", _arithmetic("multiply", "logical_and"))
_register("maximum.default max.other", _arithmetic("maximum", "logical_or"))
_register("minimum.default min.other", _arithmetic("minimum", "logical_and"))


@converts("aten.remainder.Tensor")
def remainder(call: TorchCall, a: Any, b: Any) -> Operand:
    """Remainder with the sign of b; a zero remainder has the sign of a."""
    x, y = call.operand(a), call.operand(b)
    if not dt.is_float(call.dtype):
        return call.emit("mod", x, y)
    made, zero = call.emit("fmod", x, y), call.operand(0)
    opposite = call.emit("not_equal", call.emit("less", made, zero), call.emit("less", y, zero))
    moved = call.emit("logical_and", opposite, call.emit("not_equal", made, zero))
    return call.emit("where", moved, call.emit("add", made, y), made)


_register("remainder.Scalar remainder.Scalar_Tensor", remainder)
_register("fmod.Tensor fmod.Scalar", _arithmetic("fmod"))
_register("pow.Tensor_Tensor pow.Scalar", _arithmetic("power"))


def _sum(operator: str, swapped: bool = False, of_bools: str | None = None) -> Converter:
    """Convert a + alpha * b, a - alpha * b, or b - alpha * a if `swapped`."""

    def convert(call: TorchCall, a: Any, b: Any, alpha: Any = 1) -> Operand:
        wide = call.dtype if alpha == 1 else dt.widened(call.dtype)
        x, y = call.operand(a, wide), call.operand(b, wide)
        if of_bools and call.dtype == "bool":
            return call.emit(of_bools, x, y)
        if swapped:
            x, y = y, x
        if alpha != 1:
            y = call.emit("multiply", y, call.number(alpha, wide))
        return call.cast(call.emit(operator, x, y), call.dtype)

    return convert


_register("add.Tensor add.Scalar", _sum("add", of_bools="logical_or"))
_register("sub.Tensor sub.Scalar", _sum("subtract"))
_register("rsub.Tensor rsub.Scalar", _sum("subtract", swapped=True))


@converts("aten.div.Tensor")
def divide(call: TorchCall, a: Any, b: Any, rounding_mode: str | None = None) -> Operand:
    """True division, for ints too, or division rounded towards zero or minus infinity."""
    wide = call.product_type(a, b)
    x, y = call.operand(a, wide), call.operand(b, wide)
    if rounding_mode == "floor":  # not floor(a / b), even for floats: 1 // 0.1 is 9
        return call.cast(call.emit("floor_divide", x, y), call.dtype)
    made = call.emit("divide", x, y)
    if rounding_mode and dt.is_float(wide):
        made = call.emit(rounding_mode, made)
    return call.cast(made, call.dtype)


_register("div.Scalar true_divide.Tensor true_divide.Scalar", divide)
_register("div.Tensor_mode div.Scalar_mode", divide)
_register("floor_divide.default floor_divide.Scalar", lambda call, a, b: divide(call, a, b, "floor"))


@converts("aten.pow.Tensor_Scalar")
def pow_scalar(call: TorchCall, x: Operand, exponent: Any) -> Operand:
    """Power with a constant exponent; 2, 0.5, -0.5 and -1 use faster and more exact operators."""
    simple = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if simple and (simple == "square" or dt.is_float(call.dtype)):
        return call.emit(simple, call.operand(x))
    return call.operand(x) if exponent == 1 else call.emit("power", call.operand(x), call.operand(exponent))


def _comparison(operator: str) -> Callable[..., Operand]:
    def convert(call: TorchCall, a: Any, b: Any) -> Operand:
        x, y = call.operands(a, b)
        if x.type.dtype == "bool" and operator not in ("equal", "not_equal"):  # False is less than True
            x, y = call.emit("cast", x, dtype="uint8"), call.emit("cast", y, dtype="uint8")
        return call.emit(operator, x, y)

    return convert


for _name, _operator in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    _register(f"{_name}.Tensor {_name}.Scalar", _comparison(_operator))


def _logical(operator: str) -> Converter:
    return lambda call, a, b: call.emit(operator, call.operand(a, "bool"), call.operand(b, "bool"))


for _name in ("and", "or", "xor"):
    _register(f"logical_{_name}.default", _logical(f"logical_{_name}"))


def _bitwise(name: str) -> Converter:
    """Operators on bits of integers, logical ones for bools."""

    def convert(call: TorchCall, a: Any, b: Any) -> Operand:
        return call.emit(f"{'logical' if call.dtype == 'bool' else 'bitwise'}_{name}", call.operand(a), call.operand(b))

    return convert


for _name in ("and", "or", "xor"):
    _register(f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar bitwise_{_name}.Scalar_Tensor", _bitwise(_name))
    _register(f"__{_name}__.Tensor __{_name}__.Scalar", _bitwise(_name))


def _shift(operator: str) -> Converter:
    """Shifts of integers; floats are multiplied by a power of two."""

    def convert(call: TorchCall, x: Any, amount: Any) -> Operand:
        if not dt.is_float(call.dtype):
            return call.emit(operator, call.operand(x), call.operand(amount))
        power = call.emit("exp2", call.operand(amount))
        return call.emit("multiply" if operator == "shift_left" else "divide", call.operand(x), power)

    return convert


for _name, _operator in {"left": "shift_left", "right": "shift_right"}.items():
    _register(f"bitwise_{_name}_shift.Tensor bitwise_{_name}_shift.Tensor_Scalar bitwise_{_name}_shift.Scalar_Tensor", _shift(_operator))
    _register(f"__{_name[0]}shift__.Tensor __{_name[0]}shift__.Scalar", _shift(_operator))


# ---- functions of two floats ------------------------------------------------------------------------------------------------------------

_register("atan2.default", _arithmetic("atan2"))
_register("hypot.default", _arithmetic("hypot"))
_register("copysign.Tensor copysign.Scalar", _arithmetic("copysign"))


def _number_extreme(operator: str) -> Converter:
    """The extreme of two numbers, where NaN counts as missing."""

    def convert(call: TorchCall, a: Any, b: Any) -> Operand:
        x, y = call.operand(a), call.operand(b)
        made = call.emit(operator, x, y)
        if not dt.is_float(call.dtype):
            return made
        return call.emit("where", call.emit("isnan", x), y, call.emit("where", call.emit("isnan", y), x, made))

    return convert


_register("fmax.default", _number_extreme("maximum"))
_register("fmin.default", _number_extreme("minimum"))


@converts("aten.signbit.default")
def signbit(call: TorchCall, x: Operand) -> Operand:
    """Whether the sign is set, for negative zeros too."""
    dtype = x.type.dtype
    if dtype == "bool":
        return call.emit("logical_and", x, call.emit("logical_not", x))
    side = call.emit("copysign", call.number(1.0, dtype), x) if dt.is_float(dtype) else x
    return call.emit("less", side, call.number(0, dtype))


@converts("aten.prelu.default")
def prelu(call: TorchCall, x: Operand, slope: Operand) -> Operand:
    """PReLU with one slope or one slope per channel."""
    rank = len(x.type.shape)
    shape = tuple([slope.type.shape[0] if axis == 1 else 1 for axis in range(rank)]) if rank > 1 else slope.type.shape
    return call.emit("prelu", x, call.reshaped(slope, shape))


# ---- selection --------------------------------------------------------------------------------------------------------------------------


@converts("aten.where.self")
def where(call: TorchCall, condition: Operand, a: Any, b: Any) -> Operand:
    """Selection between operands, each a tensor or a number."""
    return call.emit("where", call.cast(condition, "bool"), call.operand(a), call.operand(b))


_register("where.ScalarSelf where.ScalarOther where.Scalar", where)
_register("masked_fill.Scalar masked_fill.Tensor", lambda call, x, mask, value: where(call, mask, value, x))
