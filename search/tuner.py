"""Tune one task: ask a sampler for candidates, measure them and report the results until the budget is spent.

The tuner does not depend on Ray and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tunesmith.codegen.build import pass_changes
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.measure.time_floor import min_seconds
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.search.known_records import known_records
from tunesmith.search.retake import RETAKE, Retaking, is_retake, run_seconds
from tunesmith.search.samplers.proposals import check_admissible, check_new, proposed
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler, SamplerStatistics
from tunesmith.search.task import Task
from tunesmith.search.transfer import Transfer
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import recorded_seed
from tunesmith.support.user_code import shown

PHASES = ("draft", "verify", "build", "measure", "train")
"""Phases of a search whose time is recorded."""
RANKING = TimingPolicy(limit_s=1.0)
"""Timing policy for the leaders: interleaved, in quiet windows, for seconds in all."""
RANKING_ROUNDS = 6
"""Maximum number of ranking rounds: candidates of equal speed would keep changing places."""
FIRST, FIRST_SHARE, LATER_SHARE = 8, 0.5, 0.25
"""Shares of candidates of similar workloads: among the first trials, whose number is the first constant, and among later ones."""


@dataclass(slots=True)
class Progress:
    """The state of one task's tuning, shown to callbacks after every batch.

    Attributes:
        task: the task being tuned.
        trials: measured candidates, including failures and records of earlier runs.
        budget: maximum number of trials; None if the task has no limit of its own.
        best: the best verified record, chosen by `measure.records.status`.  A second measurement can make it slower.
        errors: number of failures by error kind.
        seconds: time spent on each phase: draft, verify, build, measure, train, total.
        drafted, scored: candidates scored by the analytic model and by the learned model.
        curve: after each trial the best seconds so far: the least first time of the candidates verified until then; None before the first
            success.  Second measurements, of leaders and of disturbed candidates, are no trials and change only `best`, so the curve never
            rises, and a resumed search has the same curve as one without interruption.
        resumed: trials that come from earlier runs.
        retaken: candidates whose disturbed measurement this run took again.
        timed_again: leaders that this run timed again.
        best_before: the best record before the leaders were timed again.
        exhausted: the sampler proposes no more candidates.
    """

    task: Task
    budget: int | None
    trials: int = 0
    best: Record | None = None
    errors: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, "total"), 0.0))
    drafted: int = 0
    scored: int = 0
    curve: list[float | None] = field(default_factory=list)
    resumed: int = 0
    retaken: int = 0
    timed_again: int = 0
    best_before: Record | None = None
    exhausted: bool = False

    @property
    def gflops(self) -> float:
        """Rate of the best record in GFLOP/s; 0 without one."""
        return self.task.flops / self.best.seconds / 1e9 if self.best is not None and self.task.flops else 0.0

    def add(self, record: Record, least: float = 0.0) -> None:
        """Count the first record of a candidate; times below `least` are invalid."""
        self.trials += 1
        fastest = self.curve[-1] if self.curve else None
        if record.error is not None:
            self.errors[record.error.kind] = self.errors.get(record.error.kind, 0) + 1
        elif record.verified and record.seconds >= least:
            if self.best is None or record.seconds < self.best.seconds:
                self.best = record
            fastest = record.seconds if fastest is None else min(record.seconds, fastest)
        self.curve.append(fastest)


Callback = Callable[[Progress], None]


class Tuning:
    """The tuning of one task, one batch per step, so that several tasks can be interleaved.

    Earlier records of the database are reported to the sampler at construction; they count as trials and are never measured again.

    Args:
        task: the task to tune.
        sampler: proposes candidates.
        measurer: builds, runs and logs them.
        trials: total budget, records of the database included; None for no limit besides the number of steps.
        database: earlier records; new ones are added to it.  Those that were compiled with other passes are not used.
        batch: candidates per step.
        seed: seed of the search, stored in the records.
        callbacks: called with the progress at construction and after every batch.
        transfer: candidates of similar workloads, which are part of each batch beside those of the sampler; None for the sampler alone.
    """

    def __init__(
        self,
        task: Task,
        sampler: Sampler,
        measurer: Measurer,
        trials: int | None,
        database: Database | None = None,
        batch: int = 32,
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        transfer: Transfer | None = None,
    ) -> None:
        self.progress = Progress(task, trials)
        self.task, self.sampler, self.measurer = task, sampler, measurer
        self._database = (Database() if database is None else database).compiled_with(pass_changes(task.target))
        self._batch, self._seed, self._callbacks = batch, recorded_seed(seed), tuple(callbacks)
        self._transfer = transfer
        self._drafted = 0.0
        self._target = task.target.to_json()
        self._least = min_seconds(task.func, task.target)
        self._candidates: dict[str, Candidate] = {}
        known = known_results(task, self._database)
        for record, result in known:
            self._candidates[record.schedule] = result.candidate
            self.progress.add(record)
        self.progress.resumed = len(known)
        self._retaking = Retaking()
        for record in self._in_space(self._database.records(task.digest, self._target)):
            self._retaking.add(record)
        best = self._update_best()
        if best is not None:
            measurer.note_best(task.measured, best.seconds)
        with self._phase("train"):
            if known:
                sampler.tell([r for _, r in known])
        self._seen = {r.candidate for _, r in known}
        self._show()

    def step(self, most: int | None = None) -> bool:
        """Measure one batch; False if nothing was measured because the budget is spent or the sampler proposed none.

        An interrupt (Ctrl-C) is passed on; every record in the log has been counted by then.

        Args:
            most: maximum number of candidates, if smaller than a batch.
        Raises:
            UserError: the sampler proposed more candidates than requested, a candidate twice, or one outside the space (the checks of
                the arena); nothing of the batch was measured.
        """
        p = self.progress
        count = self._batch if most is None else min(self._batch, most)
        count = count if p.budget is None else min(count, p.budget - p.trials)
        if count <= 0:
            return False
        with self._phase("verify"):
            known = self._known(count)
            asked = count - len(known)
            own = proposed(type(self.sampler).__name__, self.sampler.ask(asked), asked) if asked else []
            candidates = [*own, *[c for c in known if c not in own]]
        self._account()
        if not candidates:
            p.exhausted = True
            self._show()
            return False
        name = type(self.sampler).__name__
        check_admissible(name, own, self.task.space.sketches)
        check_new(name, own, asked, self._seen)
        self._seen.update(candidates)
        records: list[Record] = []
        with self._phase("build"):
            for record in self.measurer.stream(self.task.measured, [(c.sketch, c.row) for c in candidates], seed=self._seed):
                self._candidates[record.schedule] = candidates[len(records)]
                records.append(record)
                self._database.add(record)
                p.add(record, self._least)
        self._ran(records)
        counting = self._retake(candidates, records)
        self._update_best()
        with self._phase("train"):
            self.sampler.tell([result_of(c, r) for c, r in zip(candidates, counting, strict=True)])
        self._account()
        self._show()
        return True

    def _retake(self, candidates: Sequence[Candidate], records: Sequence[Record]) -> list[Record]:
        """Measure disturbed candidates of a batch again that may be among the fastest; returns the last record of each candidate."""
        out = list(records)
        for record in records:
            self._retaking.add(record)
        if all(r.clean for r in records):
            return out
        chosen = self._retaking.choose(records, self.measurer.policy.retake)
        again: list[Record] = []
        rows = [(candidates[i].sketch, candidates[i].row) for i in chosen]
        with self._phase("build"):
            for i, record in zip(
                chosen, self.measurer.stream(self.task.measured, rows, seed=self._seed, extra={RETAKE: True}), strict=True
            ):
                out[i] = record
                again.append(record)
                self._database.add(record)
                self._retaking.add(record)
                self.progress.retaken += 1
        self._ran(again)
        return out

    def _known(self, count: int) -> list[Candidate]:
        """Candidates of similar workloads for a batch."""
        trials = self.progress.trials
        most = int(_shared(trials + count)) - int(_shared(trials))
        return [] if self._transfer is None or not most else self._transfer.candidates(self.task, most, self._seen)

    @property
    def is_ranked(self) -> bool:
        """Whether the best candidate was measured again, without other load."""
        best = self.progress.best
        if best is None:
            return not self._in_space(self._database.top(self.task.digest, self._target, 1, unverified=True))
        first = next(r for r in self._database.records(self.task.digest, self._target) if r.schedule == best.schedule)
        return best.clean and first.identity != best.identity

    def rank(self, leaders: int = 4) -> None:
        """Verify the leaders and time them interleaved until the fastest candidate is among those just timed.

        This corrects for lucky first measurements.  Each measurement adds a record to log and database, but no trial.  The final best is
        chosen by `measure.records.status` from the log alone.
        """
        before = self.progress.best
        timed: set[str] = set()
        again: set[str] = set()
        noisy = False
        for _ in range(RANKING_ROUNDS):
            top = self._in_space(self._database.top(self.task.digest, self._target, len(self._database), unverified=True))
            best = self._in_space([r for r in [self._update_best()] if r is not None])
            # Times lengthened by noise cannot be compared with those of other candidates: then the database's best ends the ranking.
            leading = best if noisy else top
            if not top or (timed and (not leading or leading[0].schedule in timed)):
                break
            chosen = list(dict.fromkeys([self._candidates[r.schedule] for r in [*top[:leaders], *best]]))
            with self._phase("build"):
                compared = [(c.sketch, c.row) for c in chosen]
                records = self.measurer.compare(self.task.measured, compared, policy=RANKING, seed=self._seed)
            for record in records:
                self._database.add(record)
            self._ran(records)
            noisy = not all(r.clean for r in records if r.error is None)
            timed = {r.schedule for r in records}
            again |= timed
        self.progress.timed_again, self.progress.best_before = len(again), before
        self._update_best()
        self._show()

    def _in_space(self, records: Sequence[Record]) -> list[Record]:
        """The records of candidates in the space."""
        return [r for r in records if r.schedule in self._candidates]

    def _update_best(self) -> Record | None:
        """Set the best record from the database, which prefers later and quieter measurements."""
        self.progress.best = self._database.best(self.task.digest, self._target, self.task.func)
        return self.progress.best

    def _show(self) -> None:
        for call in self._callbacks:
            call(self.progress)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.progress.seconds[name] += seconds
            self.progress.seconds["total"] += seconds

    def _ran(self, records: Sequence[Record]) -> None:
        """Move the time of running from the build phase, whose clock included it, to the measure phase."""
        ran = sum(map(run_seconds, records))
        self.progress.seconds["measure"] += ran
        self.progress.seconds["build"] = max(0.0, self.progress.seconds["build"] - ran)

    def _account(self) -> None:
        """Move the time of drafting from the verify phase, whose clock included it, to the draft phase.

        The statistics of the sampler have it; for a sampler without statistics, all of the time is drafting.
        """
        p = self.progress
        statistics = self.sampler.statistics()
        if statistics is None:
            p.seconds["draft"] += p.seconds["verify"]
            p.seconds["verify"] = 0.0
            return
        if not isinstance(statistics, SamplerStatistics):
            raise UserError(
                f"{type(self.sampler).__name__}.statistics() returned {shown(statistics)}: it returns SamplerStatistics, or None"
            )
        newly = statistics.draft_seconds - self._drafted
        self._drafted = statistics.draft_seconds
        p.seconds["draft"] += newly
        p.seconds["verify"] = max(0.0, p.seconds["verify"] - newly)
        p.drafted, p.scored = statistics.drafted, statistics.scored


def _shared(trials: int) -> float:
    """How many of the first `trials` candidates are those of similar workloads."""
    return FIRST_SHARE * min(trials, FIRST) + LATER_SHARE * max(trials - FIRST, 0)


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
    """Tune one task until its budget is spent; the arguments are those of `Tuning`."""
    tuning = Tuning(task, sampler, measurer, trials, database, batch, seed, callbacks)
    while tuning.step():
        pass
    return tuning.progress


def result_of(candidate: Candidate, record: Record) -> Result:
    """The result of a record, as reported to a sampler."""
    return Result(candidate, None if record.error is not None else record.seconds, record.clean)


def known_results(task: Task, database: Database) -> list[tuple[Record, Result]]:
    """The first record of each candidate in the task's space that earlier runs measured (see `known_records`), in the order of the log,
    with its result: that of the second measurement if the first one was disturbed and taken again.

    Records below the least possible time of the target are skipped, so such a candidate may be measured again.  A candidate whose last
    run failed is reported as a failure.
    """
    least = min_seconds(task.func, task.target)
    first: dict[Candidate, Record] = {}
    again: dict[Candidate, Record] = {}
    failed: set[Candidate] = set()
    for candidate, r in known_records(task, database.records(task.digest, task.target.to_json())):
        if r.error is None and r.seconds < least:
            continue
        first.setdefault(candidate, r)  # a second record comes from a retake, or from the ranking of the leaders
        if is_retake(r):
            again[candidate] = r
        (failed.discard if r.error is None else failed.add)(candidate)
    return [(r, Result(c, None) if c in failed else result_of(c, again.get(c, r))) for c, r in first.items()]
