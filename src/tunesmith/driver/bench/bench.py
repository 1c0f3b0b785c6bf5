"""bench: our best schedules beside the libraries of others, on the same inputs, interleaved in one run.

Every contestant has a process of its own, with the threads it likes best.  This process, which does nothing else meanwhile,
gives out turns: one window of a fifth of a second to one of them, then to the next, for several rounds, so that whatever the
minute brings meets all of them alike.  A window in which others used the machine is taken again.
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

from tunesmith.driver.bench.report import OURS, BenchReport, BenchRow
from tunesmith.driver.bench.worker import Prepared, Setting, Window
from tunesmith.driver.compile import Records, as_target, compile, open_records
from tunesmith.driver.compile_model import CompiledModel
from tunesmith.driver.workloads import WorkloadLike, find_subjects
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.registry import BASELINES, ON_GPU
from tunesmith.measure.evaluator.correctness import save_reference, tolerance_of
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import Workload
from tunesmith.runtime.threads import pin_threads
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RecordError, RunError, UserError
from tunesmith.support.temporary_folder import temporary_folder
from tunesmith.support.worker_pool import WorkerPool

DEFAULT_PEERS = ("torch", "openblas", "onnxruntime", "jax")
"""Peers that need no more than seconds to prepare."""

_PREPARE_S = 1800.0
_SETTLE_S = 0.03
"""Between turns: pools of threads spin for up to 20 ms after their last work."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BenchPolicy:
    """How contestants are timed.

    Args:
        rounds: windows of each contestant.
        window_s: seconds of a window.
        quiet_fraction: a window counts as quiet when others used less than this part of a core.
        patience_s: seconds, for each workload, that may be spent on taking disturbed windows again.
        seed: of the inputs.
    """

    rounds: int = 8
    window_s: float = 0.2
    quiet_fraction: float = TimingPolicy().quiet_fraction
    patience_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.window_s <= 0 or self.quiet_fraction < 0 or self.patience_s < 0:
            raise UserError(f"bench policy out of range: {self}. rounds starts at 1, the length of a window above 0, others at 0")


def bench(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    log: Records = "log.jsonl",
    against: Sequence[str] = DEFAULT_PEERS,
    *,
    target: str | Target | None = None,
    policy: BenchPolicy | None = None,
    say: Callable[[str], None] | None = None,
) -> BenchReport:
    """Time the best record of each workload, replayed, and each peer.

    Args:
        workloads: operators of the library, whose inputs and reference are known.
        log: where the records are.
        against: names of peers; one that is not installed, or has no such operator, is named in the report and left out.
        target: what is compiled for; by default this machine.  Peers get as many threads as it has cores.
        policy: how long.
        say: told what goes on, a line at a time.
    Raises:
        UserError: a workload is no operator's, or a peer is unknown.
        RecordError: the log cannot be read.
    """
    subjects = find_subjects(workloads)
    foreign = [s.name for s in subjects if s.operator is None]
    if foreign:
        raise UserError(f"bench compares operators of the library, which have a reference and peers; {', '.join(foreign)} is none")
    for name in against:
        BASELINES.get(name)
    machine = as_target(target)
    database = open_records(log)
    operators = [s.operator for s in subjects if s.operator is not None]
    say = say or (lambda text: None)
    with ExitStack() as stack:
        contestants = _contestants(stack, against, machine)
        skipped = {c.name: c.missing for c in contestants if c.missing}
        for name, why in skipped.items():
            say(f"{name} is left out: {why}")
        folder = stack.enter_context(temporary_folder("tunesmith-bench-"))
        match = _Match([c for c in contestants if not c.missing], policy or BenchPolicy(), folder, say)
        rows = [row for w in operators for row in match.play(w, machine, database)]
    return BenchReport(tuple(rows), skipped, tuple(match.absent))


@dataclass(eq=False)
class _Contestant:
    """The near end of a contestant's process."""

    name: str
    pool: WorkerPool
    missing: str = ""

    def ask(self, method: str, *arguments: object, timeout: float = _PREPARE_S) -> object:
        """Do a job.  Raises RunError when it fails, or its process does."""
        (result,) = self.pool.run([(method, arguments)], timeout=timeout)
        if result.error is not None:
            raise RunError(f"{result.message}" if result.error != "crash" else f"it crashed: {result.message}")
        return result.value


def _contestants(stack: ExitStack, against: Sequence[str], target: Target) -> list[_Contestant]:
    """Start all processes, and find out which peers can be used."""
    threads = target.num_cores if target.base != "cuda" else Target.detect().num_cores
    plain = {"OMP_NUM_THREADS": str(threads), **({"OMP_PROC_BIND": "false"} if "OMP_PROC_BIND" in os.environ else {})}
    there = ON_GPU if target.base == "cuda" else {}
    peers = [(name, "peer", (there.get(name, name), threads), plain) for name in dict.fromkeys(against)]
    jobs = [(OURS, "ours", (target.is_gpu,), pin_threads(threads)), *peers]
    found = []
    for name, factory, arguments, env in jobs:
        pool = stack.enter_context(closing(WorkerPool(f"tunesmith.driver.bench.worker:{factory}", 1, arguments, env=env)))
        found.append(_Contestant(name, pool))
    for contestant in found:
        try:
            contestant.missing = str(contestant.ask("available"))
        except RunError as error:
            contestant.missing = str(error)
    return found


@dataclass
class _Score:
    """What a contestant has shown on one workload."""

    contestant: _Contestant
    variant: str
    windows: list[Window] = field(default_factory=list)
    fault: str = ""


class _Match:
    """Workloads one after the other, contestants in turn."""

    def __init__(self, contestants: Sequence[_Contestant], policy: BenchPolicy, folder: Path, say: Callable[[str], None]) -> None:
        self._contestants, self._policy, self._folder, self._say = contestants, policy, folder, say
        self.absent: list[str] = []
        """Who has no such operator."""

    def play(self, w: Workload, target: Target, database: Database) -> list[BenchRow]:
        """The rows of one workload."""
        self._say(f"{w.text}: preparing {', '.join(c.name for c in self._contestants)}")
        reference = self._folder / "reference.npz"
        save_reference(reference, w.reference(w.random_inputs(self._policy.seed)))
        setting = Setting(w.text, self._policy.seed, str(reference), tolerance_of(w.func))
        rows: list[BenchRow] = []
        scores: list[_Score] = []
        for contestant in self._contestants:
            try:
                mine = _with_code(setting, w, target, database) if contestant.name == OURS else setting
                prepared = cast(Prepared, contestant.ask("prepare", mine))
            except (RunError, RecordError) as error:
                rows.append(BenchRow.failed(w.text, contestant.name, str(error)))
                continue
            if not prepared.offered:
                self.absent.append(f"{contestant.name} has no {w.text}")
            elif prepared.wrong:
                rows.append(BenchRow.failed(w.text, contestant.name, f"wrong result ({prepared.variant}): {prepared.wrong}"))
            else:
                scores.append(_Score(contestant, prepared.variant))
        self._say(f"{w.text}: timing {', '.join(s.contestant.name for s in scores)}")
        self._time(scores)
        return rows + [self._row(w, s) for s in scores]

    def _time(self, scores: Sequence[_Score]) -> None:
        """All rounds; who begins moves on by one each round."""
        patience = self._policy.patience_s
        for i in range(self._policy.rounds):
            first = i % max(1, len(scores))
            for score in [*scores[first:], *scores[:first]]:
                if not score.fault:
                    patience = self._turn(score, patience)

    def _turn(self, score: _Score, patience: float) -> float:
        """One window, taken again while others disturb it and there is patience; returns what is left of that."""
        best: Window | None = None
        for attempt in range(_ATTEMPTS):
            begun = time.perf_counter()
            time.sleep(_SETTLE_S + 0.1 * attempt)
            try:
                window = cast(Window, score.contestant.ask("window", self._policy.window_s, timeout=120.0))
            except RunError as error:
                score.fault = str(error)
                return patience
            if best is None or _disturbance(window) < _disturbance(best):
                best = window
            if not window.starved and window.foreign < self._policy.quiet_fraction:
                break
            patience -= time.perf_counter() - begun
            if patience <= 0:
                break
        assert best is not None
        score.windows.append(best)
        return patience

    def _row(self, w: Workload, score: _Score) -> BenchRow:
        if score.fault:
            return BenchRow.failed(w.text, score.contestant.name, score.fault)
        windows = [window for window in score.windows if not window.starved] or score.windows
        seconds = [s for window in windows for s in window.seconds]
        median = statistics.median(seconds)
        p90 = statistics.quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else median
        clean = all(not w.starved and w.foreign < self._policy.quiet_fraction for w in windows)
        return BenchRow(
            w.text,
            score.contestant.name,
            True,
            median,
            min(seconds),
            p90,
            sum(window.number * len(window.seconds) for window in windows),
            w.flops / median / 1e9,
            score.variant,
            clean,
        )


def _disturbance(window: Window) -> tuple[bool, float]:
    return window.starved, window.foreign


def _with_code(setting: Setting, w: Workload, target: Target, database: Database) -> Setting:
    """The setting with the best record, compiled.  RecordError if there is none."""
    module = compile(w, target, database, strict=True)
    assert not isinstance(module, CompiledModel)
    return Setting(setting.text, setting.seed, setting.reference, setting.tolerance, module.artifact.code())
