"""The arena: whole searches replayed on measured pools, so that samplers and models can be compared over many seeds without a machine.

A replay asks a sampler for batches as a tuner does, looks their times up and tells them.  It depends on the pool, the entrant, the
seed and the settings alone; so replays run in any number of processes and in any order, and one that was done is never done again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from tunesmith.experiments.arena.contestants import Method
from tunesmith.experiments.arena.journal import ReplayJournal
from tunesmith.experiments.arena.pool import Pool
from tunesmith.search.samplers.proposals import check_new, proposed
from tunesmith.search.samplers.sampler import Candidate, Sampler
from tunesmith.support.errors import UserError
from tunesmith.support.worker_pool import WorkerPool

Floats = npt.NDArray[np.float64]

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Processes share the cores; and a sum in another order would be another search."""


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """What all replays of a run have in common.

    Attributes:
        trials: candidates that a search may try; of a smaller pool, all.
        batch: candidates that it is asked for at once.
    """

    trials: int = 256
    batch: int = 32

    def __post_init__(self) -> None:
        if self.trials < 1 or self.batch < 1:
            raise UserError(f"an arena needs at least 1 trial, in batches of at least 1; got trials={self.trials}, batch={self.batch}")


class Job(NamedTuple):
    """One replay: the positions of pool and entrant in the run, and the seed."""

    pool: int
    entrant: int
    seed: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A replay that ended with an error: of the sampler's own, or because it proposed what the pool does not hold.

    Attributes:
        job: which.
        message: one line.
        detail: the traceback.
    """

    job: Job
    message: str
    detail: str


@dataclass(frozen=True)
class ArenaRun:
    """All replays of a run.

    Attributes:
        pools, entrants, settings: what was compared.
        seeds: how many, from 0.
        asked: of each job that ended well, the tried candidates in order, as indices into `Pool.seconds`.
        failures: of all other jobs.
        resumed: how many of the replays are an earlier run's.
        took: seconds that replays needed, of those where it is known.  It is the only thing here that is not the same every time.
    """

    pools: tuple[Pool, ...]
    entrants: tuple[Method, ...]
    seeds: int
    settings: ArenaSettings
    asked: dict[Job, tuple[int, ...]]
    failures: tuple[Failure, ...] = ()
    resumed: int = 0
    took: dict[Job, float] = field(default_factory=dict, compare=False)

    def budget(self, pool: int) -> int:
        """Trials of a search on that pool."""
        return min(self.settings.trials, len(self.pools[pool]))

    def curves(self, pool: int, entrant: int) -> Floats:
        """Best seconds after each trial, [seeds that ended well, budget]: inf before the first success, the last value after the end."""
        length = self.budget(pool)
        out = np.full((self.seeds, length), np.inf)
        done = [seed for seed in range(self.seeds) if Job(pool, entrant, seed) in self.asked]
        for seed in done:
            seconds = self.pools[pool].seconds[list(self.asked[Job(pool, entrant, seed)])]
            if len(seconds):
                out[seed, : len(seconds)] = seconds
        return np.minimum.accumulate(out[done], axis=1)


def replay(pool: Pool, sampler: Sampler, trials: int, batch: int = 32) -> list[int]:
    """One search on a pool: the tried candidates in order, as indices into `pool.seconds`.

    It ends when `trials` are spent, all of the pool is tried, or the sampler proposes nothing more.

    Args:
        pool: where the times come from.
        sampler: made for `pool.task`, and used up by this.
        trials: candidates in all.
        batch: candidates to ask for at once.
    Raises:
        UserError: the sampler proposed what the pool does not hold, more than it was asked for, or one candidate twice.
    """
    asked: list[int] = []
    seen: set[Candidate] = set()
    trials = min(trials, len(pool))
    while len(asked) < trials:
        wanted = min(batch, trials - len(asked))
        candidates = proposed(type(sampler).__name__, sampler.ask(wanted), wanted)
        if not candidates:
            break
        results = pool.look_up(candidates)
        check_new(type(sampler).__name__, candidates, wanted, seen)
        asked += [pool.index(c) for c in candidates]
        sampler.tell(results)
    return asked


def make_replayer(
    pools: Sequence[Pool], entrants: Sequence[Method], settings: ArenaSettings
) -> Callable[[tuple[int, int, int]], list[int]]:
    """What a worker does: the replay of a job.  Tasks of pools and their compiled features are made once a worker."""

    def run(job: tuple[int, int, int]) -> list[int]:
        at, entrant, seed = job
        pool = pools[at]
        return replay(pool, entrants[entrant].make(pool.task, seed), settings.trials, settings.batch)

    return run


def run_arena(
    pools: Sequence[Pool],
    entrants: Sequence[Method],
    seeds: int,
    settings: ArenaSettings | None = None,
    *,
    workers: int = 1,
    journal: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArenaRun:
    """Replay every entrant on every pool with every seed.

    Args:
        pools: measured candidates, see `pool_file.load_pools`.
        entrants: see `arena_entrants.line_up`.
        seeds: how many, from 0.
        settings: budget and batch.
        workers: processes; 0 does all in this one.  The results are the same for any number.
        journal: a file that remembers replays: what it holds is not done again, what is done is added.
        progress: called with the replays that have ended and all there are.
    Raises:
        UserError: an argument makes no sense.  What goes wrong within a replay is a `Failure`, and stops no other.
        RecordError: the journal cannot be written.
    """
    settings = settings or ArenaSettings()
    _check(pools, entrants, seeds, workers)
    jobs = [Job(p, e, s) for p in range(len(pools)) for s in range(seeds) for e in range(len(entrants))]
    book = ReplayJournal(journal, pools, entrants, settings.trials, settings.batch)
    known = {job: found for job in jobs if (found := book.find(*job)) is not None}
    todo = [job for job in jobs if job not in known]
    progress(len(known), len(jobs))
    done, failures = dict(known), list[Failure]()
    took = {job: seconds for job in known if (seconds := book.took(*job)) is not None}
    for job, result, seconds in _results(pools, entrants, settings, todo, workers):
        if isinstance(result, Failure):
            failures.append(result)
        else:
            done[job] = result
            took[job] = seconds
            book.add(*job, result, seconds)
        progress(len(done) + len(failures), len(jobs))
    # In the order of the jobs, whoever was first.
    ordered = {job: done[job] for job in jobs if job in done}
    failed = tuple(sorted(failures, key=lambda f: f.job))
    return ArenaRun(tuple(pools), tuple(entrants), seeds, settings, ordered, failed, len(known), took)


def _check(pools: Sequence[Pool], entrants: Sequence[Method], seeds: int, workers: int) -> None:
    if not pools or not entrants:
        raise UserError(f"an arena needs a pool and an entrant; got {len(pools)} pools and {len(entrants)} entrants")
    if seeds < 1 or workers < 0:
        raise UserError(f"an arena needs at least 1 seed and 0 workers or more; got seeds={seeds}, workers={workers}")


def _results(
    pools: Sequence[Pool], entrants: Sequence[Method], settings: ArenaSettings, jobs: Sequence[Job], workers: int
) -> Iterator[tuple[Job, tuple[int, ...] | Failure, float]]:
    """Jobs as they end: what was asked, or why not, and how long it took."""
    if not jobs:
        return
    if workers == 0:
        run = make_replayer(pools, entrants, settings)
        for job in jobs:
            start = time.perf_counter()
            found: tuple[int, ...] | Failure
            try:
                found = tuple(run(job))
            except (Exception, SystemExit) as error:  # a sampler may be anybody's, and end the process
                found = Failure(job, f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc())
            yield job, found, time.perf_counter() - start
        return
    factory = "tunesmith.experiments.arena.replay:make_replayer"
    with WorkerPool(factory, min(workers, len(jobs)), (list(pools), list(entrants), settings), env=_ONE_THREAD) as crew:
        tickets = {crew.submit(tuple(job)): job for job in jobs}
        for result in crew.results():
            job = tickets[result.ticket]
            if result.error is None:
                yield job, tuple(cast(list[int], result.value)), result.seconds
            else:
                yield job, Failure(job, result.message, result.detail), result.seconds
