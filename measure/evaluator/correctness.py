"""Verify outputs against a reference, with a tolerance derived from dtypes and reduction lengths.

An element may differ by `relative * (|reference| + rms)`, where rms is the root mean square of the whole reference: sums of mixed signs
cancel, and their rounding error is relative to the terms, not to the sum.  `relative` is the sum over the blocks of the workload of
8 eps (1 + sqrt(k)): the rounding error of a sum of k terms in any order grows like sqrt(k) (Higham, Accuracy and Stability of Numerical
Algorithms, 2.8), the worst case k does not occur in practice, and a missing term causes an error of about 1 / sqrt(k) if the terms have
mixed signs, as those of random inputs do.  Integers and booleans must be equal.

A compute precision narrower than the dtype rounds the operands of each reduction once, and accumulates as wide as before.  The errors of
the k terms are independent, so that their sum has the relative error of one term: `relative` grows by 4 eps of the precision for a
reduction, whatever its length, and for a workload without one.  Errors of n independent reductions add in quadrature: 4 eps sqrt(n).

Where these bounds reach the size of the outputs, as in sums of many terms that are accumulated in bfloat16, they accept everything.
Searches have no other bound, because a right order of summation may be far from another one.  A comparison of systems has a `CAP`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.measure.precision import EPS, precision_of
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import UserError

CAP = 0.25
"""The largest `relative` that detects wrong outputs: from 0.5 on, zeros are accepted if all elements of the reference have one size."""
_MARGIN = 8.0
_ROUNDED = 4.0
"""Rounding both operands gives errors with a standard deviation of 0.3 eps: none of a result of any size exceeds 4 eps."""


def tolerance_of(func: PrimFunc, precision: str = "") -> float:
    """The `relative` of a workload, from the dtype and the reduction length of each block.

    Args:
        func: the unscheduled program.
        precision: the compute precision; empty for the dtypes of the program.  One without an eps, such as that of integers, adds nothing.
    """
    total, narrow, roundings = 0.0, EPS.get(precision, 0.0), 0
    for block in blocks_under(func.body):
        eps = max((EPS.get(precision_of(b.dtype), 0.0) for b in _written(block)), default=0.0)
        total += _MARGIN * eps * (1.0 + math.sqrt(_terms(block)))
        roundings += narrow > eps > 0.0 and any(i.kind == "R" for i in block.iters)
    is_narrow = any(0.0 < EPS.get(precision_of(b.dtype), 0.0) < narrow for b in func.params if isinstance(b, Buffer))
    return total + _ROUNDED * narrow * math.sqrt(max(roundings, int(is_narrow)))


def tolerance_of_calls(functions: Sequence[tuple[PrimFunc, float]], precision: str = "") -> float:
    """The `relative` of calls of functions, whose rounding errors are independent and add in quadrature.  See `CAP` for its use.

    Args:
        functions: the unscheduled functions, each with the number of its calls.
        precision: see `tolerance_of`.
    """
    return math.sqrt(sum([calls * tolerance_of(f, precision) ** 2 for f, calls in functions]))


def mismatch(actual: Array, expected: Array, relative: float) -> str | None:
    """Description of the difference between an output and its reference; None if it is within the tolerance.

    Args:
        actual: the output.
        expected: the reference, of the same shape.  NaN and infinite elements must match exactly.
        relative: relative tolerance, see the module docstring; not used for integers and booleans.
    """
    if actual.dtype.kind != "f":
        wrong = np.asarray(actual != expected)
        return _report(actual, expected, wrong, "equal") if wrong.any() else None
    got, want = (x.astype(np.float32) if x.dtype.itemsize < 4 else x for x in (actual, expected))
    is_finite = np.isfinite(want)
    finite = want[is_finite]
    scale = math.sqrt(float(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        right = np.abs(got - want) <= relative * (np.abs(want) + want.dtype.type(scale))
        right &= is_finite
        if not right.all():
            right |= (got == want) | (np.isnan(got) & np.isnan(want))
    return None if right.all() else _report(got, want, ~right, f"within {relative:.2g} * (|expected| + {scale:.3g})")


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference of an output from its reference, relative to the largest element of the reference.

    Elements that are not finite in the reference are left out.  Without others, or if all are zero, the difference is absolute.

    Args:
        actual: the output.
        expected: the reference, of the same shape: computed in float64 and rounded once.
    """
    finite = np.isfinite(expected)
    want = expected[finite].astype(np.float64)
    largest = float(np.abs(want).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        apart = float(np.abs(actual[finite].astype(np.float64) - want).max(initial=0.0))
    return apart / (largest or 1.0)


def check_reference(params: Sequence[ParamSpec], outputs: Sequence[Array]) -> list[Array]:
    """Check and convert the outputs of a reference: one array of the right shape for each written argument.

    Raises:
        UserError: the number of outputs, or the shape or element kind of one, does not match the arguments.
    """
    written = [p for p in params if p.written]
    if len(outputs) != len(written):
        names = ", ".join(p.name for p in written) or "none"
        raise UserError(f"the reference returned {len(outputs)} outputs; the function writes {names}")
    checked = []
    for param, output in zip(written, map(np.asarray, outputs), strict=True):
        dtype = dtypes.to_numpy(param.dtype)
        if output.shape != param.shape or (output.dtype.kind == "f") != (dtype.kind == "f"):
            raise UserError(f"the reference returned {output.dtype}{list(output.shape)} for {param.name}, which is {param}")
        checked.append(np.asarray(output, dtype, order="C"))  # ascontiguousarray would turn a scalar into a vector
    return checked


def save_reference(path: Path, outputs: Sequence[Array]) -> None:
    """Write the outputs to a file, for the process that runs candidates."""
    np.savez(path, *outputs)


def load_reference(path: str | Path) -> list[Array]:
    """Read the outputs written by `save_reference`."""
    with np.load(path, allow_pickle=False) as file:
        return [file[name] for name in file.files]


def _report(got: Array, want: Array, wrong: Array, rule: str) -> str:
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape) if wrong.shape else ()
    place = f"[{', '.join(str(int(i)) for i in at)}]"
    return f"{int(wrong.sum())} of {wrong.size} elements are wrong, the first at {place}: got {got[at]}, expected {want[at]} ({rule})"


def _written(block: Block) -> list[Buffer]:
    return [n.buffer for n in walk(block.body) if type(n) is BufferStore]


def _terms(block: Block) -> int:
    """Reduction length of a block; an unknown extent counts as 1."""
    return math.prod(i.extent.const or 1 for i in block.iters if i.kind == "R")
