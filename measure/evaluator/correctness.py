"""Whether an output is right: compared with a reference, within a tolerance that follows from types and reduction lengths.

An element may differ by `relative * (|reference| + rms)`, where rms is the root mean square of the whole reference: sums of
values of both signs cancel, and their rounding error is relative to the terms, not to the sum.  `relative` adds, for
every block of the workload, 8 eps (1 + sqrt(k)): rounding errors of a sum of k terms in any order grow like sqrt(k)
(Higham, Accuracy and Stability of Numerical Algorithms, 2.8), the worst case k is never near, and a forgotten term of
a sum shows as 1 / sqrt(k) if the terms are of both signs, as those of random inputs are.  Integers and booleans must be
equal.
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
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import UserError

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_MARGIN = 8.0


def tolerance_of(func: PrimFunc) -> float:
    """The `relative` of a workload, from the type each block writes and the length of what it sums over."""
    total = 0.0
    for block in blocks_under(func.body):
        eps = max((_EPS.get(dtypes.element(b.dtype), 0.0) for b in _written(block)), default=0.0)
        total += _MARGIN * eps * (1.0 + math.sqrt(_terms(block)))
    return total


def mismatch(actual: Array, expected: Array, relative: float) -> str | None:
    """What is wrong with an output, None if nothing is.

    Args:
        actual: the output.
        expected: the reference, of the same shape.  Where it is NaN or infinite, the output must be the same.
        relative: see above; not used for integers and booleans.
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


def check_reference(params: Sequence[ParamSpec], outputs: Sequence[Array]) -> list[Array]:
    """The outputs of a reference as the runner compares them: one array of the right shape for each argument that is written.

    Raises:
        UserError: there are more or fewer, or one has another shape or kind of element.
    """
    written = [p for p in params if p.written]
    if len(outputs) != len(written):
        raise UserError(f"the reference gave {len(outputs)} outputs; the function writes {', '.join(p.name for p in written) or 'none'}")
    checked = []
    for param, output in zip(written, map(np.asarray, outputs), strict=True):
        dtype = dtypes.to_numpy(param.dtype)
        if output.shape != param.shape or (output.dtype.kind == "f") != (dtype.kind == "f"):
            raise UserError(f"the reference gave {output.dtype}{list(output.shape)} for {param.name}, which is {param}")
        checked.append(np.asarray(output, dtype, order="C"))  # ascontiguousarray makes a vector of a scalar
    return checked


def save_reference(path: Path, outputs: Sequence[Array]) -> None:
    """Write the outputs where the process that runs candidates finds them."""
    np.savez(path, *outputs)


def load_reference(path: str | Path) -> list[Array]:
    """The outputs that `save_reference` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return [file[name] for name in file.files]


def _report(got: Array, want: Array, wrong: Array, rule: str) -> str:
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape) if wrong.shape else ()
    place = f"[{', '.join(str(int(i)) for i in at)}]"
    return f"{int(wrong.sum())} of {wrong.size} elements are wrong, the first at {place}: got {got[at]}, expected {want[at]} ({rule})"


def _written(block: Block) -> list[Buffer]:
    return [n.buffer for n in walk(block.body) if type(n) is BufferStore]


def _terms(block: Block) -> int:
    """Terms of the sum that a block computes; an extent that is not known counts as one."""
    return math.prod(i.extent.const or 1 for i in block.iters if i.kind == "R")
