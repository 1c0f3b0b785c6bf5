"""The bench that a workload needs: the processor's, or that of a device.  A process has one of each at most."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.cpu_evaluator import CpuEvaluator
from tunesmith.measure.evaluator.device_evaluator import DeviceEvaluator
from tunesmith.measure.runner import RunRequest, RunResult, RunSetup
from tunesmith.runtime.timing import TimingPolicy


class Evaluators:
    """Runs candidates in this process, each where its target says."""

    def __init__(self) -> None:
        self._processor: CpuEvaluator | None = None
        self._device: DeviceEvaluator | None = None
        self._on_processor: dict[str, bool] = {}

    @property
    def corrupted(self) -> bool:
        """A candidate has ruined memory of this process, or lost it a device."""
        return any(b is not None and b.corrupted for b in (self._processor, self._device))

    def prepare(self, setup: RunSetup) -> None:
        """See `Workbench.prepare`."""
        self._bench(setup).prepare(setup)

    def run(self, request: RunRequest) -> RunResult:
        """See `Workbench.run`."""
        return self._bench(request.setup).run(request)

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        """See `Runner.compare`."""
        return self._bench(requests[0].setup).compare(requests, policy)

    def _bench(self, setup: RunSetup) -> CpuEvaluator | DeviceEvaluator:
        if setup.target not in self._on_processor:
            self._on_processor[setup.target] = Target.from_json(json.loads(setup.target)).is_cpu
        if self._on_processor[setup.target]:
            if self._processor is None:
                self._processor = CpuEvaluator()
            return self._processor
        if self._device is None:
            self._device = DeviceEvaluator()
        return self._device
