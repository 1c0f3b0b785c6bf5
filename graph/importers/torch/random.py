"""Convert torch operators that draw random numbers: each draw is a stream of numbers from the seed, an input of the model.

The numbers have torch's distributions, and are not those of torch's generators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

_SEED = "pass seed='seed' to from_torch, which adds the seed as the last input of the model"


def _uniform(call: TorchCall, dtype: str, shape: Sequence[Poly] | None = None, what: str = "it draws random numbers: ") -> Operand:
    """Numbers from 0 on and below 1, by default with the shape of the result; `what` begins the message if there is no seed."""
    if call.draw is None:
        call.refuse(f"{what}{_SEED}")
    seed, stream = call.draw()
    made: Operand = call.emit("random_uniform", seed, shape=call.shape if shape is None else tuple(shape), stream=stream, dtype=dtype)
    return made


def _normal(call: TorchCall, dtype: str) -> Operand:
    """Standard normal numbers by the transform of Box and Muller (1958)."""
    wide = dt.widened(dtype)
    u, v = _uniform(call, wide), _uniform(call, wide)
    # 1 - u is above 0, so that its logarithm is finite.
    logarithm = call.emit("log", call.emit("subtract", call.number(1, wide), u))
    length = call.emit("sqrt", call.emit("multiply", logarithm, call.number(-2, wide)))
    angle = call.emit("cos", call.emit("multiply", v, call.number(2 * math.pi, wide)))
    return call.cast(call.emit("multiply", length, angle), dtype)


def _between(call: TorchCall, low: Any, high: Any) -> Operand:
    """Integers from low to high - 1: a number of 53 bits times the size of the range, rounded down.

    A number differs in probability from others by at most 2**-53.
    """
    if not (isinstance(low, int) and isinstance(high, int) and high - low <= 1 << 53):
        call.refuse(f"the range from {low} to {high} has more than 2**53 numbers, or depends on sizes; scale random numbers instead")
    real = call.emit("multiply", _uniform(call, "float64"), call.number(float(high - low), "float64"))
    found = call.cast(call.emit("floor", real), "int64")
    return call.cast(call.emit("add", found, call.number(low, "int64")), call.dtype)


def _log_of_uniform(call: TorchCall, dtype: str, shape: Sequence[Poly] | None = None) -> Operand:
    """Logarithms of uniform numbers, below 0: that of 1 is replaced by half of the distance to the next number, as in torch."""
    made = call.emit("log", call.emit("subtract", call.number(1, dtype), _uniform(call, dtype, shape)))
    return call.emit("minimum", made, call.number(-(2.0**-53 if dtype == "float64" else 2.0**-24), dtype))


def _scaled(call: TorchCall, made: Operand, factor: Any, shift: Any) -> Operand:
    scaled = call.emit("multiply", made, call.operand(factor))
    return call.emit("add", scaled, call.operand(shift))


for _name in "rand.default rand_like.default rand.generator rand_like.generator".split():
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, *_: _uniform(call, call.dtype))
for _name in "randn.default randn_like.default randn.generator randn_like.generator".split():
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, *_: _normal(call, call.dtype))
for _name in "randint.default randint.generator".split():
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, high, *_: _between(call, 0, high))
for _name in "randint.low randint.low_generator".split():
    TORCH_OPERATORS.register(f"aten.{_name}", lambda call, low, high, *_: _between(call, low, high))
TORCH_OPERATORS.register("aten.randint_like.default", lambda call, _, high, *__: _between(call, 0, high))
TORCH_OPERATORS.register("aten.randint_like.low_dtype", lambda call, _, low, high, *__: _between(call, low, high))


@converts("aten.uniform.default")
def uniform(call: TorchCall, _: Operand, low: float = 0.0, high: float = 1.0, *__: Any) -> Operand:
    """Uniform numbers from low on and below high."""
    return _scaled(call, _uniform(call, call.dtype), high - low, low)


@converts("aten.normal_functional.default")
def normal(call: TorchCall, _: Operand, mean: float = 0.0, deviation: float = 1.0, *__: Any) -> Operand:
    """Normal numbers."""
    return _scaled(call, _normal(call, call.dtype), deviation, mean)


@converts("aten.exponential.default")
def exponential(call: TorchCall, _: Operand, rate: float = 1.0, *__: Any) -> Operand:
    """Exponentially distributed numbers."""
    wide = dt.widened(call.dtype)
    return call.cast(call.emit("multiply", _log_of_uniform(call, wide), call.number(-1 / rate, wide)), call.dtype)


@converts("aten.bernoulli.default")
def bernoulli(call: TorchCall, probability: Operand, *_: Any) -> Operand:
    """1 with a probability that each element gives, else 0."""
    wide = dt.widened(probability.type.dtype)
    return call.cast(call.emit("less", _uniform(call, wide), call.cast(probability, wide)), call.dtype)


@converts("aten.bernoulli.p")
def bernoulli_of_number(call: TorchCall, _: Operand, probability: float = 0.5, *__: Any) -> Operand:
    """1 with one probability for all elements, else 0."""
    return call.cast(call.emit("less", _uniform(call, "float64"), call.number(probability, "float64")), call.dtype)


@converts("aten.native_dropout.default")
def native_dropout(call: TorchCall, x: Operand, probability: float, train: bool | None) -> list[Operand]:
    """Elements are 0 with the probability, else divided by the probability that they are kept; the second result is whether they are."""
    made, kept = dropped(call, x, 0.0 if train is False else probability)
    return [made, call.emit("full", shape=x.type.shape, value=True, dtype="bool") if kept is None else kept]


def dropped(call: TorchCall, x: Operand, probability: float) -> tuple[Operand, Operand | None]:
    """The results of `native_dropout` in training; `x` itself and None if the probability is 0."""
    if probability == 0:
        return x, None
    drawn = _uniform(call, "float32", x.type.shape, "it drops elements at random: call model.eval() before the import, or ")
    kept = call.emit("greater_equal", drawn, call.number(probability, "float32"))
    scale = call.number(1 / (1 - probability) if probability < 1 else 0.0, x.type.dtype)
    return call.emit("where", kept, call.emit("multiply", x, scale), call.number(0, x.type.dtype)), kept


@converts("aten.dropout.default")
def dropout(call: TorchCall, x: Operand, probability: float, train: bool) -> Operand:
    """As `native_dropout`; `x` itself in evaluation."""
    return dropped(call, x, probability if train else 0.0)[0]


@converts("aten.rrelu_with_noise_functional.default")
def rrelu(call: TorchCall, x: Operand, noise: Operand, lower: float, upper: float, training: bool, *_: Any) -> list[Operand]:
    """Leaky ReLU with random slopes in training, else with the mean of their bounds; the second result are the slopes."""
    if not training:
        return [call.emit("leaky_relu", x, slope=(lower + upper) / 2), noise]
    drawn = _uniform(call, call.dtype, what="its slopes are random: call model.eval() before the import, or ")
    slopes = _scaled(call, drawn, upper - lower, lower)
    factors = call.emit("where", call.emit("less_equal", x, call.number(0, call.dtype)), slopes, call.number(1, call.dtype))
    return [call.emit("multiply", x, factors), factors]


@converts("aten.randperm.default", "aten.randperm.generator")
def randperm(call: TorchCall, *_: Any) -> Operand:
    """The order of random numbers; two equal ones keep their order."""
    return call.cast(call.emit("argsort", _uniform(call, "float64"), axis=0), call.dtype)


@converts("aten.multinomial.default")
def multinomial(call: TorchCall, weights: Operand, count: int, replacement: bool = False, *_: Any) -> Operand:
    """Indices drawn with given weights, by the least of exponential numbers with these rates."""
    if count != 1:
        call.refuse("it draws several indices of a row; draw one, or take the order of the weights with random numbers of your own")
    wide = dt.widened(weights.type.dtype)
    given = call.cast(weights, wide)
    drawn = _log_of_uniform(call, wide, weights.type.shape)
    is_possible = call.emit("greater", given, call.number(0, wide))
    times = call.emit("where", is_possible, call.emit("divide", drawn, given), call.number(-math.inf, wide))
    return call.cast(call.emit("argmax", times, axis=-1, keepdims=True), call.dtype)
