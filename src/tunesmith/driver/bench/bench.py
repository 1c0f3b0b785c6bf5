"""Benchmark tuned workloads against vendor libraries on the same inputs, interleaved in one run.

Each system has its own process with its preferred threads.  The main process, otherwise idle, runs one window of a fifth of a second
per system in turn, for several rounds, so that disturbances affect all systems alike.  A window disturbed by other processes is repeated.
All processes are started several times: two processes of one system differ by more than two windows of one process.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.display.progress import clock
from tunesmith.driver.bench.entry import Entry, find_entries
from tunesmith.driver.bench.ratio import Ratio, ratio
from tunesmith.driver.bench.report import OURS, BenchReport, BenchRow
from tunesmith.driver.bench.setting import Setting
from tunesmith.driver.bench.worker import Prepared, Window
from tunesmith.driver.compile import Records, as_target, open_records
from tunesmith.driver.workloads import WorkloadLike
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.measure.precision import EPS
from tunesmith.measure.records.database import Database
from tunesmith.runtime.threads import pin_threads
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.arguments import refuse_keywords
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError
from tunesmith.support.load_from_file import find_named, names_a_file
from tunesmith.support.temporary_folder import temporary_folder
from tunesmith.support.worker_pool import WorkerPool

DEFAULT_BASELINES = ("torch", "openblas", "onnxruntime", "openvino", "jax")
"""Baselines that take only seconds to prepare."""

_PREPARE_S = 1800.0
_SETTLE_S = 0.03
"""Pause between turns: thread pools spin for up to 20 ms after their last work."""
_ATTEMPTS = 3
_OWN = " (compare it with an own function: path.py:name)"
_NARROW = '. A function that computes in a narrower format says so by an attribute: f.precision = "bf16"'


@dataclass(frozen=True, slots=True)
class BenchPolicy:
    """How systems are timed.

    Args:
        starts: how often the systems' processes are started: the number of independent repetitions of the intervals.
        rounds: windows per system and start.
        window_s: seconds of a window.
        quiet_fraction: a window is quiet if other processes used less than this fraction of a core.
        patience_s: seconds per workload and start for repeating disturbed windows.
        seed: seed of the inputs.
    """

    starts: int = 5
    rounds: int = 2
    window_s: float = 0.2
    quiet_fraction: float = TimingPolicy().quiet_fraction
    patience_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.starts < 1 or self.rounds < 1 or self.window_s <= 0 or self.quiet_fraction < 0 or self.patience_s < 0:
            raise UserError(
                f"bench policy out of range: {self}. starts and rounds are at least 1, window_s is positive, the others are not negative"
            )


@refuse_keywords(records="log=...")
def bench(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    log: Records = "log.jsonl",
    against: str | Sequence[str] = DEFAULT_BASELINES,
    *,
    target: str | Target | None = None,
    policy: BenchPolicy | None = None,
    say: Callable[[str], None] | None = None,
) -> BenchReport:
    """Time the replayed best record of each workload, and each baseline.

    Operators and own programs without a record have the schedule that `compile` chooses, and are marked as untuned.

    Args:
        workloads: operators, own programs or models of constant shapes.  The reference of an operator is computed by numpy, that of other
            workloads by the code that is compiled without records.
        log: the log of records.  A model is compiled with those that it has.
        against: names of baselines, a list or a text with commas.  They compute operators and, some of them, models of ONNX files; one
            that is not installed or lacks the workload is skipped and listed in the report.  Or `"path.py:f"`, an own function:
            `f(*inputs)` gets the inputs as numpy arrays and returns the outputs, or a function without arguments that computes them; then
            only that function is timed.  Empty to time tunesmith alone; else a workload is not timed if no other system computes it.
        target: target of compilation; by default the current target, else this machine.  Baselines use as many threads as it has cores.
        policy: starts, rounds and windows of the timing.
        say: called with each line of progress.
    Raises:
        UserError: a workload or a baseline is unknown, or a workload has dynamic shapes.
        RecordError: the log cannot be read.
    """
    against = baseline_names(against)
    entries = find_entries(workloads)
    for name in against:
        if not names_a_file(name):
            find_named(BASELINES, name)
    machine = as_target(target)
    database = open_records(log)
    say = say or (lambda text: None)
    policy = policy or BenchPolicy()
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("tunesmith-bench-"))
        run = _InterleavedRun(policy, folder, say, least=2 if against else 1)
        begun, left = time.perf_counter(), entries
        for start in range(policy.starts):
            if not left:
                break
            spent = time.perf_counter() - begun
            expected = f": {clock(spent)} elapsed, about {clock(spent / start * (policy.starts - start))} left" if start else ""
            say(f"start {start + 1} of {policy.starts}{expected}")
            with ExitStack() as processes:
                run.use(_start_systems(processes, against, machine))
                left = [entry for entry in left if run.time(entry, machine, database)]
    return BenchReport(tuple([row for entry in entries for row in run.rows(entry)]), run.skipped, tuple(run.absent))


def baseline_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """The names of a list, or of a text in which commas separate them, as on the command line.

    Raises:
        UserError: something else is given.
    """
    if isinstance(given, str):
        return tuple([name.strip() for name in given.split(",") if name.strip()])
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise UserError(f"against={given!r:.200}: expected names of baselines, such as ['torch', 'openblas']")
    return tuple(given)


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
            said = result.message.removeprefix("UserError: ").removeprefix("RunError: ")  # they name what failed
            raise RunError(said if result.error != "crash" else f"it crashed: {said}")
        return result.value


def _start_systems(stack: ExitStack, against: Sequence[str], target: Target) -> list[_SystemProcess]:
    """Start all processes and query which baselines are available."""
    backend = backend_of(target)
    # The cores of a device are multiprocessors, not threads of this machine.
    threads = Target.detect().num_cores if backend.device else target.num_cores
    plain = {"OMP_NUM_THREADS": str(threads), **({"OMP_PROC_BIND": "false"} if "OMP_PROC_BIND" in os.environ else {})}
    names = dict.fromkeys(against)
    baselines: list[tuple[str, str, tuple[object, ...], Mapping[str, str]]] = [
        (n, "user_function:user_function", (n,), plain)
        if names_a_file(n)
        else (n, "worker:baseline", (backend.baselines.get(n, n), threads), plain)
        for n in names
    ]
    kind = target.base if backend.device else ""
    jobs = [(OURS, "worker:ours", (kind,), pin_threads(threads)), *baselines]
    found = []
    for name, factory, arguments, env in jobs:
        pool = stack.enter_context(closing(WorkerPool(f"tunesmith.driver.bench.{factory}", 1, arguments, env=env)))
        found.append(_SystemProcess(name, pool))
    for system in sorted(found, key=lambda x: not names_a_file(x.name)):  # an own function that cannot be loaded ends the benchmark
        try:
            system.missing = str(system.request("available"))
        except RunError as error:
            system.missing = f"{system.name} cannot be loaded: {error}" if names_a_file(system.name) else str(error)
    return found


@dataclass
class _Timing:
    """Windows of one system on one workload, by start of its process."""

    name: str
    starts: list[list[Window]] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)
    fault: str = ""

    @property
    def windows(self) -> list[Window]:
        """The windows of all starts."""
        return [w for windows in self.starts for w in windows]


class _InterleavedRun:
    """Times the workloads in order, with the systems in turn; `use` names the systems of the next start.

    A workload that fewer than `least` systems compute is not timed.
    """

    def __init__(self, policy: BenchPolicy, folder: Path, say: Callable[[str], None], least: int = 1) -> None:
        self._policy, self._folder, self._say, self._least = policy, folder, say, least
        self._systems: Sequence[_SystemProcess] = ()
        self._timings: dict[str, dict[str, _Timing]] = {}
        self._settings: dict[str, Setting] = {}
        self._own: dict[str, Setting] = {}
        self.skipped: dict[str, str] = {}
        """Unavailable systems, with the reason."""
        self.absent: list[str] = []
        """A line per system and workload without the operator, and per workload that is not timed."""

    def use(self, systems: Sequence[_SystemProcess]) -> None:
        """Take the processes of the next start.  Raises UserError if a function of the user cannot be loaded."""
        for c in systems:
            if c.missing and names_a_file(c.name):
                raise UserError(c.missing)
            if c.missing and c.name not in self.skipped:
                self.skipped[c.name] = c.missing
                self._say(f"{c.name} is skipped: {c.missing}")
        self._systems = [c for c in systems if c.name not in self.skipped]

    def time(self, w: Entry, target: Target, database: Database) -> bool:
        """Time one workload in the processes of this start; false if too few systems are left for a comparison.

        A system that failed before is left out.  What is left out is said at once.
        """
        timings = self._timings.setdefault(w.name, {})
        candidates = [(system, timings.setdefault(system.name, _Timing(system.name))) for system in self._systems]
        candidates = [(s, t) for s, t in candidates if not t.fault and _lacks(s, w) not in self.absent]
        found: dict[str, Prepared] = {}
        # Own functions are the most likely to fail, and our code may take minutes to compile: it is prepared last.
        for system, timing in sorted(candidates, key=lambda c: (c[0].name == OURS, not names_a_file(c[0].name))):
            if len(candidates) >= self._least and (system.name != OURS or len(found) + 1 >= self._least):
                prepared = self._prepared(system, timing, w, target, database)
                if prepared is not None:
                    found[system.name] = prepared
        running = [(s, t) for s, t in candidates if s.name in found]
        if len(running) < self._least:
            if not any(t.starts for t in timings.values()):
                only = f"{running[0][0].name} alone computes it" if running else "no other system computes it"
                self.absent.append(f"{w.name} is not timed: {only}, and there is nothing to compare. Name other systems in --against")
                self._say(self.absent[-1])
            return False
        for system, timing in running:
            timing.prepared.append(found[system.name])
            timing.starts.append([])
        self._say(f"{w.name}: timing {', '.join(system.name for system, _ in running)}")
        self._time(running)
        return True

    def _prepared(self, system: _SystemProcess, timing: _Timing, w: Entry, target: Target, database: Database) -> Prepared | None:
        """The prepared workload; None if the system lacks it or fails."""
        setting = self._setting(w)
        try:
            own = self._with_code(setting, w, target, database) if system.name == OURS else setting
            prepared = cast(Prepared, system.request("prepare", own))
        except (RunError, RecordError, BuildError) as error:
            self._fail(timing, w.name, str(error))
            return None
        if not prepared.offered:
            self.absent.append(_lacks(system, w))
            self._say(self.absent[-1])
            return None
        if prepared.wrong:
            hint = _NARROW if names_a_file(system.name) and prepared.precision in EPS else ""
            self._fail(timing, w.name, f"wrong result ({prepared.variant}): {prepared.wrong}{hint}")
            return None
        return prepared

    def _fail(self, timing: _Timing, workload: str, why: str) -> None:
        """Leave a system out of the rest of the benchmark of a workload."""
        timing.fault = why
        self._say(f"! {workload}: {timing.name} is left out: {why}")

    def rows(self, w: Entry) -> list[BenchRow]:
        """The rows of a workload: failures first."""
        timings = self._timings[w.name]
        failed = [BenchRow.failed(w.name, t.name, t.fault) for t in timings.values() if t.fault]
        own = timings.get(OURS)
        return failed + [self._row(w, t, own) for t in timings.values() if not t.fault and t.starts]

    def _setting(self, w: Entry) -> Setting:
        """What all systems get; the reference is computed once."""
        if w.name not in self._settings:
            self._settings[w.name] = w.save(self._folder, f"workload{len(self._settings)}", self._policy.seed)
        return self._settings[w.name]

    def _with_code(self, setting: Setting, w: Entry, target: Target, database: Database) -> Setting:
        """The setting with the compiled best record or untuned schedule, compiled once."""
        if w.name not in self._own:
            self._own[w.name] = w.with_code(setting, target, database)
        return self._own[w.name]

    def _time(self, running: Sequence[tuple[_SystemProcess, _Timing]]) -> None:
        """Run all rounds of a start; the first system rotates."""
        patience = self._policy.patience_s
        for i in range(self._policy.rounds):
            first = i % max(1, len(running))
            for system, timing in [*running[first:], *running[:first]]:
                if not timing.fault:
                    patience = self._turn(system, timing, patience)
        for system, timing in running:
            if not timing.fault:
                self._check_again(system, timing)

    def _check_again(self, system: _SystemProcess, timing: _Timing) -> None:
        """Leave a system out whose calls after the first one differ from it: its times are those of other work."""
        try:
            timing.fault = str(system.request("changed", timeout=120.0))
        except RunError as error:
            timing.fault = str(error)
        if timing.fault:
            self._say(f"! {timing.name} is left out: {timing.fault}")

    def _turn(self, system: _SystemProcess, timing: _Timing, patience: float) -> float:
        """Time one window, repeated while it is disturbed and patience remains; returns the remaining patience in seconds."""
        best: Window | None = None
        for attempt in range(_ATTEMPTS):
            begun = time.perf_counter()
            time.sleep(_SETTLE_S + 0.1 * attempt)
            try:
                window = cast(Window, system.request("window", self._policy.window_s, timeout=120.0))
            except RunError as error:
                timing.fault = str(error)
                self._say(f"! {timing.name} failed while it was timed: {error}")
                return patience
            if best is None or _disturbance(window) < _disturbance(best):
                best = window
            if self._is_quiet(window):
                break
            patience -= time.perf_counter() - begun
            if patience <= 0:
                break
        assert best is not None
        timing.starts[-1].append(best)
        return patience

    def _is_quiet(self, window: Window) -> bool:
        return not window.starved and window.foreign < self._policy.quiet_fraction

    def _row(self, w: Entry, timing: _Timing, own: _Timing | None) -> BenchRow:
        windows = [window for window in timing.windows if not window.starved] or timing.windows
        seconds = [s for window in windows for s in window.seconds]
        median = statistics.median(seconds)
        p90 = statistics.quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else median
        errors = [p.error for p in timing.prepared if p.error is not None]
        compared = own is not None and own is not timing and not own.fault
        return BenchRow(
            w.name,
            timing.name,
            True,
            median,
            min(seconds),
            p90,
            sum(window.number * len(window.seconds) for window in windows),
            w.flops / median / 1e9,
            " | ".join(dict.fromkeys(p.variant for p in timing.prepared)),
            all(self._is_quiet(w) for w in windows),
            timing.prepared[0].precision,
            max(errors, default=None),
            self._ratio(timing, own) if compared and own is not None else None,
        )

    def _ratio(self, timing: _Timing, own: _Timing) -> Ratio | None:
        """The time of a system over ours: in each start from its quiet pairs of windows if it has one, else from those in which neither
        system lost a core.  A start without either is left out, unless all are."""
        # A system that failed is not started again, so that equal positions are equal starts and rounds.
        starts = [list(zip(a, b, strict=False)) for a, b in zip(timing.starts, own.starts, strict=False)]
        pairs = [pair for start in starts for pair in start]
        if not pairs:
            return None
        quiet = [[p for p in start if all(map(self._is_quiet, p))] for start in starts]
        kept = [[p for p in start if not any(w.starved for w in p)] for start in starts]
        made = [start for start in starts if start]
        used = [a or b for a, b in zip(quiet, kept, strict=True) if a or b] or made
        values = [[statistics.median(a.seconds) / statistics.median(b.seconds) for a, b in start] for start in used]
        return ratio(values, sum(map(len, quiet)) / len(pairs), len(made) - len(used))


def _lacks(system: _SystemProcess, w: Entry) -> str:
    """The line of the report about a system that does not offer a workload."""
    return f"{system.name} has no {w.name}" + ("" if w.operator else _OWN)


def _disturbance(window: Window) -> tuple[bool, float]:
    return window.starved, window.foreign
