"""Fold the scale of a quantised result into the scales and biases that precede it.

    quantize(relu(cast(sums) * s + b + dequantize(q, t, z)), r, y)
        ->  cast(clip(round(relu(cast(sums) * (s / r) + (b / r - z * t / r) + cast(q) * (t / r)) + y)))

A division for each element disappears, and a relu whose zeros the clamp makes.  Where bytes are only dequantised again, the clamped numbers
are used, without a conversion to bytes and back, except by depthwise convolutions, which read bytes.  Scales and zero points of one element
become vectors over the channels: a number would be a literal of the program, and layers that differ only in it would be different programs
to tune.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation, all_bindings, used
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.operators.element_types import float_range
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.ir.function import IRModule

_LONGEST = 32
"""Most calls before a `quantize` into which its scale is folded, one after the other."""
_LARGEST = 2.0**96
"""Limit on constants, so that their products with int32 are finite: a sum of two infinities would be NaN."""


class _TooLarge(Exception):
    """Raised where a folded constant exceeds the limit."""


def fold_requantization(mod: IRModule) -> IRModule:
    """Rewrite `quantize` with one scale whose operand is computed from an integer contraction, by values that have no other use."""
    return mod.update({name: _Fold(f)(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


class _Fold(Rewriter):
    """Rewrite one function.

    Args:
        func: the function, for the number of uses of its values.
    """

    def __init__(self, func: GraphFunc) -> None:
        super().__init__()
        bindings = list(all_bindings(func.body))
        self._uses = Counter([o for b in bindings for o in used(b.operation)] + list(func.results))
        images = {image_of_depthwise(b.operation) for b in bindings if isinstance(b.operation, Call)}
        read = [b for b in bindings if b.results and b.results[0] in images and self._uses[b.results[0]] == 1]
        self._bytes = {b.operation.args[0] for b in read if isinstance(b.operation, Call) and b.operation.operator == "dequantize"}
        """Bytes that are dequantised for depthwise convolutions only."""

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
        """The clamped numbers, as bytes."""
        x, scale, zero = call.args
        if not isinstance(scale, Constant) or not isinstance(zero, Constant) or not _is_number(scale, x) or not _is_number(zero, x):
            return None
        channels = self._channels(x)
        unit, shift = float(scale.data.reshape(())), int(zero.data.reshape(()))
        if channels is None or not np.finfo(np.float32).tiny <= unit < np.inf or scale.data.dtype != np.float32:
            return None
        low, high = float_range(zero.type.dtype, "float32")
        last = self.made_by(x)
        if last is not None and last.operator == "relu" and self._uses[x] == 1 and shift == low:
            x = last.args[0]
        made = build.round(self._scaled(x, 1.0 / unit, channels, build, _LONGEST))
        if shift:
            made = build.add(made, _vector(shift, channels))
        return [build.cast(build.clip(made, min=low, max=high), dtype=zero.type.dtype)]

    def _dequantized(self, call: Call, build: RegionBuilder) -> Sequence[Operand] | None:
        """The scaled numbers that were clamped before they were converted to the bytes; None for bytes of other calls."""
        q, scale, zero = call.args
        before = next((old for old, new in self._new.items() if new is q), q)
        if self._uses[before] > 1 or before in self._bytes:
            return None  # otherwise the numbers would be stored besides the bytes
        cast = self.made_by(q)
        clip = None if cast is None or cast.operator != "cast" else self.made_by(cast.args[0])
        if cast is None or clip is None or clip.operator != "clip" or not _is_number(scale, q) or not _is_number(zero, q):
            return None
        number = self.made_by(clip.args[0])
        is_rounded = number is not None and number.operator in ("round", "add")
        if (
            (clip.attr("min"), clip.attr("max")) != float_range(q.type.dtype, "float32")
            or not is_rounded
            or cast.args[0].type.dtype != scale.type.dtype
        ):
            return None
        channels = self._channels(cast.args[0])
        if channels is None:
            return None
        unit, shift = (float(a.data.reshape(())) for a in (scale, zero) if isinstance(a, Constant))
        made = build.multiply(cast.args[0], _vector(_checked(unit), channels))
        return [build.add(made, _vector(-shift * unit, channels)) if shift else made]

    def _channels(self, o: Operand) -> tuple[int, ...] | None:
        """The shape of the scales of the integer contraction that a value is computed from; None if there is none."""
        reached, pending = {o}, [o]
        while pending:
            call = self.made_by(pending.pop())
            if call is None:
                continue
            if call.operator == "multiply" and isinstance(call.args[1], Constant):
                cast = self.made_by(call.args[0])
                if cast is not None and cast.operator == "cast" and cast.args[0].type.dtype == "int32":
                    return call.args[1].data.shape
            is_scaled = call.operator == "multiply" and isinstance(call.args[1], Constant)
            if call.operator in ("add", "clip", "relu", "round") or is_scaled:
                new = [a for a in call.args if a not in reached]
                reached.update(new)
                pending += reversed(new)
        return None

    def _scaled(self, o: Operand, factor: float, channels: tuple[int, ...], build: RegionBuilder, far: int) -> Operand:
        """`o` times a positive factor."""
        if isinstance(o, Constant):
            return Constant(o.name, _checked(o.data * np.float64(factor)).astype(np.float32))
        call = self.made_by(o) if self._uses[o] == 1 and far else None
        if call is not None and call.operator == "relu":
            return build.relu(self._scaled(call.args[0], factor, channels, build, far - 1))
        if call is not None and call.operator == "clip":
            low, high = (None if v is None else float(_checked(v * factor)) for v in (call.attr("min"), call.attr("max")))
            return build.clip(self._scaled(call.args[0], factor, channels, build, far - 1), min=low, max=high)
        if call is not None and call.operator == "add":
            return build.add(*[self._scaled(a, factor, channels, build, far - 1) for a in call.args])
        if call is not None and call.operator == "multiply" and isinstance(call.args[1], Constant):
            return build.multiply(call.args[0], self._scaled(call.args[1], factor, channels, build, far - 1))
        if call is not None and call.operator == "dequantize" and all(_is_number(a, call.args[0]) for a in call.args[1:]):
            unit, shift = (float(a.data.reshape(())) for a in call.args[1:] if isinstance(a, Constant))
            product = build.multiply(build.cast(call.args[0], dtype="float32"), _vector(_checked(unit * factor), channels))
            return build.add(product, _vector(-shift * unit * factor, channels)) if shift else product
        return build.multiply(o, _vector(factor, channels))


def _checked(value: Any) -> Any:
    """A number or an array.  _TooLarge if it exceeds the limit, or is NaN."""
    if not np.all(np.abs(value) < _LARGEST):
        raise _TooLarge
    return value


def _is_number(o: Operand, x: Operand) -> bool:
    """Whether `o` is a constant of one element that is broadcast to the shape of `x`."""
    return isinstance(o, Constant) and o.data.size == 1 and o.data.ndim <= len(x.type.shape)


def _vector(value: float, channels: tuple[int, ...]) -> Constant:
    return Constant("factor", np.full(channels, value, np.float32))
