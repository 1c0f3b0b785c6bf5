"""The contract of runners: object code in, times and a verdict out.

A runner never raises because of a candidate: what goes wrong with one is its `RunResult`, and the next one runs as if the
device were new.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from tunesmith.codegen.artifact import Code
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.measure.timing_policy import RacePolicy
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.timing import TimingPolicy

VERIFY = ("winner", "always", "never")
"""When an output is compared with the reference: "winner" means before its time may become the best."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What all candidates of one workload share: plain data, from which any process makes the same arguments.

    Attributes:
        key: names the setup; equal keys stand for equal setups.
        target: as JSON text.
        params: the arguments.
        seed: of the inputs.
        ranges: of inputs: name, low, high.
        tolerance: relative, see `correctness`.
        reference: a file that `correctness.save_reference` wrote, or None.
        baseline: the unscheduled function, which is run once for a reference; or None.
        constants: which of the arguments are constants of a model, by position.
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
        """As `argument_data.make_inputs` takes them."""
        return {name: (low, high) for name, low, high in self.ranges}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One candidate for a runner.

    Attributes:
        setup: its workload.
        code: the compiled function.
        policy: how it is timed.
        best: seconds of the best verified candidate so far, None if there is none.
        verify: one of `VERIFY`.
    """

    setup: RunSetup
    code: Code
    policy: RacePolicy
    best: float | None = None
    verify: str = "winner"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of one candidate.

    Attributes:
        samples: seconds of a call, one entry a sample; may be there beside an error (a wrong result).
        clean: no sample was disturbed by other processes.
        error: a run_error, timeout, crash, out_of_memory or wrong_result; or None.
        verified: its output was compared with the reference, and is right.
        seconds: what running it took, all included.
        facts: of the timing: calls in a sample, part of the time that was spent waiting for a core.
        host: the machine it ran on, as `environment` describes one; None for that of the caller.
    """

    samples: tuple[float, ...]
    clean: bool
    error: ErrorInfo | None
    verified: bool
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)
    host: dict[str, object] | None = None


class Runner(ABC):
    """Owns a device, or several, and runs candidates there.

    Methods are for one thread at a time.
    """

    slots: int = 1
    """How many candidates it runs at the same time, on as many devices."""

    @abstractmethod
    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run all, and return what became of each, in the order of the requests.

        Raises:
            RunError: no candidate can be run: the process does not start, the target is another machine's, there is no
                memory for the arguments, the reference cannot be had.
        """

    @abstractmethod
    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """Verify all, and time them in turn in quiet windows: what decides between leaders whose times are close.

        Args:
            requests: candidates of one workload; their own policies are not looked at.
            policy: how they are timed.
        Raises:
            RunError: as `run`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back processes and memory.  Closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
