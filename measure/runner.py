"""Define the runner interface: run compiled candidates on a device, time them, and verify their outputs.

A runner never raises because of a candidate: the failure is reported in its `RunResult`, and it does not affect later candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from tunesmith.codegen.artifact import Code
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RunError


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Data shared by all candidates of a workload: plain data, from which any process creates the same arguments.

    Attributes:
        key: identifier; equal keys mean equal setups.
        target: the target as JSON text.
        params: the arguments.
        seed: seed of the inputs.
        ranges: value ranges of inputs: name, low, high.
        tolerance: relative tolerance, see `correctness`.
        reference: path of a file written by `correctness.save_reference`, or None.
        baseline: the unscheduled function, which is run once to compute the reference; or None.
        constants: positions of the arguments that are constants of a model.
    """

    key: str
    target: str
    params: tuple[ParamSpec, ...]
    seed: int
    ranges: tuple[tuple[str, float, float], ...] = ()
    tolerance: float = 0.0
    reference: str | None = None
    baseline: Code | None = None
    constants: tuple[int, ...] = ()

    def ranges_by_name(self) -> dict[str, Range]:
        """The ranges in the form that `argument_data.make_inputs` takes."""
        return {name: (low, high) for name, low, high in self.ranges}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request to run one candidate.

    Attributes:
        setup: setup of its workload.
        code: the compiled function.
        policy: timing policy.
        best: seconds of the best verified candidate so far; None if there is none.
        verify: one of `policies.VERIFY`.
    """

    setup: RunSetup
    code: Code
    policy: RacePolicy
    best: float | None = None
    verify: str = "winner"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of running one candidate.

    Attributes:
        samples: seconds per call, one entry per sample; may be present together with an error (a wrong result).
        clean: no sample was disturbed by other processes.
        error: a run_error, timeout, crash, out_of_memory or wrong_result; or None.
        verified: its output was compared with the reference and is correct.
        seconds: total run time, with loading and verification.
        facts: facts of the timing: calls per sample, fraction of time spent waiting for a core.
        host: the machine it ran on, as described by `environment`; None for the caller's machine.
    """

    samples: tuple[float, ...]
    clean: bool
    error: ErrorInfo | None
    verified: bool
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)
    host: dict[str, object] | None = None


class RunsLost(RunError):
    """No device is left for the remaining candidates.

    Attributes:
        results: result of each request that was run before; None for the others.
    """

    def __init__(self, message: str, results: Sequence[RunResult | None]) -> None:
        super().__init__(message)
        self.results = tuple(results)


class Runner(ABC):
    """Owns one or several devices and runs candidates on them.

    Not thread-safe.
    """

    slots: int = 1
    """Number of candidates run concurrently, each on its own device."""

    @abstractmethod
    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run all candidates; results are in the order of the requests.

        Raises:
            RunError: no candidate can be run: the process does not start, the target does not match this machine, memory for the
                arguments is exhausted, or the reference is unavailable.
            RunsLost: all devices were lost meanwhile; it has the results so far.
        """

    @abstractmethod
    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """Verify all candidates and time them interleaved, in quiet windows, to rank candidates whose times are close.

        Args:
            requests: candidates of one workload; their own timing policies are ignored.
            policy: timing policy.
        Raises:
            RunError: as `run`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory.  Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
