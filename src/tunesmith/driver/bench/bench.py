"""Benchmark tuned workloads against vendor libraries on the same inputs, interleaved in one run.

Each system has its own process with its preferred threads.  The main process, otherwise idle, runs one window of a fifth of a second
per system in turn, for several rounds, so that disturbances affect all systems alike.  A window disturbed by other processes is repeated.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.driver.bench.report import OURS, BenchReport, BenchRow
from tunesmith.driver.bench.worker import Prepared, Setting, Window
from tunesmith.driver.compile import Records, as_target, compile, open_records
from tunesmith.driver.compiled import CompiledModule
from tunesmith.driver.workloads import WorkloadLike, find_subjects
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.measure.evaluator.correctness import save_reference
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import Workload
from tunesmith.runtime.threads import pin_threads
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RecordError, RunError, UserError
from tunesmith.support.temporary_folder import temporary_folder
from tunesmith.support.worker_pool import WorkerPool

DEFAULT_BASELINES = ("torch", "openblas", "onnxruntime", "openvino", "jax")
"""Baselines that take only seconds to prepare."""

_PREPARE_S = 1800.0
_SETTLE_S = 0.03
"""Pause between turns: thread pools spin for up to 20 ms after their last work."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BenchPolicy:
    """How systems are timed.

    Args:
        rounds: windows per system.
        window_s: seconds of a window.
        quiet_fraction: a window is quiet if other processes used less than this fraction of a core.
        patience_s: seconds per workload for repeating disturbed windows.
        seed: seed of the inputs.
    """

    rounds: int = 8
    window_s: float = 0.2
    quiet_fraction: float = TimingPolicy().quiet_fraction
    patience_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.window_s <= 0 or self.quiet_fraction < 0 or self.patience_s < 0:
            raise UserError(f"bench policy out of range: {self}. rounds is at least 1, window_s is positive, the others are not negative")


def bench(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    log: Records = "log.jsonl",
    against: Sequence[str] = DEFAULT_BASELINES,
    *,
    target: str | Target | None = None,
    policy: BenchPolicy | None = None,
    say: Callable[[str], None] | None = None,
) -> BenchReport:
    """Time the replayed best record of each workload, and each baseline.

    Args:
        workloads: workloads of the operator library, which defines their inputs and reference.
        log: the log of records.
        against: names of baselines; one that is not installed or lacks the operator is skipped and listed in the report.
        target: target of compilation; by default the current target, else this machine.  Baselines use as many threads as it has cores.
        policy: rounds and windows of the timing.
        say: called with each line of progress.
    Raises:
        UserError: a workload is not from the operator library, or a baseline is unknown.
        RecordError: the log cannot be read.
    """
    subjects = find_subjects(workloads)
    foreign = [s.name for s in subjects if s.operator is None]
    if foreign:
        raise UserError(
            f"bench needs workloads of the operator library, which have a reference and baselines; {', '.join(foreign)} is not one"
        )
    for name in against:
        BASELINES.get(name)
    machine = as_target(target)
    database = open_records(log)
    operators = [s.operator for s in subjects if s.operator is not None]
    say = say or (lambda text: None)
    with ExitStack() as stack:
        systems = _start_systems(stack, against, machine)
        skipped = {c.name: c.missing for c in systems if c.missing}
        for name, why in skipped.items():
            say(f"{name} is skipped: {why}")
        folder = stack.enter_context(temporary_folder("tunesmith-bench-"))
        run = _InterleavedRun([s for s in systems if not s.missing], policy or BenchPolicy(), folder, say)
        rows = [row for w in operators for row in run.rows(w, machine, database)]
    return BenchReport(tuple(rows), skipped, tuple(run.absent))


@dataclass(eq=False)
class _SystemProcess:
    """Proxy of a system's process."""

    name: str
    pool: WorkerPool
    missing: str = ""

    def request(self, method: str, *arguments: object, timeout: float = _PREPARE_S) -> object:
        """Run a job in the process.  Raises RunError if the job or the process fails."""
        (result,) = self.pool.run([(method, arguments)], timeout=timeout)
        if result.error is not None:
            raise RunError(f"{result.message}" if result.error != "crash" else f"it crashed: {result.message}")
        return result.value


def _start_systems(stack: ExitStack, against: Sequence[str], target: Target) -> list[_SystemProcess]:
    """Start all processes and query which baselines are available."""
    backend = backend_of(target)
    # The cores of a device are multiprocessors, not threads of this machine.
    threads = Target.detect().num_cores if backend.device else target.num_cores
    plain = {"OMP_NUM_THREADS": str(threads), **({"OMP_PROC_BIND": "false"} if "OMP_PROC_BIND" in os.environ else {})}
    baselines = [(name, "baseline", (backend.baselines.get(name, name), threads), plain) for name in dict.fromkeys(against)]
    jobs = [(OURS, "ours", (bool(backend.device),), pin_threads(threads)), *baselines]
    found = []
    for name, factory, arguments, env in jobs:
        pool = stack.enter_context(closing(WorkerPool(f"tunesmith.driver.bench.worker:{factory}", 1, arguments, env=env)))
        found.append(_SystemProcess(name, pool))
    for system in found:
        try:
            system.missing = str(system.request("available"))
        except RunError as error:
            system.missing = str(error)
    return found


@dataclass
class _Timing:
    """Windows of one system on one workload."""

    system: _SystemProcess
    prepared: Prepared
    windows: list[Window] = field(default_factory=list)
    fault: str = ""


class _InterleavedRun:
    """Times the workloads in order, with the systems in turn."""

    def __init__(self, systems: Sequence[_SystemProcess], policy: BenchPolicy, folder: Path, say: Callable[[str], None]) -> None:
        self._systems, self._policy, self._folder, self._say = systems, policy, folder, say
        self.absent: list[str] = []
        """A line per system and workload without the operator."""

    def rows(self, w: Workload, target: Target, database: Database) -> list[BenchRow]:
        """Time one workload and return its rows."""
        self._say(f"{w.text}: preparing {', '.join(c.name for c in self._systems)}")
        reference = self._folder / "reference.npz"
        save_reference(reference, w.reference(w.random_inputs(self._policy.seed)))
        setting = Setting(w.text, self._policy.seed, str(reference))
        rows: list[BenchRow] = []
        timings: list[_Timing] = []
        for system in self._systems:
            try:
                own = _with_code(setting, w, target, database) if system.name == OURS else setting
                prepared = cast(Prepared, system.request("prepare", own))
            except (RunError, RecordError) as error:
                rows.append(BenchRow.failed(w.text, system.name, str(error)))
                continue
            if not prepared.offered:
                self.absent.append(f"{system.name} has no {w.text}")
            elif prepared.wrong:
                rows.append(BenchRow.failed(w.text, system.name, f"wrong result ({prepared.variant}): {prepared.wrong}"))
            else:
                timings.append(_Timing(system, prepared))
        self._say(f"{w.text}: timing {', '.join(t.system.name for t in timings)}")
        self._time(timings)
        return rows + [self._row(w, t) for t in timings]

    def _time(self, timings: Sequence[_Timing]) -> None:
        """Run all rounds; the first system rotates."""
        patience = self._policy.patience_s
        for i in range(self._policy.rounds):
            first = i % max(1, len(timings))
            for timing in [*timings[first:], *timings[:first]]:
                if not timing.fault:
                    patience = self._turn(timing, patience)

    def _turn(self, timing: _Timing, patience: float) -> float:
        """Time one window, repeated while it is disturbed and patience remains; returns the remaining patience in seconds."""
        best: Window | None = None
        for attempt in range(_ATTEMPTS):
            begun = time.perf_counter()
            time.sleep(_SETTLE_S + 0.1 * attempt)
            try:
                window = cast(Window, timing.system.request("window", self._policy.window_s, timeout=120.0))
            except RunError as error:
                timing.fault = str(error)
                return patience
            if best is None or _disturbance(window) < _disturbance(best):
                best = window
            if not window.starved and window.foreign < self._policy.quiet_fraction:
                break
            patience -= time.perf_counter() - begun
            if patience <= 0:
                break
        assert best is not None
        timing.windows.append(best)
        return patience

    def _row(self, w: Workload, timing: _Timing) -> BenchRow:
        if timing.fault:
            return BenchRow.failed(w.text, timing.system.name, timing.fault)
        windows = [window for window in timing.windows if not window.starved] or timing.windows
        seconds = [s for window in windows for s in window.seconds]
        median = statistics.median(seconds)
        p90 = statistics.quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else median
        clean = all(not w.starved and w.foreign < self._policy.quiet_fraction for w in windows)
        return BenchRow(
            w.text,
            timing.system.name,
            True,
            median,
            min(seconds),
            p90,
            sum(window.number * len(window.seconds) for window in windows),
            w.flops / median / 1e9,
            timing.prepared.variant,
            clean,
            timing.prepared.precision,
            timing.prepared.error,
        )


def _disturbance(window: Window) -> tuple[bool, float]:
    return window.starved, window.foreign


def _with_code(setting: Setting, w: Workload, target: Target, database: Database) -> Setting:
    """The setting with the compiled best record.  Raises RecordError without a record."""
    module = compile(w, target, database, strict=True)
    assert isinstance(module, CompiledModule)
    return Setting(setting.text, setting.seed, setting.reference, module.artifact.code())
