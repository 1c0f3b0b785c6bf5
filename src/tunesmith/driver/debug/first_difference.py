"""Find the first call of a model whose result differs from that of another compilation of the model.

Passes fuse calls, rename results and change layouts, so results are aligned by name and by value: a result of one model agrees if the other
model has a result with the same elements, in the same shape or with its axes permuted or merged.  A result without a counterpart may be
a new intermediate of a correct pass.  It is a fault only if a result of the model differs and depends on it through results that do not
agree either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from tunesmith.driver.compile_model import CompiledModel
from tunesmith.driver.debug.trace import Trace, trace
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.support.arguments import as_tolerance
from tunesmith.support.errors import UserError

MOST_AXES = 5
"""Axes longer than 1 of which all permutations are tried."""

Traceable = IRModule | CompiledModel | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first result that differs.

    Attributes:
        name: of the result in the second model.
        function: the function that computed it.
        operands: names of the results and inputs that the call read.
        shape: of the result.
        reference: name of the result of the first model that it is compared with: that of the same name, or else the closest of equal size;
            "" if there is none.
        reference_shape: its shape; None if there is none.
        error: largest absolute difference; None without a reference.
        relative: that, relative to the largest absolute value of the reference.
        index: where it is, in the result.
        actual: the element there.
        expected: the element of the reference.
        func: the TIR function to look at; None if the call is no PrimFunc.
    """

    name: str
    function: str
    operands: tuple[str, ...]
    shape: tuple[int, ...]
    reference: str = ""
    reference_shape: tuple[int, ...] | None = None
    error: float | None = None
    relative: float | None = None
    index: tuple[int, ...] = ()
    actual: float | None = None
    expected: float | None = None
    func: PrimFunc | None = None

    def __str__(self) -> str:
        """Result, function, error, operands, and where to look."""
        lines = [f"{self.name}, computed by {self.function}({', '.join(self.operands)}), differs"]
        if self.error is None:
            lines.append(f"  the first model has no result of the size of {list(self.shape)}")
        else:
            lines.append(f"  from {self.reference} by at most {self.error:.4g}, {self.relative:.2g} of its largest value")
            lines.append(f"  at {list(self.index)}: got {_digits(self.actual)}, expected {_digits(self.expected)}")
            lines.append(f"  shapes: {list(self.shape)}, expected {list(self.reference_shape or ())}")
        if self.func is not None:
            lines.append(f"  look at the function {self.function}: `print(difference.func)`, or `tunesmith opt` with its text")
        return "\n".join(lines)


def first_difference(a: Traceable, b: Traceable, *inputs: object, rtol: float = 1e-3, atol: float = 1e-5) -> Difference | None:
    """The first result of `b` that differs from those of `a`, and on which a wrong result of the model depends.

    Args:
        a: the reference: a module, which is interpreted, such as the import of a torch or ONNX model; a compiled model; its trace; or
            arrays by name, for example collected by hooks in another framework.
        b: the model in question: compiled for another target, tuned, or after more passes; or its trace.
        inputs: the inputs of the models, in order.
        rtol: accepted error relative to the largest absolute value of a result.  Integers and bools must be equal.
        atol: accepted absolute error.
    Returns:
        The difference; None if the results of the models agree.
    Raises:
        UserError: as `trace`, the models have different numbers of results, a result that differs is an input or a constant, an array is
            no array of real numbers, or a tolerance is no finite number >= 0.
        RunError: as `trace`.
    """
    rtol, atol = as_tolerance("rtol", rtol), as_tolerance("atol", atol)
    reference, suspect = _traced(a, inputs), _traced(b, inputs)
    if not isinstance(suspect, Trace):
        raise UserError("the second model must be a module, a compiled model or a trace: arrays alone do not say which call made them")
    known = _Known(reference, rtol, atol)
    wrong = _wrong_results(reference, suspect, known)
    if not wrong:
        return None
    names = [suspect.results[i] for i in wrong]
    agrees = {c.name: known.counterpart(c.name, c.array) is not None for c in suspect.calls}
    found: set[str] = set()
    pending = [name for name in names if name in suspect]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [o for o in suspect.call(name).operands if o in suspect and not agrees[o]]
    first = next((c for c in suspect.calls if c.name in found), None)
    if first is None:
        which = f"the input {names[0]}" if names[0] else "a constant"
        raise UserError(
            f"result {wrong[0]} of the second model is {which}, and differs from that of the first: the models compute different things"
        )
    func = suspect.module.get(first.function)
    made = Difference(first.name, first.function, first.operands, first.array.shape, func=func if isinstance(func, PrimFunc) else None)
    return known.described(made, first.array)


def _traced(model: Traceable, inputs: tuple[object, ...]) -> Trace | Mapping[str, Any]:
    if isinstance(model, Trace) or (isinstance(model, Mapping) and not isinstance(model, IRModule)):
        return model
    return trace(model, *inputs)


def _wrong_results(reference: Mapping[str, Any], suspect: Trace, known: _Known) -> list[int]:
    """The positions of the results of the model that differ; of arrays by name, those that no array agrees with."""
    made = suspect.result_arrays
    if not isinstance(reference, Trace):
        return [i for i, (r, array) in enumerate(zip(suspect.results, made, strict=True)) if known.counterpart(r, array) is None]
    if len(reference.results) != len(suspect.results):
        raise UserError(f"the models have {len(reference.results)} and {len(suspect.results)} results: they compute different things")
    return [i for i, (a, b) in enumerate(zip(reference.result_arrays, made, strict=True)) if not known.agree(b, a)]


def _arrays(reference: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of the reference by name, those of its results that are inputs or constants included.

    Raises:
        UserError: an object is no array of real numbers.
    """
    found = {str(name): _array(name, array) for name, array in reference.items()}
    if isinstance(reference, Trace):
        for i, (name, array) in enumerate(zip(reference.results, reference.result_arrays, strict=True)):
            found.setdefault(name or f"result {i}", array)
    return found


def _array(name: object, given: object) -> np.ndarray:
    try:
        array = np.asarray(given)
        reason = f"its type is {array.dtype}"
    except Exception as error:  # conversions of objects of other packages raise any exception
        array, reason = np.empty(0, object), f"{error}"
    if array.dtype.kind not in "biuf" and (array.dtype.kind != "V" or array.dtype.type is np.void):  # V: such as bfloat16 of ml_dtypes
        raise UserError(f"{name!r:.60} of the first model is no array of real numbers: {reason:.200}")
    return array


class _Known:
    """The results of the reference, by size."""

    def __init__(self, reference: Mapping[str, Any], rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self._arrays = _arrays(reference)
        self._sorted: dict[str, np.ndarray] = {}

    def agree(self, actual: np.ndarray, expected: np.ndarray) -> bool:
        """Whether two results of the model have the same elements."""
        return actual.shape == expected.shape and self._close(actual, expected)

    def counterpart(self, name: str, actual: np.ndarray) -> str | None:
        """The name of a result that agrees; that of the same name is tried first."""
        ordered = np.sort(_flat(actual))
        for other in self._candidates(name, actual.size):
            if other not in self._sorted:
                self._sorted[other] = np.sort(_flat(self._arrays[other]))
            if self._close(ordered, self._sorted[other]) and any(
                self._close(actual, e) for e in _in_shape(self._arrays[other], actual.shape)
            ):
                return other
        return None

    def described(self, made: Difference, actual: np.ndarray) -> Difference:
        """The difference with the error from the result of the same name, or else from the closest one."""
        candidates = self._candidates(made.name, actual.size) if actual.size else []
        if candidates and candidates[0] == made.name:
            candidates = candidates[:1]
        best: tuple[float, str, np.ndarray] | None = None
        for other in candidates:
            for expected in _in_shape(self._arrays[other], actual.shape):
                mean = float(np.mean(_errors(actual, expected)))
                if best is None or mean < best[0]:
                    best = mean, other, expected
        if best is None:
            return made
        _, other, expected = best
        errors = _errors(actual, expected)
        index = tuple([int(i) for i in np.unravel_index(int(np.argmax(errors)), errors.shape)])
        return Difference(
            made.name,
            made.function,
            made.operands,
            made.shape,
            other,
            self._arrays[other].shape,
            float(errors[index]),
            float(errors[index]) / (_largest(expected) or 1.0),
            index,
            _element(actual, index),
            _element(expected, index),
            made.func,
        )

    def _candidates(self, name: str, size: int) -> list[str]:
        same = [n for n, array in self._arrays.items() if array.size == size]
        return sorted(same, key=lambda n: n != name)

    def _close(self, actual: np.ndarray, expected: np.ndarray) -> bool:
        if _is_exact(actual) and _is_exact(expected):
            return bool((actual == expected).all())
        return bool((_errors(actual, expected) <= self._atol + self._rtol * _largest(expected)).all())


def _is_exact(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu"


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1) if _is_exact(array) else array.reshape(-1).astype(np.float64)


def _element(array: np.ndarray, index: tuple[int, ...]) -> float:
    return int(array[index]) if _is_exact(array) else float(array[index])


def _digits(value: float | None) -> str:
    return str(value) if value is None or isinstance(value, int) else f"{value:.6g}"


def _errors(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Absolute differences; 0 for equal infinities and for NaN in both, infinity for NaN in one, at least 1 for unequal integers."""
    if _is_exact(actual) and _is_exact(expected):
        unequal = (actual != expected).astype(np.float64)
        return np.maximum(np.abs(actual.astype(np.float64) - expected.astype(np.float64)), unequal)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        errors = np.abs(a - e)
    errors = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, errors)
    return np.where(np.isnan(errors), np.inf, errors)


def _largest(array: np.ndarray) -> float:
    finite = np.abs(array.astype(np.float64)[np.isfinite(array.astype(np.float64))])
    return float(finite.max(initial=0.0))


def _in_shape(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The elements in a shape: as they are, and with the axes permuted."""
    yield array.reshape(shape)
    squeezed = array.squeeze()
    if 1 < squeezed.ndim <= MOST_AXES:
        for axes in permutations(range(squeezed.ndim)):
            if axes != tuple(range(squeezed.ndim)):
                yield squeezed.transpose(axes).reshape(shape)
