"""Replay searches on tabular benchmarks, to compare samplers and models over many seeds without hardware.

A replay requests batches from a sampler as a tuner does, looks up their times and reports them to it.  Its result depends only on the
pool, the method, the seed and the settings, so replays run in any order and number of processes, and the journal makes them resumable.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple, cast

import numpy as np

from tunesmith.experiments.arena.journal import ReplayJournal
from tunesmith.experiments.arena.methods import Method
from tunesmith.experiments.arena.pool import Pool
from tunesmith.search.samplers.proposals import check_new, proposed
from tunesmith.search.samplers.sampler import Candidate, Sampler
from tunesmith.support.array_types import Float64Array
from tunesmith.support.errors import UserError
from tunesmith.support.worker_pool import WorkerPool

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread per process: processes share the cores, and another order of summation could change a search."""


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """Settings shared by all replays of a run.

    Attributes:
        trials: maximum number of candidates per search; limited by the size of the pool.
        batch: candidates per sampler call.
    """

    trials: int = 256
    batch: int = 32

    def __post_init__(self) -> None:
        if self.trials < 1 or self.batch < 1:
            raise UserError(f"an arena needs at least 1 trial, in batches of at least 1; got trials={self.trials}, batch={self.batch}")


class Job(NamedTuple):
    """One replay: the indices of pool and method in the run, and the seed."""

    pool: int
    method: int
    seed: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A replay that failed: an error of the sampler, or a proposal outside the pool.

    Attributes:
        job: the replay.
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
        pools, methods, settings: pools, methods and settings of the comparison.
        seeds: number of seeds, from 0.
        tried: for each completed job, the tried candidates in order, as indices into `Pool.seconds`.
        failures: all other jobs.
        resumed: number of replays taken from the journal.
        seconds: durations of replays, where known; the only nondeterministic field.
        changes: methods whose code changed since the journal, see `ReplayJournal.changes`.
    """

    pools: tuple[Pool, ...]
    methods: tuple[Method, ...]
    seeds: int
    settings: ArenaSettings
    tried: dict[Job, tuple[int, ...]]
    failures: tuple[Failure, ...] = ()
    resumed: int = 0
    seconds: dict[Job, float] = field(default_factory=dict, compare=False)
    changes: tuple[str, ...] = field(default=(), compare=False)

    def budget(self, pool: int) -> int:
        """Trials of a search on the pool."""
        return min(self.settings.trials, len(self.pools[pool]))

    def curves(self, pool: int, method: int) -> Float64Array:
        """Best seconds after each trial, [completed seeds, budget]: inf before the first success, padded with the last value."""
        length = self.budget(pool)
        out = np.full((self.seeds, length), np.inf)
        done = [seed for seed in range(self.seeds) if Job(pool, method, seed) in self.tried]
        for seed in done:
            seconds = self.pools[pool].seconds[list(self.tried[Job(pool, method, seed)])]
            if len(seconds):
                out[seed, : len(seconds)] = seconds
        return np.minimum.accumulate(out[done], axis=1)


def replay(pool: Pool, sampler: Sampler, trials: int, batch: int = 32) -> list[int]:
    """Run one search on a pool and return the tried candidates in order, as indices into `pool.seconds`.

    It ends after `trials` candidates, when the pool is exhausted, or when the sampler proposes nothing.

    Args:
        pool: source of the times.
        sampler: created for `pool.task`; consumed by the search.
        trials: maximum number of candidates.
        batch: candidates per sampler call.
    Raises:
        UserError: the sampler proposed a candidate outside the pool, more candidates than requested, or one candidate twice.
    """
    tried: list[int] = []
    seen: set[Candidate] = set()
    trials = min(trials, len(pool))
    while len(tried) < trials:
        count = min(batch, trials - len(tried))
        candidates = proposed(type(sampler).__name__, sampler.ask(count), count)
        if not candidates:
            break
        results = pool.look_up(candidates)
        check_new(type(sampler).__name__, candidates, count, seen)
        tried += [pool.index(c) for c in candidates]
        sampler.tell(results)
    return tried


def make_replayer(pools: Sequence[Pool], methods: Sequence[Method], settings: ArenaSettings) -> Callable[[tuple[int, int, int]], list[int]]:
    """Create the function of a worker: the replay of a job.  Tasks of pools and compiled features are cached per worker."""

    def run(job: tuple[int, int, int]) -> list[int]:
        at, method, seed = job
        pool = pools[at]
        return replay(pool, methods[method].make(pool.task, seed), settings.trials, settings.batch)

    return run


def run_arena(
    pools: Sequence[Pool],
    methods: Sequence[Method],
    seeds: int,
    settings: ArenaSettings | None = None,
    *,
    workers: int = 1,
    journal: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArenaRun:
    """Replay every method on every pool with every seed.

    Args:
        pools: tabular benchmarks, see `pool_file.load_pools`.
        methods: see `methods.line_up`.
        seeds: number of seeds, from 0.
        settings: budget and batch.
        workers: number of processes; 0 runs in this process.  The results do not depend on it.
        journal: file of completed replays: they are not repeated, and new ones are appended.
        progress: called with the number of finished replays and the total.
    Raises:
        UserError: an argument is invalid.  An error within a replay is a `Failure` and stops no other.
        RecordError: the journal cannot be written.
    """
    settings = settings or ArenaSettings()
    _check(pools, methods, seeds, workers)
    jobs = [Job(p, e, s) for p in range(len(pools)) for s in range(seeds) for e in range(len(methods))]
    recorded = ReplayJournal(journal, pools, methods, settings.trials, settings.batch)
    known = {job: found for job in jobs if (found := recorded.find(*job)) is not None}
    changes = tuple(recorded.changes())
    todo = [job for job in jobs if job not in known]
    progress(len(known), len(jobs))
    done, failures = dict(known), list[Failure]()
    durations = {job: seconds for job in known if (seconds := recorded.seconds(*job)) is not None}
    for job, result, seconds in _results(pools, methods, settings, todo, workers):
        if isinstance(result, Failure):
            failures.append(result)
        else:
            done[job] = result
            durations[job] = seconds
            recorded.add(*job, result, seconds)
        progress(len(done) + len(failures), len(jobs))
    # In the order of the jobs, independent of the order of completion.
    ordered = {job: done[job] for job in jobs if job in done}
    failed = tuple(sorted(failures, key=lambda f: f.job))
    return ArenaRun(tuple(pools), tuple(methods), seeds, settings, ordered, failed, len(known), durations, changes)


def _check(pools: Sequence[Pool], methods: Sequence[Method], seeds: int, workers: int) -> None:
    if not pools or not methods:
        raise UserError(f"an arena needs a pool and a method; got {len(pools)} pools and {len(methods)} methods")
    if seeds < 1 or workers < 0:
        raise UserError(f"an arena needs at least 1 seed and no negative number of workers; got seeds={seeds}, workers={workers}")


def _results(
    pools: Sequence[Pool], methods: Sequence[Method], settings: ArenaSettings, jobs: Sequence[Job], workers: int
) -> Iterator[tuple[Job, tuple[int, ...] | Failure, float]]:
    """Results of the jobs as they finish: tried candidates or a failure, and seconds."""
    if not jobs:
        return
    if workers == 0:
        run = make_replayer(pools, methods, settings)
        for job in jobs:
            start = time.perf_counter()
            found: tuple[int, ...] | Failure
            try:
                found = tuple(run(job))
            except (Exception, SystemExit) as error:  # a user's sampler may raise anything or exit
                found = Failure(job, f"{type(error).__name__}: {error}".splitlines()[0], traceback.format_exc())
            yield job, found, time.perf_counter() - start
        return
    factory = "tunesmith.experiments.arena.replay:make_replayer"
    with WorkerPool(factory, min(workers, len(jobs)), (list(pools), list(methods), settings), env=_ONE_THREAD) as worker_pool:
        tickets = {worker_pool.submit(tuple(job)): job for job in jobs}
        for result in worker_pool.results():
            job = tickets[result.ticket]
            if result.error is None:
                yield job, tuple(cast(list[int], result.value)), result.seconds
            else:
                yield job, Failure(job, result.message, result.detail), result.seconds
