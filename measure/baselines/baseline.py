"""What it takes to be a peer: a library that computes some operators, prepared to run as fast as it can.

A peer gets its own fair chance: constants are prepared outside the clock, inputs stand in the layout it likes best, and
where a library has several ways to compute an operator, all are tried and the fastest one competes.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tunesmith.measure.baselines.operators import OperatorCall, Param, operator_call
from tunesmith.measure.records.environment import package_version
from tunesmith.runtime.timing import TimingPolicy, interleaved
from tunesmith.support.errors import RunError, UserError

_TRYOUT = TimingPolicy(warmup=3, min_repeat_ms=1.0, repeats=7, quiet_fraction=math.inf, window_s=0.0, limit_s=2.0)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """An operator ready to run.  Calling it computes the result and gives it as an array.

    Attributes:
        variant: which way of the library it is, for tables ("prepacked, channels_last").
        run: the part to be timed: it computes the result and returns when that is complete, or see `finish`.
        output: the result of `run` as an array in the layout that was asked for; it may be a view of memory that the
            next `run` overwrites.
        finish: waits for what `run` has begun, where it returns before the result is complete, as it does on GPUs; None elsewhere.
    """

    variant: str
    run: Callable[[], object]
    output: Callable[[object], np.ndarray]
    finish: Callable[[], object] | None = None

    def complete(self) -> None:
        """Run, and wait for the result."""
        self.run()
        if self.finish is not None:
            self.finish()

    def __call__(self) -> np.ndarray:
        return self.output(self.run())


class Baseline(ABC):
    """One library.  Not thread safe: libraries keep their number of threads in global state.

    Subclasses set `name` and `package` and implement `variants`; the library is imported there and nowhere else.

    Args:
        threads: number of threads, the target's cores.
    """

    name: ClassVar[str]
    """The name on the command line."""
    package: ClassVar[str]
    """The distribution on PyPI, for its version and the install line."""
    module: ClassVar[str] = ""
    """The module to import, if it is not named as the package."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise UserError(f"peer {self.name}: it runs on 1 thread or more, not {threads}")
        self.threads = threads

    def available(self) -> str | None:
        """None if the peer can be used, else the reason why not.  Imports the library."""
        module = self.module or self.package
        if importlib.util.find_spec(module) is None:
            return f"{self.package} is not installed (pip install {self.package})"
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken installation can raise anything
            return f"{self.package} cannot be imported: {type(error).__name__}: {error}"
        return None

    def version(self) -> str:
        """The installed version, for reports."""
        return package_version(self.package)

    def prepare(self, op: str, params: Mapping[str, Param], inputs: Mapping[str, np.ndarray]) -> PreparedCall | None:
        """Make an operator ready to run with these inputs, in the fastest way the library has.

        The inputs are copied or kept: they must not change afterwards.

        Args:
            op: name of an operator, see `operators`.
            params: its parameters.
            inputs: its inputs by name.

        Returns:
            The prepared call, which was run at least once; None if the peer has no such operator, or not for this dtype.

        Raises:
            RunError: parameters and inputs do not fit, or the library failed.
        """
        call = operator_call(op, params, inputs)
        if call is None:
            return None
        try:
            return _fastest([variant for variant in self.variants(call) if _computes(variant, call)])
        except RunError:
            raise
        except Exception as error:  # whatever a library may raise is the peer's failure, not the benchmark's
            raise RunError(f"peer {self.name} failed on {call}: {type(error).__name__}: {error}") from error

    @abstractmethod
    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """All ways the library has to compute the operator; empty if it has none."""


def _computes(variant: PreparedCall, call: OperatorCall) -> bool:
    """Whether the library really has this for the dtype: some tell only when they run, some answer in another dtype."""
    try:
        result = variant()
    except NotImplementedError:
        return False
    if result.shape != call.output:
        raise RunError(f"{variant.variant}: the result of {call} has shape {result.shape}, not {call.output}")
    return str(result.dtype) == call.dtype


def _fastest(variants: Sequence[PreparedCall]) -> PreparedCall | None:
    if len(variants) < 2:
        return variants[0] if variants else None
    samples = interleaved({variant.variant: variant.complete for variant in variants}, _TRYOUT)
    return min(variants, key=lambda variant: samples[variant.variant].median)
