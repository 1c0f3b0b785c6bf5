"""Define the baseline interface: a library that prepares operators to run as fast as it can.

Comparisons are fair to the library: constants are prepared untimed, inputs are in its preferred layout, and if it has several variants of
an operator, all are tried and the fastest is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tunesmith.measure.baselines.equivalent_call import equivalent_call
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.measure.records.environment import package_version
from tunesmith.ops.workload import Workload
from tunesmith.runtime.timing import CpuClock, TimingPolicy, interleaved
from tunesmith.support import dtype as dt
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError

_TRYOUT = TimingPolicy(warmup=3, min_repeat_ms=1.0, repeats=15, window_s=0.1, limit_s=2.0)
"""Variants are compared in quiet windows, as systems are: otherwise the choice changes from one process to the next."""


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """An operator ready to run.  Calling it computes the result and returns it as an array.

    Attributes:
        variant: name of the library's variant, for tables ("prepacked, channels_last").
        run: the timed part: computes the result and returns when it is complete, unless there is a `finish`.
        output: converts the result of `run` to an array in the requested layout; it may be a view of memory that the next `run`
            overwrites.
        finish: waits for completion if `run` is asynchronous, as on GPUs; else None.
        precision: the compute precision, as `measure.precision` spells it ("f32", "bf16", "tf32"); empty for the dtype of the inputs.
    """

    variant: str
    run: Callable[[], object]
    output: Callable[[object], np.ndarray]
    finish: Callable[[], object] | None = None
    precision: str = ""

    def complete(self) -> None:
        """Run and wait for the result."""
        self.run()
        if self.finish is not None:
            self.finish()

    def __call__(self) -> np.ndarray:
        return self.output(self.run())


class Baseline(ABC):
    """One library.  Not thread-safe: libraries keep their number of threads in global state.

    Subclasses set `name` and `package` and implement `variants`, which is the only place that imports the library.

    Args:
        threads: number of threads: the target's cores.
    """

    name: ClassVar[str]
    """Name on the command line."""
    package: ClassVar[str]
    """PyPI distribution, for the version and the install command."""
    module: ClassVar[str] = ""
    """Module to import, if its name differs from the package."""

    def __init__(self, threads: int) -> None:
        self.threads = as_count("threads", threads, what=f"baseline {self.name}: at least 1 thread is required")

    def available(self) -> str | None:
        """None if the baseline can be used, else the reason why not.  Imports the library."""
        module = self.module or self.package
        if importlib.util.find_spec(module) is None:
            return f"{self.package} is not installed (pip install {self.package})"
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation can raise any exception
            return f"{self.package} cannot be imported: {type(error).__name__}: {error}"
        return None

    def version(self) -> str:
        """The installed version, for reports."""
        return package_version(self.package)

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        """Prepare a workload with these inputs, in the library's fastest variant.

        The inputs are copied or referenced, and must not change afterwards.

        Args:
            workload: an operator of `ops/` with parameters.
            inputs: its inputs, in order.

        Returns:
            The prepared call, which was run at least once; None if the baseline does not support the operator, its form or the dtype.

        Raises:
            UserError: an argument is not a workload, or not a sequence of arrays.
            RunError: the inputs are not those of the workload, or the library failed.
        """
        call = operator_call(workload, inputs)
        if call is None:
            return None
        try:
            return _fastest([variant for variant in self._variants(call) if _computes(variant, call)])
        except RunError:
            raise
        except Exception as error:  # an exception of the library is a failure of the baseline, not of the benchmark
            raise RunError(f"baseline {self.name} failed on {call}: {type(error).__name__}: {error}") from error

    def prepare_onnx(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        """Prepare the model of an ONNX file with these inputs, which must not change afterwards.

        Args:
            path: the file.
            inputs: arrays of constant shapes, in the order of the model's inputs.
        Returns:
            The call; None if the library does not read ONNX files.
        Raises:
            RunError: the library failed.
        """
        try:
            return self.onnx_call(path, inputs)
        except Exception as error:  # as in `prepare`
            raise RunError(f"baseline {self.name} failed on {path}: {type(error).__name__}: {error}") from error

    def _variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """The variants of the operator, or of an equivalent one if the library lacks it."""
        if call.types is not None:
            return self.low_precision_variants(call)
        found = self.variants(call)
        other = None if found else equivalent_call(call)
        if other is None:
            return found
        rewritten, back = other
        return [
            replace(v, variant=f"{rewritten.name}, {v.variant}", output=lambda y, v=v: back(v.output(y)))  # type: ignore[misc]
            for v in self.variants(rewritten)
        ]

    @abstractmethod
    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """All variants of the operator in the library; empty if it has none."""

    def onnx_call(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        """The model of an ONNX file; None if the library does not read such files."""
        del path, inputs
        return None

    def low_precision_variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """All variants of a contraction of float16, bfloat16 or bytes, whose types are `call.types`; empty if the library has none."""
        del call
        return []


def _computes(variant: PreparedCall, call: OperatorCall) -> bool:
    """True if the library supports the dtype: some report this only at run time, others return another dtype."""
    try:
        result = variant()
    except NotImplementedError:
        return False
    if result.shape != call.output:
        raise RunError(f"{variant.variant}: the result of {call} has shape {result.shape}, not {call.output}")
    return result.dtype == dt.to_numpy(call.dtype)


def _fastest(variants: Sequence[PreparedCall]) -> PreparedCall | None:
    if len(variants) < 2:
        return variants[0] if variants else None
    # Systems without /proc/stat have no quiet windows.
    policy = _TRYOUT if CpuClock.readable() is not None else replace(_TRYOUT, quiet_fraction=math.inf)
    samples = interleaved({variant.variant: variant.complete for variant in variants}, policy)
    return min(variants, key=lambda variant: samples[variant.variant].median)
