"""The tuner: ask a sampler, measure, tell, until the budget is spent.  It knows no Ray and prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tunesmith.measure.database import Database
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.record import Record
from tunesmith.search.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task


@dataclass(slots=True)
class Progress:
    """The state of one task's tuning, shown to callbacks after every batch.

    Attributes:
        task: what is tuned.
        trials: measured candidates, failures and earlier runs' records included.
        budget: trials wanted.
        best: the best verified record.
        errors: failures by class.
        seconds: where the time went: draft, verify, build, measure, train, total.
        drafted, scored: candidates judged by the analytic and by the learned model.
        curve: best seconds after each trial; None before the first success.
    """

    task: Task
    budget: int
    trials: int = 0
    best: Record | None = None
    errors: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    drafted: int = 0
    scored: int = 0
    curve: list[float | None] = field(default_factory=list)

    @property
    def gflops(self) -> float:
        """Rate of the best record; 0 before there is one."""
        return self.task.flops / self.best.seconds / 1e9 if self.best is not None and self.task.flops else 0.0

    def add(self, record: Record) -> None:
        """Count one record."""
        self.trials += 1
        if record.error is not None:
            self.errors[record.error.kind] = self.errors.get(record.error.kind, 0) + 1
        elif record.verified and (self.best is None or record.seconds < self.best.seconds):
            self.best = record
        self.curve.append(None if self.best is None else self.best.seconds)


Callback = Callable[[Progress], None]


def tune_task(
    task: Task,
    sampler: Sampler,
    measurer: Measurer,
    trials: int,
    database: Database | None = None,
    batch: int = 32,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> Progress:
    """Tune one task; an interrupt (Ctrl-C) keeps everything measured and returns to the caller as it is.

    Args:
        task: what to tune.
        sampler: proposes candidates.
        measurer: builds, runs and logs them.
        trials: total budget, records of the database included.
        database: earlier records: told to the sampler, counted, never measured again.
        batch: candidates a round.
        seed: of the search, for the records.
        callbacks: called with the progress after every batch.
    """
    progress = Progress(task, trials)
    start = time.perf_counter()
    known = known_results(task, database) if database is not None else []
    for record, _ in known:
        progress.add(record)
    if known:
        sampler.tell([r for _, r in known])
    for call in callbacks:
        call(progress)
    while progress.trials < trials:
        asked = time.perf_counter()
        candidates = sampler.ask(min(batch, trials - progress.trials))
        thought = time.perf_counter()
        if not candidates:
            break
        records = measurer.measure(task.measured, [(c.sketch, c.row) for c in candidates], seed=seed)
        measured = time.perf_counter()
        for r in records:
            progress.add(r)
        sampler.tell([result_of(c, r) for c, r in zip(candidates, records, strict=True)])
        trained = time.perf_counter()
        _account(progress, sampler, thought - asked, trained - measured)
        ran = sum(float(str(r.extra.get("run_s", 0.0))) for r in records)
        progress.seconds["measure"] = progress.seconds.get("measure", 0.0) + ran
        progress.seconds["build"] = progress.seconds.get("build", 0.0) + measured - thought - ran
        progress.seconds["total"] = trained - start
        for call in callbacks:
            call(progress)
    progress.seconds["total"] = time.perf_counter() - start
    return progress


def result_of(candidate: Candidate, record: Record) -> Result:
    """What a record tells a sampler."""
    return Result(candidate, None if record.error is not None else record.seconds)


def known_results(task: Task, database: Database) -> list[tuple[Record, Result]]:
    """Records of earlier runs that belong to candidates of this task's space, in the order of the log."""
    names = {s.name: k for k, s in enumerate(task.space.sketches)}
    out: list[tuple[Record, Result]] = []
    for r in database.records(task.digest, task.target.to_json()):
        k = names.get(r.sketch)
        if k is not None and len(r.row) == len(task.space.sketches[k].params):
            out.append((r, result_of(Candidate(k, tuple(r.row)), r)))
    return out


def _account(progress: Progress, sampler: Sampler, thinking: float, training: float) -> None:
    """Split the time of a round: the sampler's drafter knows its own share of the thinking."""
    s = progress.seconds
    drafter = getattr(sampler, "drafter", None)
    if drafter is not None:
        s["draft"] = drafter.draft_seconds
        s["verify"] = s.get("verify", 0.0) + thinking - (drafter.draft_seconds - s.get("_drafted", 0.0))
        s["_drafted"] = drafter.draft_seconds
        progress.drafted, progress.scored = drafter.drafted, drafter.scored
    else:
        s["draft"] = s.get("draft", 0.0) + thinking
    s["train"] = s.get("train", 0.0) + training
