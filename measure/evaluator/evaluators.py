"""Run candidates in this process, each with the evaluator of its target's backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.ir.target.target import Target
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.runtime.timing import TimingPolicy


class Evaluator(Protocol):
    """Runs and times candidates of one kind of target in this process."""

    corrupted: bool
    """Whether a candidate has overwritten memory of this process, or lost it a device: the process must be replaced."""

    def prepare(self, setup: RunSetup) -> None: ...
    def run(self, request: RunRequest) -> RunResult: ...
    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]: ...
    def close(self) -> None: ...


class Evaluators:
    """The evaluators of this process, one for each class at most."""

    def __init__(self) -> None:
        self._made: dict[str, Evaluator] = {}
        self._of_target: dict[str, Evaluator] = {}

    @property
    def corrupted(self) -> bool:
        """Whether one of them is corrupted."""
        return any(e.corrupted for e in self._made.values())

    def prepare(self, setup: RunSetup) -> None:
        """See `CpuEvaluator.prepare`."""
        self._evaluator(setup).prepare(setup)

    def run(self, request: RunRequest) -> RunResult:
        """See `CpuEvaluator.run`."""
        return self._evaluator(request.setup).run(request)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        return self._evaluator(requests[0].setup).compare(requests, policy)

    def close(self) -> None:
        """Release the memory and the devices of all evaluators.  Idempotent."""
        for evaluator in self._made.values():
            evaluator.close()
        self._made.clear()
        self._of_target.clear()

    def _evaluator(self, setup: RunSetup) -> Evaluator:
        found = self._of_target.get(setup.target)
        if found is None:
            backend = backend_of(Target.from_json(json.loads(setup.target)))
            if backend.evaluator not in self._made:
                self._made[backend.evaluator] = backend.part("evaluator")()
            found = self._of_target[setup.target] = self._made[backend.evaluator]
        return found
