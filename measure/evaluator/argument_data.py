"""Generate the arguments of a workload from a seed, identically in every process, and allocate them once for all candidates.

Inputs are read-only and shared by all candidates.  Outputs are poisoned before a verified run, so that results of an earlier candidate
cannot hide an element that was not written.  Outputs that the function reads, or writes only in part, start from random values instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tunesmith.measure.evaluator.guard_pages import Array, GuardedArray, round_to
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support import dtype as dtypes
from tunesmith.support import seeds
from tunesmith.support.errors import UserError

Range = tuple[float, float]
"""Half-open interval of the values of an input."""

FLOATS: Range = (-1.0, 1.0)
BYTES: Mapping[str, Range] = {"int8": (-128, 128), "uint8": (0, 256)}
SIGNED: Range = (-8, 8)
UNSIGNED: Range = (0, 16)
"""Default ranges of inputs.  All values of bytes occur, because products of extreme bytes are where instructions that saturate differ from
those that do not.  Inputs used as indices need an explicit range."""


def make_inputs(params: Sequence[ParamSpec], seed: int = 0, ranges: Mapping[str, Range] | None = None) -> list[Array]:
    """Random values for every argument that is not written, in order; bfloat16 as float32.

    Values are uniform in the range; each input has an independent random stream.

    Args:
        params: all arguments of the function.
        seed: seed of the data.
        ranges: value ranges by argument name.
    Raises:
        UserError: a range is empty, or its name is not an input.
    """
    ranges = ranges or {}
    inputs = [(i, p) for i, p in enumerate(params) if not p.written]
    unknown = sorted(set(ranges) - {p.name for _, p in inputs})
    if unknown:
        raise UserError(f"a range is given for {', '.join(unknown)}, but the inputs are {', '.join(p.name for _, p in inputs) or 'none'}")
    return [_draw(p, seed, i, ranges.get(p.name)) for i, p in inputs]


def _draw(param: ParamSpec, seed: int, index: int, given: Range | None) -> Array:
    stream = seeds.stream(seed, "arguments", index)
    if param.dtype == "bool":
        return stream.integers(0, 2, param.shape).astype(np.bool_)
    kind = FLOATS if dtypes.is_float(param.dtype) else UNSIGNED if dtypes.is_unsigned(param.dtype) else SIGNED
    default = BYTES.get(param.dtype, kind)
    low, high = given or default
    if not low < high:
        raise UserError(f"the range of {param.name} is empty: from {low} up to {high}. Give the lower end first")
    if not dtypes.is_float(param.dtype):
        return stream.integers(int(low), int(high), param.shape, dtypes.to_numpy(param.dtype))
    unit: Array = stream.random(param.shape, np.float64 if param.dtype == "float64" else np.float32)
    unit *= high - low
    unit += low
    return round_to(param.dtype, unit)


def poison(params: Sequence[ParamSpec], reference: Sequence[Array]) -> list[Array]:
    """Values for the written arguments that are wrong in every element: NaN, or the complement of the expected value."""
    dtypes_written = [p.dtype for p in params if p.written]
    return [
        np.where(np.isnan(x), x.dtype.type(0), x.dtype.type(np.nan)) if dtypes.is_float(dtype) else ~x
        for dtype, x in zip(dtypes_written, reference, strict=True)
    ]


def run_baseline(params: Sequence[ParamSpec], seed: int, run: Callable[[Sequence[Array]], list[Array]]) -> tuple[list[Array], list[Array]]:
    """Contents of the outputs before a verified call, and expected contents after it, from two calls of the unscheduled function.

    If the results depend on the previous contents, the function updates an output or writes only a part of one: verified calls then start
    from the same random values as the reference.  Otherwise they start from poison.

    Args:
        params: all arguments of the function.
        seed: seed of the data.
        run: fills the written arguments with values, calls the function, and returns a copy of their contents.
    """
    first = [_draw(p, seed, i, None) for i, p in enumerate(params) if p.written]
    after = run(first)
    wrong = poison(params, after)
    again = run(wrong)
    return wrong if all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(after, again, strict=True)) else first, after


class ArgumentTable:
    """The arguments of one workload, allocated in guarded memory.

    Args:
        params: all arguments, in order.
        inputs: values of the arguments that are not written, in order.

    Raises:
        RunError: memory is exhausted.
    """

    def __init__(self, params: Sequence[ParamSpec], inputs: Sequence[Array]) -> None:
        self.params = tuple(params)
        self._arrays = [GuardedArray(p.dtype, p.shape) for p in params]
        values = iter(inputs)
        for param, array in zip(self.params, self._arrays, strict=True):
            if not param.written:
                array.store(next(values))
                array.seal()
        self._outputs = [(p, a) for p, a in zip(self.params, self._arrays, strict=True) if p.written]

    def arguments(self) -> list[object]:
        """Arguments for a compiled function; valid during the lifetime of the table."""
        return [array.argument() for array in self._arrays]

    def outputs(self) -> list[Array]:
        """Current contents of the written arguments; views, except for bfloat16."""
        return [array.load() for _, array in self._outputs]

    def fill(self, values: Sequence[Array]) -> None:
        """Fill the outputs; values of bfloat16 are float32."""
        for (_, array), x in zip(self._outputs, values, strict=True):
            array.store(x)

    def damaged(self) -> list[str]:
        """Names of the outputs outside which memory was overwritten since the last call."""
        return [param.name for param, array in self._outputs if array.damaged()]
