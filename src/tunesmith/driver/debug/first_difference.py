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
            lines.append(f"  at {list(self.index)}: got {self.actual:.6g}, expected {self.expected:.6g}")
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
        rtol: accepted error relative to the largest absolute value of a result.
        atol: accepted absolute error.
    Returns:
        The difference; None if the results of the models agree.
    Raises:
        UserError: as `trace`, or the models have different numbers of results.
        RunError: as `trace`.
    """
    reference, suspect = _traced(a, inputs), _traced(b, inputs)
    if not isinstance(suspect, Trace):
        raise UserError("the second model must be a module, a compiled model or a trace: arrays alone do not say which call made them")
    known = _Known(reference, rtol, atol)
    wrong = _wrong_results(reference, suspect, known)
    if not wrong:
        return None
    agrees = {c.name: known.counterpart(c.name, c.array) is not None for c in suspect.calls}
    found: set[str] = set()
    pending = [name for name in wrong if name in suspect]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [o for o in suspect.call(name).operands if o in suspect and not agrees[o]]
    first = next((c for c in suspect.calls if c.name in found), None)
    if first is None:
        raise UserError(f"the result {wrong[0] or 'of the model'} differs and is no result of a call: the models compute different things")
    func = suspect.module.get(first.function)
    made = Difference(first.name, first.function, first.operands, first.array.shape, func=func if isinstance(func, PrimFunc) else None)
    return known.described(made, first.array)


def _traced(model: Traceable, inputs: tuple[object, ...]) -> Trace | Mapping[str, Any]:
    if isinstance(model, Trace) or (isinstance(model, Mapping) and not isinstance(model, IRModule)):
        return model
    return trace(model, *inputs)


def _wrong_results(reference: Mapping[str, Any], suspect: Trace, known: _Known) -> list[str]:
    """The results of the model that differ; of arrays by name, those that no array agrees with."""
    if not isinstance(reference, Trace):
        return [r for r in suspect.results if r in suspect and known.counterpart(r, suspect[r]) is None]
    if len(reference.results) != len(suspect.results):
        raise UserError(f"the models have {len(reference.results)} and {len(suspect.results)} results: they compute different things")
    pairs = zip(reference.results, suspect.results, strict=True)
    return [b for a, b in pairs if b in suspect and not (a in reference and known.agree(suspect[b], reference[a]))]


class _Known:
    """The results of the reference, by size."""

    def __init__(self, reference: Mapping[str, Any], rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self._arrays = {str(name): np.asarray(array) for name, array in reference.items()}
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
        candidates = self._candidates(made.name, actual.size)
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
            float(actual[index]),
            float(expected[index]),
            made.func,
        )

    def _candidates(self, name: str, size: int) -> list[str]:
        same = [n for n, array in self._arrays.items() if array.size == size]
        return sorted(same, key=lambda n: n != name)

    def _close(self, actual: np.ndarray, expected: np.ndarray) -> bool:
        return bool((_errors(actual, expected) <= self._atol + self._rtol * _largest(expected)).all())


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).astype(np.float64)


def _errors(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Absolute differences; 0 for equal infinities and for NaN in both, infinity for NaN in one."""
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
