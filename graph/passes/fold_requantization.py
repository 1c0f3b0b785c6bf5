"""Fold the scale of a quantised result into the scales and biases that precede it.

    quantize(relu(cast(sums) * s + b + dequantize(q, t, z)), r, y)
        ->  cast(round(clip(fma(cast(q), t / r, fma(cast(sums), s / r, b / r - z * t / r)))) + y)

A division for each element disappears, a relu whose zeros the clamp makes, and all constants that are added become one.  Bounds are applied
before rounding, so that rounding and conversion are one instruction.  Where bytes are
dequantised in the function that computes them, the rounded numbers are used, without a conversion to bytes and back.  Scales and zero
points of one element become vectors over the channels: a number would be a literal of the program, and layers that differ only in it would
be different programs to tune.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation, Value, all_bindings, used
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.operators.element_types import float_range
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.ir.function import IRModule
from tunesmith.support import dtype as dt

_LONGEST = 32
"""Most calls before a `quantize` into which its scale is folded, one after the other."""
_LARGEST = 2.0**96
"""Limit on constants, so that their products with int32 are finite: a sum of two infinities would be NaN."""


class _TooLarge(Exception):
    """Raised where a folded constant exceeds the limit."""


def fold_requantization(mod: IRModule) -> IRModule:
    """Rewrite `quantize` with one scale whose operand is computed from an integer contraction, by values that have no other use."""
    done = {name: _Fold(f)(f) for name, f in mod.items() if isinstance(f, GraphFunc)}
    return dead_code(mod.update(done)) if any(done[name] is not mod[name] for name in done) else mod


@dataclass(frozen=True, slots=True)
class _Sum:
    """A linear combination: the sum of products of operands and coefficients, and a constant.

    Attributes:
        terms: operands and their coefficients; None is 1.
        constant: a number, or a vector over the channels.
    """

    terms: tuple[tuple[Operand, Any], ...]
    constant: Any = 0.0

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.terms + other.terms, self.constant + other.constant)


class _Fold(Rewriter):
    """Rewrite one function.

    Args:
        func: the function, for the number of uses of its values.
    """

    def __init__(self, func: GraphFunc) -> None:
        super().__init__()
        bindings = list(all_bindings(func.body))
        self._uses = Counter([o for b in bindings for o in used(b.operation)] + list(func.results))
        self._bytes = self._read_as_bytes(func)
        self._numbers: dict[Operand, Operand] = {}
        """Bytes -> the rounded numbers, without zero point, that were converted to them."""

    def _read_as_bytes(self, func: GraphFunc) -> set[Operand]:
        """The bytes of `func` that are dequantised in another function than the one that computes them."""
        calls = {b.results[0]: b.operation for b in all_bindings(func.body) if isinstance(b.operation, Call) and b.results}
        source = {v: call.args[0] for v, call in calls.items() if call.operator == "dequantize"}
        position: dict[Operand, int] = {v: i for i, v in enumerate(calls)}
        found: set[Operand] = set()
        for call in calls.values():
            image = image_of_depthwise(call)
            if isinstance(image, Value) and image in source and self._uses[image] == 1:
                found.add(source[image])
            if call.operator == "add":
                # The branch that is quantised first takes the sum into its function (`fuse_operators`), and reads the bytes of the other.
                branches = [
                    source[a]
                    for a in call.args
                    if isinstance(a, Value) and a in source and self._uses[source[a]] == 1 and source[a] in position
                ]
                found.update(sorted(branches, key=position.__getitem__)[1:])
        return found

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if not isinstance(operation, Call) or operation.operator not in ("quantize", "dequantize"):
            return None
        attempt = RegionBuilder()
        try:
            made = self._dequantized(operation, attempt) if operation.operator == "dequantize" else self._quantized(operation, attempt)
        except _TooLarge:
            return None
        build.bindings += attempt.bindings
        return made

    def _quantized(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        """The rounded numbers, as bytes."""
        x, scale, zero = call.args
        if not isinstance(scale, Constant) or not isinstance(zero, Constant) or not _is_number(scale, x) or not _is_number(zero, x):
            return None
        channels = self._channels(x)
        unit, shift = float(scale.data.reshape(())), int(zero.data.reshape(()))
        if channels is None or not np.finfo(np.float32).tiny <= unit < np.inf or scale.data.dtype != np.float32:
            return None
        low, high = float_range(zero.type.dtype, "float32")
        last = self.made_by(x)
        if last is not None and last.operator == "relu" and self._is_used_once(x) and shift == low:
            x = last.args[0]
        if dt.bits(zero.type.dtype) > 16 and shift:
            return None  # float32 does not hold the bounds
        number = _emit(self._scaled(x, np.float64(1.0 / unit), channels, build), channels, build)
        number = build.round(_clamped(number, low - shift, high - shift, shift != low, channels, build))
        if shift:
            whole = build.add(build.cast(number, dtype="int32"), Constant("zero", np.full(channels, shift, np.int32)))
            made = build.cast(whole, dtype=zero.type.dtype)
        else:
            made = build.cast(number, dtype=zero.type.dtype)
        self._numbers[made] = number
        return [made]

    def _dequantized(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        """The scaled numbers that were rounded before they were converted to the bytes; None for bytes of other calls."""
        q, scale, zero = call.args
        number, before = self._numbers.get(q), self.original(q)
        if number is None or self._uses[before] > 1 or before in self._bytes:
            return None  # otherwise the numbers would be stored besides the bytes
        channels = self._channels(number)
        if channels is None or number.type.dtype != scale.type.dtype or not _is_number(scale, q) or not _is_number(zero, q):
            return None
        unit = float(scale.data.reshape(())) if isinstance(scale, Constant) else 0.0
        return [_emit(_Sum(((number, np.float64(unit)),)), channels, build)]

    def _channels(self, o: Operand) -> tuple[int, ...] | None:
        """The shape, with the rank of `o`, of the scales of the integer contraction that it is computed from; None if there is none."""
        reached, pending = {o}, [o]
        while pending:
            call = self.made_by(pending.pop())
            if call is None:
                continue
            is_scaled = call.operator in ("multiply", "fma") and isinstance(call.args[1], Constant)
            if is_scaled:
                cast = self.made_by(call.args[0])
                if cast is not None and cast.operator == "cast" and cast.args[0].type.dtype == "int32":
                    shape = call.args[1].type.extents
                    return (*[1] * (len(o.type.shape) - len(shape)), *shape)
            if call.operator in ("add", "clip", "maximum", "minimum", "relu", "round") or is_scaled:
                new = [a for a in call.args if a not in reached]
                reached.update(new)
                pending += reversed(new)
        return None

    def _is_used_once(self, o: Operand) -> bool:
        return self._uses[self.original(o)] == 1

    def _scaled(self, o: Operand, factor: Any, channels: tuple[int, ...], build: RegionBuilder, far: int = _LONGEST) -> _Sum:
        """`o` times a factor: a number, or a vector over the channels."""
        if isinstance(o, Constant):
            data = o.data * factor
            return _Sum((), data) if _is_vector(data, channels) else _Sum(((_constant(data), None),))
        call = self.made_by(o) if self._is_used_once(o) and far else None
        if call is None:
            return _Sum(((o, factor),))
        args = call.args
        if call.operator == "add":
            return self._scaled(args[0], factor, channels, build, far - 1) + self._scaled(args[1], factor, channels, build, far - 1)
        if call.operator in ("multiply", "fma") and isinstance(args[1], Constant):
            data = args[1].data * factor
            product = self._scaled(args[0], data, channels, build, far - 1) if _is_vector(data, channels) else _Sum(((args[0], data),))
            return product if call.operator == "multiply" else product + self._scaled(args[2], factor, channels, build, far - 1)
        if call.operator == "relu" and np.all(factor > 0.0):
            return _Sum(((build.relu(self._inner(args[0], factor, channels, build, far)), None),))
        if call.operator == "clip" and factor.size == 1 and factor.item() > 0.0:
            low, high = (None if v is None else float(_checked(v * factor.item())) for v in (call.attr("min"), call.attr("max")))
            return _Sum(((build.clip(self._inner(args[0], factor, channels, build, far), min=low, max=high), None),))
        if call.operator == "dequantize" and all(_is_number(a, args[0]) for a in args[1:]):
            unit, shift = (float(a.data.reshape(())) for a in args[1:] if isinstance(a, Constant))
            return _Sum(((build.cast(args[0], dtype="float32"), factor * unit),), factor * (-shift * unit))
        return _Sum(((o, factor),))

    def _inner(self, o: Operand, factor: Any, channels: tuple[int, ...], build: RegionBuilder, far: int) -> Operand:
        return _emit(self._scaled(o, factor, channels, build, far - 1), channels, build)


def _clamped(x: Operand, low: float, high: float, has_zero: bool, channels: tuple[int, ...], build: RegionBuilder) -> Operand:
    """`x` between two bounds, which are constants if they depend on a zero point, so that layers differ only in constants."""
    if not has_zero:
        return build.clip(x, min=low, max=high)
    return build.minimum(build.maximum(x, _vector(low, channels)), _vector(high, channels))


def _emit(made: _Sum, channels: tuple[int, ...], build: RegionBuilder) -> Operand:
    """The calls that compute a linear combination: a multiply-add for each term, the constant first."""
    total: Operand | None = _vector(made.constant, channels) if np.any(made.constant) or not made.terms else None
    for o, factor in sorted(made.terms, key=lambda term: term[1] is None):
        if factor is None:
            total = o if total is None else build.add(total, o)
            continue
        by = _vector(factor, channels) if np.size(factor) == 1 else _constant(factor)
        total = build.multiply(o, by) if total is None else build.fma(o, by, total)
    assert total is not None
    return total


def _checked(value: Any) -> Any:
    """A number or an array.  _TooLarge if it exceeds the limit, or is NaN."""
    if not np.all(np.abs(value) < _LARGEST):
        raise _TooLarge
    return value


def _is_number(o: Operand, x: Operand) -> bool:
    """Whether `o` is a constant of one element that is broadcast to the shape of `x`."""
    return isinstance(o, Constant) and o.data.size == 1 and o.data.ndim <= len(x.type.shape)


def _is_vector(data: Any, channels: tuple[int, ...]) -> bool:
    """Whether `data` is broadcast to the shape of the channels."""
    return np.broadcast_shapes(np.shape(data), channels) == channels


def _constant(data: Any) -> Constant:
    return Constant("factor", np.asarray(_checked(data), np.float32))


def _vector(value: Any, channels: tuple[int, ...]) -> Constant:
    return _constant(np.broadcast_to(value, channels))
