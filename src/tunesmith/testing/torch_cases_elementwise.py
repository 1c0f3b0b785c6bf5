"""Define elementwise torch cases: special values through every function, result types, integer wrap-around, unusual broadcasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tunesmith.support.errors import MissingExtraError
from tunesmith.testing.torch_cases import CaseTable

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_cases_elementwise") from error

Function = Callable[..., Any]
CASES = CaseTable(sums=False)
t = torch.tensor

EDGES = [
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    20.5,
    -30.0,
    88.8,
    1e10,
    -1e10,
    3e38,
    1e-6,
    -1e-6,
    1e-30,
]
EDGE = t(EDGES)
EDGE64 = EDGE.double()
HALVES = t([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 11.0, 60000.0, 1e-4]).half()
INTS = t([-7, -4, -1, 0, 1, 2, 5, 9])
BYTES = t([0, 1, 5, 127, 128, 200, 255], dtype=torch.uint8)
SMALL = t([-128, -100, -1, 0, 1, 77, 127], dtype=torch.int8)
WIDE = t([-(2**31), -(2**31) + 1, -5, 0, 3, 2**31 - 1], dtype=torch.int32)
LONG = t([-(2**63), -(2**53) - 1, -1, 0, 1, 2**53 + 1, 2**63 - 1])
BOOLS = t([[True, False, True], [False, False, True]])

_UNARY: dict[str, Function] = {
    **{n: getattr(torch, n) for n in "abs neg exp log sqrt rsqrt tanh sigmoid erf floor ceil trunc round sign sgn reciprocal".split()},
    **{n: getattr(torch, n) for n in "square log2 log10 log1p expm1 exp2 isnan isinf isfinite isposinf isneginf signbit frac".split()},
    **{n: getattr(torch, n) for n in "nan_to_num atan erfc sinh cosh asinh deg2rad rad2deg positive logical_not".split()},
    **{n: getattr(F, n) for n in "relu relu6 silu gelu hardswish hardsigmoid selu elu celu softplus mish logsigmoid hardtanh".split()},
    **{n: getattr(F, n) for n in "leaky_relu softsign tanhshrink hardshrink softshrink".split()},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.5, -2.0),
    "round_2": lambda x: torch.round(x, decimals=2),
    "logit": lambda x: torch.logit(x, 1e-3),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp_crossed": lambda x: x.clamp(2, -1),
    "clamp_nan": lambda x: x.clamp(max=math.nan),
    "pow_0": lambda x: x**0,
    "pow_3": lambda x: x**3,
    "pow_minus_2": lambda x: x**-2,
    "pow_half": lambda x: x**0.5,
    "pow_minus_half": lambda x: x**-0.5,
    "pow_third": lambda x: x ** (1 / 3),
    "base_2": lambda x: 2.0**x,
    "base_0": lambda x: 0.0**x,
    "base_minus": lambda x: (-2.0) ** x,
    "remainder_3": lambda x: x % 3,
    "remainder_minus": lambda x: x % -0.7,
    "fmod_3": lambda x: torch.fmod(x, -3),
    "floor_divide": lambda x: x // 0.1,
    "floor_divide_minus": lambda x: x // -2,
    "trunc_divide": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "divided_by_zero": lambda x: x / 0,
    "floor_divided_by_zero": lambda x: x // 0.0,
    "to_half": lambda x: x.half(),
    "to_double": lambda x: x.double(),
    "to_bool": lambda x: x.bool(),
    "softplus_threshold": lambda x: F.softplus(x, 1.0, 1.0),
    "softplus_beta": lambda x: F.softplus(x, -2.0, 5.0),
    "softplus_beta_3": lambda x: F.softplus(x, 3.0),
    "elu_alpha": lambda x: F.elu(x, -1.5),
    "celu_alpha": lambda x: F.celu(x, 0.3),
    "leaky_relu_minus": lambda x: F.leaky_relu(x, -0.2),
    "leaky_relu_2": lambda x: F.leaky_relu(x, 2.0),
    "hardshrink_0": lambda x: F.hardshrink(x, 0.0),
    "softshrink_1": lambda x: F.softshrink(x, 1.0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "nan_to_num_all": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "in_place": lambda x: x.clone().mul_(2).add_(1).clamp_(-4, 7).relu_(),
    "in_place_functions": lambda x: F.leaky_relu(F.elu(x.clone(), inplace=True), 0.1, inplace=True),
    "equal_itself": lambda x: (x == x, x != x, x < x, x <= x),
    "maximum_nan": lambda x: (torch.maximum(x, t(0.5)), torch.minimum(x, t(math.nan))),
    "fmax": lambda x: (torch.fmax(x, t(math.nan)), torch.fmin(x, t(1.0))),
    "where_nan": lambda x: torch.where(x > 0, x, math.nan),
    "masked_fill_inf": lambda x: x.masked_fill(x != x, -math.inf),
    "lerp": lambda x: torch.lerp(x, x.new_tensor(2.0), 0.75),
    "polygamma_free": lambda x: torch.xlogy(x, x.abs()),
}
_UNSIGNED = "relu relu6 clamp clamp_crossed hardtanh softshrink softshrink_1 leaky_relu_minus in_place".split()
"""Cases in which torch's sign of zero depends on the vector width."""
_MODERATE = ("gelu", "gelu_tanh", "hardswish", "pow_half")
"""Cases in which torch's formula overflows, or gives NaN for infinity, unlike equivalent formulas."""
_SMALL_QUOTIENT = ("remainder_3", "remainder_minus", "fmod_3")
"""Cases with quotients >= 2**52, for which compiled remainders are NaN."""
for _name, _function in _UNARY.items():
    _chosen = EDGE[EDGE.abs() < 1e20] if _name in _MODERATE else EDGE[EDGE != EDGE[18]] if _name in _SMALL_QUOTIENT else EDGE
    _options: Any = {"signs": _name not in _UNSIGNED, "sums": _name == "tanhshrink"}
    CASES.add(f"edges_{_name}", _function, _chosen, **_options)
    CASES.add(f"double_{_name}", _function, _chosen.double(), **_options)
for _name in (
    "abs exp log sqrt rsqrt tanh sigmoid erf round sign square log2 log1p expm1 relu silu gelu hardswish selu softplus mish"
    " softplus_threshold clamp pow_3 pow_half remainder_3 floor_divide trunc_divide leaky_relu nan_to_num reciprocal to_double logsigmoid"
).split():
    CASES.add(
        f"half_{_name}",
        _UNARY[_name],
        HALVES[HALVES.abs() < 1e3] if _name in _MODERATE else HALVES,
        signs=_name not in (*_UNSIGNED, "pow_half"),
    )
for _name, _tensor in {"int": INTS, "byte": BYTES, "small": SMALL, "wide": WIDE, "long": LONG}.items():
    for _function in (torch.abs, torch.neg, torch.square, torch.sign, torch.floor, torch.exp, torch.sqrt, torch.sigmoid, torch.bitwise_not):
        CASES.add(f"{_name}_{_function.__name__}", _function, _tensor)
    for _text, _function in {
        "plus_float": lambda x: x + 1.5,
        "plus_minus_1": lambda x: x + (-1),
        "minus_200": lambda x: x - 200,
        "times_300": lambda x: x * 300,
        "power_3": lambda x: x**3,
        "half_power": lambda x: x**0.5,
        "divided": lambda x: x / 3,
        "floor_divided": lambda x: x // 3,
        "floor_divided_minus": lambda x: x // -3,
        "floor_divided_float": lambda x: x // 0.3,
        "trunc_divided": lambda x: torch.div(x, -3, rounding_mode="trunc"),
        "remainder": lambda x: x % 3,
        "remainder_minus": lambda x: x % -3,
        "remainder_float": lambda x: (x % 100) % -0.7,
        "fmod": lambda x: torch.fmod(x, -3),
        "above": lambda x: x > 100,
        "above_float": lambda x: x > 0.5,
        "clamp": lambda x: x.clamp(-3, 100),
        "clamp_float": lambda x: x.clamp(-0.5, 2.5),
        "relu": F.relu,
        "sum": torch.sum,
        "prod": torch.prod,
        "mean": lambda x: (x % 100).double().mean(),
        "cumsum": lambda x: x.cumsum(0),
        "max": lambda x: (x.max(), x.min(), x.argmax(), x.argmin()),
        "to_float": lambda x: x.float(),
        "to_half": lambda x: x.half(),
        "to_int8": lambda x: x.to(torch.int8),
        "to_uint8": lambda x: x.to(torch.uint8),
        "to_int32": lambda x: x.to(torch.int32),
        "doubled": lambda x: x + x,
        "squared": lambda x: x * x,
        "rsub": lambda x: 10 - x,
        "any": lambda x: (x.any(), x.all(), x.bool()),
        "sort_of": lambda x: torch.where(x > 2, x, -1),
        "isnan": lambda x: (torch.isnan(x), torch.isinf(x), torch.isfinite(x)),
    }.items():
        CASES.add(f"{_name}_{_text}", _function, _tensor)
CASES.add("byte_above_300", lambda x: (x > 300, x == -1, x < 256, x >= 0), BYTES)
CASES.add("byte_and_int8", lambda x, y: (x + y, x * y), BYTES, SMALL)
CASES.add("int_powers", lambda x, y: x**y, INTS[:, None], t([0, 1, 2, 3, 9, 63]))
for _factor in (1e-8, 0.1, -0.3):
    CASES.add(f"half_scaled_{_factor}", lambda x, f=_factor: (x * f, x + f, x / f, f - x, x // f, x % f, x**f), HALVES)
CASES.add("half_alpha", lambda x, y: (torch.add(x, y, alpha=1e-3), torch.sub(x, y, alpha=0.3)), HALVES, HALVES.flip(0))
CASES.add("log2_floor", lambda x: (x.log2().floor(), x.double().log2().floor()), 2.0 ** torch.arange(-30, 64))
CASES.add("log10_floor", lambda x: (x.log10().floor(), x.float().log10().floor()), 10.0 ** torch.arange(-3.0, 22, dtype=torch.float64))
CASES.add("exp2_whole", lambda x: (x.exp2(), x.double().exp2()), torch.arange(-20.0, 40))
CASES.add(
    "small_logs",
    lambda x: (x.log1p(), x.expm1(), x.double().log1p(), x.double().expm1()),
    t([1e-30, -1e-30, 1e-20, 1e-9, -1e-5, 1e-3, -0.9]),
)
CASES.add("int_power_of_numbers", lambda x: (2**x, (-1) ** x, 1**x), t([0, 1, 2, 5, 30]))

_BINARY: dict[str, Function] = {
    **{n: getattr(torch, n) for n in "add sub mul div maximum minimum fmax fmin remainder fmod floor_divide eq ne lt le gt ge".split()},
    **{n: getattr(torch, n) for n in "logical_and logical_or logical_xor atan2 copysign hypot logaddexp xlogy heaviside nextafter".split()},
    "pow": torch.pow,
    "float_power": torch.float_power,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "add_alpha": lambda a, b: torch.add(a, b, alpha=-2),
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=0.5),
    "rsub_alpha": lambda a, b: torch.rsub(a, b, alpha=3),
    "where": lambda a, b: torch.where(a < b, a, b),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "clamp_both": lambda a, b: torch.clamp(a, b, b - 1),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=-0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=2),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp_tensor": lambda a, b: torch.lerp(a, b, b),
    "isclose": lambda a, b: torch.isclose(a, b, equal_nan=True),
}
_REFUSED = {"nextafter": "aten.nextafter.default"}
for _name, _function in _BINARY.items():
    # Torch's signs of zero depend on the vector width; compiled remainders are NaN for quotients >= 2**52.
    # With overflowing factors torch adds products before it rounds them.
    _count = 18 if _name in ("remainder", "fmod", "add_alpha", "sub_alpha", "rsub_alpha", "addcmul") else len(EDGE)
    _options = {"refused": _REFUSED.get(_name, ""), "signs": _name not in ("maximum", "minimum", "fmax", "fmin", "clamp", "clamp_both")}
    CASES.add(f"edges_two_{_name}", _function, EDGE[:_count, None], EDGE[None, :_count], **_options)
    CASES.add(f"double_two_{_name}", _function, EDGE[:_count, None].double(), EDGE[None, :_count].double(), **_options)
_DIVISORS = t([-9, -3, -1, 1, 2, 7])
for _name in "add sub mul div maximum minimum remainder fmod floor_divide div_floor div_trunc add_alpha eq lt where logical_xor".split():
    CASES.add(f"int_two_{_name}", _BINARY[_name], INTS[:, None], _DIVISORS)
    CASES.add(f"wide_two_{_name}", _BINARY[_name], WIDE[1:, None], _DIVISORS.int())  # the least int by -1 kills torch
    CASES.add(f"small_two_{_name}", _BINARY[_name], SMALL[:, None], _DIVISORS.to(torch.int8))
    CASES.add(f"mixed_two_{_name}", _BINARY[_name], INTS[:, None], t([-9.5, -0.3, 0.1, 2.5]))
    CASES.add(f"scalar_two_{_name}", _BINARY[_name], t(5), t(-2.5, dtype=torch.float64))

# ---- types ------------------------------------------------------------------------------------------------------------------------------

_BY_TYPE = {
    "bool": BOOLS,
    "uint8": t([[1, 2, 3], [0, 5, 250]], dtype=torch.uint8),
    "int32": t([[1, -2, 3], [0, 5, 250]], dtype=torch.int32),
    "int64": t([[1, -2, 3], [0, 5, 250]]),
    "half": t([[1.0, -2.5, 3.0], [0.0, 5.0, 250.0]]).half(),
    "float": t([[1.0, -2.5, 3.0], [0.0, 5.0, 250.0]]),
    "double": t([[1.0, -2.5, 3.0], [0.0, 5.0, 250.0]], dtype=torch.float64),
}
for _a, _x in _BY_TYPE.items():
    for _b, _y in _BY_TYPE.items():
        CASES.add(f"types_{_a}_{_b}", lambda x, y: (x + y, x * y, x > y, x == y), _x, _y)
        CASES.add(f"types_{_a}_scalar_{_b}", lambda x, y: (x + y, x * y, x <= y, torch.where(x > 1, x, y)), _x, _y[1, 1])
    CASES.add(f"types_{_a}_numbers", lambda x: (x + 1, x * 2.5, x + True, x / 2, x > 1.5), _x)
    CASES.add(f"types_{_a}_sums", lambda x: (x.sum(), x.sum(0), x.sum(1, dtype=torch.float32), x.prod(1), x.cumsum(0)), _x)
    CASES.add(f"types_{_a}_truths", lambda x: (x.any(0), x.all(1), x.any(), x.bool().all((0, 1))), _x)
    if _a != "bool":
        CASES.add(f"types_{_a}_extremes", lambda x: (x.amax(0), x.argmax(1), x.max(1), x.min()), _x)
    CASES.add(f"types_{_a}_moves", lambda x: (x.flip(0), x.T, x.repeat(2, 1), F.pad(x, (1, 0)), torch.cat([x, x]), x[:, [2, 0]]), _x)

# ---- shapes -----------------------------------------------------------------------------------------------------------------------------

CASES.add("broadcast_three", lambda a, b, c: a * b + c, (3, 1, 1), (4, 1), (5,))
CASES.add("broadcast_ones", lambda a, b: a - b, (1, 1, 1), (1,))
CASES.add("broadcast_scalar_tensor", lambda a, b: a - b, (2, 3), t(2.0))
CASES.add("broadcast_transposed", lambda a, b: a.t() * b, (3, 2), (3,))
CASES.add("scalar_chain", lambda a, b: ((a + b) * a).exp().relu() - b.abs().sqrt(), t(0.5), t(-2.0))
CASES.add("scalar_comparison", lambda a, b: (a > b, a.max() == b, torch.where(a > b, a, b)), t(0.5), t(-2.0))
CASES.add("scalar_counter", lambda x, n: (x + n, n + 1), (2, 3), t(3))
CASES.add("scalar_select", lambda x: x[0, 1] * 2 + x[1, 1], (2, 3))
CASES.add("expanded_input", lambda x: x.expand(4, 3) * 2, (1, 3))
CASES.add("strided_input", lambda x: x + 1, torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).t()[::2])
CASES.add("empty_cat", lambda x, y: torch.cat([x, y]), torch.zeros(0, 3), (2, 3))
CASES.add("empty_cat_old", lambda x, y: torch.cat([x, y]), torch.zeros(0), (2, 3))
for _name, _function, _inputs in (
    ("add", lambda x: x + 1, (torch.zeros(0, 3),)),
    ("sum", lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(0)), (torch.zeros(0, 3),)),
    ("mean", lambda x: x.mean(0), (torch.zeros(0, 3),)),
    ("slice", lambda x: x[2:2].sum(0), ((4, 3),)),
    ("matmul", lambda x, y: x @ y, (torch.zeros(2, 0), torch.zeros(0, 3))),
    ("any", lambda x: (x.any(), x.all(), x.any(0), x.all(0)), (torch.zeros(0, 3, dtype=torch.bool),)),
):
    CASES.add(
        f"empty_{_name}", _function, *_inputs, refused="a result has no elements" if _name == "add" else "the extent 0 is not positive"
    )
