"""Quantise models after training, in one of three modes; weights are int8, symmetric, with a scale for each output channel.

Static quantisation has the scheme of Jacob et al. (CVPR 2018) with the usual choices of ONNX Runtime and oneDNN: activations are uint8 with
one scale and zero point, from their ranges on calibration data.  The result is a model with `quantize` and `dequantize` around its
contractions, as importers make of models that are quantised elsewhere; `compile` computes these contractions in integers.  Weight-only
quantisation leaves activations in float32.  Dynamic quantisation per row rounds activations to int8 in each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

import numpy as np

from tunesmith.driver.compile import compile
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.name_patterns import warn_unmatched
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation, Region, Value, all_bindings
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.operators.int4 import pack_int4
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_scale_axis import fold_scale_axis
from tunesmith.graph.passes.integer_contractions import fits_int32
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.correctness import relative_error
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import UserError
from tunesmith.support.free_memory import return_free_memory

_QUANTIZED = ("dequantize", "matmul_int4", "quantize")
Batch = Sequence[Any]
"""The arguments of one call of the model: numpy arrays or torch tensors."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The difference between a result of two models over all batches.

    Attributes:
        name: the result.
        largest: largest difference, relative to the largest element of the reference.
        rms: root mean square of the differences, relative to that of the reference.
        cosine: cosine of the angle between both results as vectors.
        agreement: share of the rows whose largest element is at the same position, for results of two dimensions; else None.

    Elements that are not finite in the reference are left out of the errors and the cosine.
    """

    name: str
    largest: float
    rms: float
    cosine: float
    agreement: float | None

    def __str__(self) -> str:
        same = "" if self.agreement is None else f", same class in {self.agreement:.1%} of the rows"
        return f"{self.name}: largest error {self.largest:.1e}, rms {self.rms:.1e}, cosine {self.cosine:.5f}{same}"


def quantize(
    model: IRModule,
    batches: Iterable[Batch] | None = None,
    *,
    percentile: float = 100.0,
    skip: Sequence[str] = (),
    rows: bool = False,
    bits: int = 8,
    group: int | None = None,
    target: str | Target | None = None,
) -> IRModule:
    """Quantise the convolutions and matrix products of a model that have constant weights.

    Grouped and depthwise convolutions, products of two activations, contractions in branches, and those with weights that are not finite
    stay float32.  With `batches` this is static (calibrated) quantisation, without them weight-only quantisation, and with `rows` dynamic
    quantisation per row (per token).

    Args:
        model: a model of float32, from an importer or a builder.
        batches: calibration data: arguments of typical calls, a few dozen.  None is weight-only quantisation of matrix products: their
            activations, and convolutions, stay float32.  It suits models that are bound by reading weights, such as decoders of single
            tokens.
        percentile: of the elements of an activation in each batch, how many its range covers: 100 is from the least to the largest;
            99.99 ignores outliers, which are clamped.
        skip: patterns of the names of weights, as `"fc.*"`; these contractions stay float32.  A pattern that matches no name is a
            PatternWarning.
        rows: dynamic quantisation per row: the activations of matrix products are quantised in each call, every row by its largest
            magnitude (Dettmers et al., LLM.int8(), NeurIPS 2022, without its outliers), so that no calibration data are needed: `batches`
            must be None.  Convolutions, and products whose sums may exceed int32, stay float32.  Rows with elements that are not finite
            have no defined result.
        bits: of the weights: 8, or 4 for weight-only quantisation to integers from 0 to 15 with a scale and zero point for each group.
        group: for 4 bits, how many neighbouring rows of a column share a scale and zero point: an even number that divides all rows, by
            default 32.
        target: target of the calibration run; by default this machine.
    Returns:
        The quantised model, for `tune` and `compile`.
    Raises:
        UserError: no model, a quantised model, no batch, a batch that does not fit the model, a percentile out of range, no contraction to
            quantise, an activation that is not finite, arguments that exclude each other, or a group that does not divide the rows of a
            weight.
    """
    if not isinstance(percentile, Real) or not 50.0 < percentile <= 100.0:
        raise UserError(f"percentile={percentile!r}: expected a number above 50 and up to 100")
    if not isinstance(skip, (str, list, tuple)) or not all(isinstance(pattern, str) for pattern in skip):
        raise UserError(f"skip={skip!r}: expected patterns of the names of weights, such as ['fc.*']")
    if rows and batches is not None:
        raise UserError("rows=True quantises activations in each call and needs no calibration data: leave out batches")
    if batches is None and percentile != 100.0:
        raise UserError(f"percentile={percentile} is for calibration data, and no batches are given")
    group = _group_of(bits, group, rows or batches is not None)
    if batches is not None:
        _check_batches(batches)
    given = _main(model, "quantize takes a model")
    done = sorted({b.operation.operator for b in all_bindings(given.body) if isinstance(b.operation, Call)} & set(_QUANTIZED))
    if done:
        raise UserError(f"the model is quantised already: it has the operators {', '.join(done)}. Quantise the float32 model")
    prepared = fold_scale_axis(fold_constants(simplify_inference(model)))
    main = _main(prepared, "quantize takes a model")
    patterns = [skip] if isinstance(skip, str) else list(skip)
    warn_unmatched([main], patterns, "skip")
    if batches is None:
        rewriter = _QuantizeRows(patterns) if rows else _Quantize(None, patterns) if bits == 8 else _QuantizeInt4(patterns, group)
        rewritten = rewriter(main)
        if rewritten is main:
            long = " and sums that fit int32" if rows else ""
            raise UserError(f"the model has no matrix product with constant float32 weights{long} to quantise (see skip=)")
        return prepared.update({"main": rewritten})
    found = [c for b in main.body.bindings if isinstance(c := b.operation, Call) and _is_quantizable(c, patterns)]
    if not found:
        raise UserError("the model has no convolution or matrix product with constant float32 weights to quantise (see skip=)")
    observed = list(dict.fromkeys([c.args[0] for c in found]))
    ranges = _ranges(prepared, main, observed, batches, percentile, target)
    return_free_memory()
    return prepared.update({"main": _Quantize(dict(zip(observed, ranges, strict=True)), patterns)(main)})


def output_errors(reference: IRModule, model: IRModule, batches: Iterable[Batch], target: str | Target | None = None) -> list[OutputError]:
    """Compare the results of a model with those of a reference model, such as the one that it was quantised from.

    Args:
        reference: the reference.
        model: a model with the same parameters and results.
        batches: arguments of calls.
        target: target of both; by default this machine.
    Raises:
        UserError: no batch, or a module without a graph function `main`, or different numbers or shapes of results.
    """
    _check_batches(batches)
    main, other = (_main(m, "output_errors takes two models") for m in (reference, model))
    if len(main.results) != len(other.results):
        raise UserError(f"the models have {len(main.results)} and {len(other.results)} results, which cannot be compared")
    runs = [compile(m, target or Target.detect()) for m in (reference, model)]
    pairs: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in main.results]
    for batch in batches:
        expected, actual = (_results(run(*_arguments(batch))) for run in runs)
        for pair, a, b, name in zip(pairs, actual, expected, main.result_names, strict=True):
            if a.shape != b.shape:
                raise UserError(f"the result {name} has the shape {b.shape} in the reference, and {a.shape} in the other model")
            pair.append((a, b))
    if not pairs or not pairs[0]:
        raise UserError("no batch was given: pass a list of the arguments of calls")
    return [_output_error(name, *map(_joined, zip(*p, strict=True))) for name, p in zip(main.result_names, pairs, strict=True)]


def _main(mod: IRModule, what: str) -> GraphFunc:
    """The graph function `main`.  UserError, which begins with `what`, if there is none."""
    if not isinstance(mod, IRModule):
        raise UserError(f"{what}, an IRModule of an importer or a builder, not a {type(mod).__name__}")
    main = mod.get("main")
    if not isinstance(main, GraphFunc):
        raise UserError(f"{what}: this module has no graph function `main`")
    return main


def _group_of(bits: int, group: int | None, has_activations: bool) -> int:
    """The weights of a group, for 4 bits."""
    if bits not in (4, 8):
        raise UserError(f"bits={bits!r}: weights are quantised to 8 or 4 bits")
    if bits == 4 and has_activations:
        raise UserError("bits=4 is weight-only quantisation: leave out batches and rows, or use 8 bits")
    if bits == 8 and group is not None:
        raise UserError(f"group={group!r} is for bits=4: with 8 bits, a column of weights has one scale")
    count = as_count("group", 32 if group is None else group, what="a group has at least 2 weights")
    if count % 2:
        raise UserError(f"group={group}: two weights share a byte, so that a group has an even number of them")
    return count


def _check_batches(batches: object) -> None:
    if not isinstance(batches, Iterable):
        raise UserError(f"batches are lists of the arguments of calls, such as [[x1], [x2]], not a {type(batches).__name__}")


def _arguments(batch: Batch) -> Batch:
    if not isinstance(batch, Sequence) or isinstance(batch, str):
        raise UserError(f"a batch is a list of the arguments of a call, such as [x], not a {type(batch).__name__}")
    return batch


def _joined(results: Sequence[np.ndarray]) -> np.ndarray:
    """The results of all batches: their rows if these have one shape, else their elements."""
    rows = results[0].ndim > 0 and len({r.shape[1:] for r in results}) == 1
    return np.concatenate([r if rows else r.ravel() for r in results])


def _output_error(name: str, actual: np.ndarray, expected: np.ndarray) -> OutputError:
    agreement = float(np.mean(actual.argmax(-1) == expected.argmax(-1))) if actual.ndim == 2 and actual.size else None
    finite = np.isfinite(expected)
    a, b = actual[finite].astype(np.float64), expected[finite].astype(np.float64)
    norm = np.sqrt(np.sum(a * a) * np.sum(b * b)) or 1.0
    rms = np.sqrt(np.sum((a - b) ** 2)) / (np.sqrt(np.sum(b * b)) or 1.0)
    return OutputError(name, relative_error(actual, expected), float(rms), float(np.sum(a * b) / norm), agreement)


def _is_quantizable(call: Call, skip: Sequence[str]) -> bool:
    if call.operator not in ("conv2d", "matmul"):
        return False
    x, w = call.args
    if not isinstance(w, Constant) or not isinstance(x, Value) or not x.type.dtype == w.type.dtype == "float32":
        return False
    if call.operator == "conv2d" and (call.attr("groups") != 1 or w.data.ndim != 4 or call.attr("padding_value")):
        return False
    if not np.isfinite(w.data).all():
        return False
    return (call.operator == "conv2d" or w.data.ndim == 2) and not any(fnmatchcase(w.name, pattern) for pattern in skip)


def _ranges(
    mod: IRModule, main: GraphFunc, observed: Sequence[Operand], batches: Iterable[Batch], percentile: float, target: str | Target | None
) -> list[tuple[float, float]]:
    """The range of each observed value over all batches."""
    tapped = main.with_(body=Region(main.body.bindings, (*main.body.results, *observed)))
    run = compile(mod.update({"main": tapped}), target or Target.detect())
    low, high = np.full(len(observed), np.inf), np.full(len(observed), -np.inf)
    for n, batch in enumerate(batches):
        try:
            made = _results(run(*_arguments(batch)))
        except UserError as error:
            raise UserError(f"calibration, batch {n}: {error}") from None
        for i, values in enumerate(made[len(main.body.results) :]):
            if not values.size:
                continue
            if not np.isfinite(values).all():
                raise UserError(f"calibration: the activation {observed[i].name} has elements that are not finite")
            bounds = np.percentile(values, (100.0 - percentile, percentile)) if percentile < 100.0 else (values.min(), values.max())
            low[i], high[i] = min(low[i], bounds[0]), max(high[i], bounds[1])
    if not np.isfinite(low).all():
        raise UserError("no calibration batch was given, or all are empty: pass a list of the arguments of typical calls")
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _results(made: Any) -> list[np.ndarray]:
    return [np.array(r) for r in (made if isinstance(made, (tuple, list)) else (made,))]


class _Quantize(Rewriter):
    """Insert `quantize` and `dequantize` before contractions.

    Args:
        ranges: the range of each activation; None for weights only.
        skip: patterns of weights that stay float32.
    """

    def __init__(self, ranges: dict[Operand, tuple[float, float]] | None, skip: Sequence[str]) -> None:
        super().__init__()
        self._ranges, self._skip = ranges, skip
        self._done: dict[Operand, Operand] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if self.in_branch or not isinstance(operation, Call) or not _is_quantizable(operation, self._skip):
            return None
        x, w = operation.args
        assert isinstance(w, Constant)
        if self._ranges is None:
            if operation.operator != "matmul":
                return None
            return [build.matmul(x, build.dequantize(*_rounded_weights(w, -1), name=w.name), **operation.keywords)]
        # The result of a quantised contraction replaces a value that was observed.
        bounds = self._ranges.get(self.original(x))
        if bounds is None:
            return None
        if x not in self._done:
            scale, zero = _scale_and_zero(*bounds)
            pair = Constant("scale", np.float32(scale)), Constant("zero", np.uint8(zero))  # type: ignore[arg-type]  # scalars become arrays
            self._done[x] = build.dequantize(build.quantize(x, *pair, name=x.name), *pair, name=x.name)
        weights = build.dequantize(*_rounded_weights(w, 0 if operation.operator == "conv2d" and _is_oihw(operation) else -1), name=w.name)
        return [build.call(operation.operator, self._done[x], weights, **operation.keywords)]


class _QuantizeRows(Rewriter):
    """Quantise the rows of activations in each call, and multiply in integers; products whose sums may exceed int32 stay as they are.

    Args:
        skip: patterns of weights that stay float32.
    """

    def __init__(self, skip: Sequence[str]) -> None:
        super().__init__()
        self._skip = skip
        self._done: dict[Operand, tuple[Operand, Operand]] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        is_product = isinstance(operation, Call) and operation.operator == "matmul"
        if self.in_branch or not isinstance(operation, Call) or not is_product or not _is_quantizable(operation, self._skip):
            return None
        x, w = operation.args
        assert isinstance(w, Constant)
        weights, units, _ = _rounded_weights(w, -1)
        if not fits_int32(weights.data, (0,), 127):
            return None
        if x not in self._done:
            peak = build.max(build.abs(x), axes=(-1,), keepdims=True)
            scale = build.maximum(build.multiply(peak, Constant("unit", np.float32(1 / 127))), Constant("least", np.float32(_LEAST)))  # type: ignore[arg-type]
            numbers = build.clip(build.round(build.divide(x, scale)), min=-127.0, max=127.0)
            self._done[x] = build.cast(numbers, dtype="int8", name=x.name), scale
        q, scale = self._done[x]
        sums = build.cast(build.matmul(q, weights, out_dtype="int32"), dtype="float32")
        return [build.multiply(build.multiply(sums, scale), Constant(units.name, units.data.reshape(-1)))]


class _QuantizeInt4(Rewriter):
    """Replace the weights of matrix products by 4-bit integers in groups.

    Args:
        skip: patterns of weights that stay float32.
        group: weights of a column that share a scale and zero point.
    """

    def __init__(self, skip: Sequence[str], group: int) -> None:
        super().__init__()
        self._skip, self._group = skip, group

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        is_product = isinstance(operation, Call) and operation.operator == "matmul"
        if self.in_branch or not isinstance(operation, Call) or not is_product or not _is_quantizable(operation, self._skip):
            return None
        x, w = operation.args
        if operation.attr("out_dtype") not in ("", "float32"):
            return None
        assert isinstance(w, Constant)
        k, n = w.data.shape
        if k % self._group:
            raise UserError(
                f"group={self._group} does not divide the {k} rows of the weight {w.name}: choose another group, or skip=[{w.name!r}]"
            )
        groups = w.data.reshape(k // self._group, self._group, n).astype(np.float64)
        low, high = np.minimum(groups.min(1), 0.0), np.maximum(groups.max(1), 0.0)
        scale = ((high - low) / 15.0).astype(np.float32)
        scale = np.where(scale == 0.0, np.float32(1.0), scale)
        zero = np.rint(-low / scale)
        numbers = np.clip(np.rint(groups / scale[:, None]) + zero[:, None], 0, 15).astype(np.uint8)
        if np.abs(zero * scale).max(initial=0.0) > np.finfo(np.float32).max:
            raise UserError(f"the weight {w.name} has groups of weights near the largest float32: leave it out by skip=[{w.name!r}]")
        parts = (pack_int4(numbers.reshape(k, n)), scale, (-zero * scale).astype(np.float32))
        return [build.matmul_int4(x, *[Constant(f"{w.name}{end}", a) for a, end in zip(parts, ("", "_scale", "_offset"), strict=True)])]


_LEAST = 2.0**-100
"""Least scale of a row, so that rows of zeros are not divided by 0."""


def _is_oihw(call: Call) -> bool:
    return bool(call.attr("layout") == "NCHW")


def _scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """The scale and zero point of uint8 for a range, which is extended to contain 0, so that zeros are exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255.0)) or 1.0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))


def _rounded_weights(w: Constant, axis: int) -> tuple[Constant, Constant, Constant]:
    """The int8 weights, their scales for each output channel, and the zero point 0."""
    others = tuple([d for d in range(w.data.ndim) if d != axis % w.data.ndim])
    scale = np.abs(w.data).max(axis=others, keepdims=True).astype(np.float32) / np.float32(127.0)
    scale = np.where(scale == 0.0, np.float32(1.0), scale)
    q = np.clip(np.rint(w.data / scale), -127, 127).astype(np.int8)
    return Constant(w.name, q), Constant(f"{w.name}_scale", scale), Constant("zero", np.zeros((), np.int8))
