"""Select the evaluator for a workload's target: CPU or device, with at most one of each per process."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.cpu_evaluator import CpuEvaluator
from tunesmith.measure.evaluator.device_evaluator import DeviceEvaluator
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.runtime.timing import TimingPolicy


class Evaluators:
    """Runs candidates in this process, with the evaluator for their target."""

    def __init__(self) -> None:
        self._cpu: CpuEvaluator | None = None
        self._device: DeviceEvaluator | None = None
        self._is_cpu: dict[str, bool] = {}

    @property
    def corrupted(self) -> bool:
        """A candidate damaged memory of this process, or made it lose a device."""
        return any(e is not None and e.corrupted for e in (self._cpu, self._device))

    def prepare(self, setup: RunSetup) -> None:
        """See `CpuEvaluator.prepare`."""
        self._evaluator(setup).prepare(setup)

    def run(self, request: RunRequest) -> RunResult:
        """See `CpuEvaluator.run`."""
        return self._evaluator(request.setup).run(request)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        return self._evaluator(requests[0].setup).compare(requests, policy)

    def _evaluator(self, setup: RunSetup) -> CpuEvaluator | DeviceEvaluator:
        if setup.target not in self._is_cpu:
            self._is_cpu[setup.target] = Target.from_json(json.loads(setup.target)).is_cpu
        if self._is_cpu[setup.target]:
            if self._cpu is None:
                self._cpu = CpuEvaluator()
            return self._cpu
        if self._device is None:
            self._device = DeviceEvaluator()
        return self._device
