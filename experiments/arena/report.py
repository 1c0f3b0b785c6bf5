"""What an arena found, as data: trials to a goal on each pool, curves with intervals, and a ranking over pools with its significance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunesmith.experiments.arena.pool import Pool
from tunesmith.experiments.arena.replay import ArenaRun
from tunesmith.experiments.arena.statistics import (
    RESAMPLES,
    Interval,
    ahead,
    bootstrap_medians,
    chance_trials,
    holm,
    mean_interval,
    mean_ranks,
    median_interval,
    pseudomedian,
    signed_rank,
    trials_to,
)
from tunesmith.search.samplers.proposals import asked_once

Floats = npt.NDArray[np.float64]

SHARES = (0.90, 0.95, 0.99)
"""Goals: shares of the throughput of the pool's best candidate."""
FEW_SEEDS = 10
"""With fewer seeds, intervals and tests say little; rankings settle with about twice as many."""
POOLS_TO_GENERALISE = 6
"""From so many pools on the tests are over pools, and can reach 5 %; below, over single replays, and say nothing about other pools."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How soon an entrant found candidates that are good enough.

    Attributes:
        share: of the throughput of the pool's best.
        trials: median over seeds, with its interval; infinite: not reached.
        reached: share of the seeds that got there.
        chance: trials that an order by chance needs, as a median, exactly.
        candidates: of the pool, those that are good enough.
    """

    share: float
    trials: Interval
    reached: float
    chance: int
    candidates: int

    @property
    def of_chance(self) -> float:
        """Trials as a share of what chance needs."""
        return self.trials.value / self.chance


@dataclass(frozen=True, slots=True)
class Standing:
    """One entrant on one pool.

    Attributes:
        pool, entrant: positions in the run.
        runs: seeds that ended well.
        goals: for each of `SHARES`.
        slowdown: best seconds at the end over the pool's best: median and interval.
        trials: points of the curve.
        curve: best seconds there, median and interval, three arrays.
    """

    pool: int
    entrant: int
    runs: int
    goals: tuple[Goal, ...]
    slowdown: Interval
    trials: npt.NDArray[np.int64]
    curve: tuple[Floats, Floats, Floats]


@dataclass(frozen=True, slots=True)
class Rank:
    """One entrant over all pools.

    Attributes:
        entrant: position in the run.
        rank: mean rank over the blocks.
        slowdown: geometric mean, over pools, seeds and trials, of the best so far over the pool's best: how much is lost to the search if
            it may be stopped at any trial.
        p: that it is no worse than the first of the ranking; adjusted for all pairs, 1 for the first itself and where the test points
            the other way, which `ArenaSummary.notes` says then.
    """

    entrant: int
    rank: float
    slowdown: Interval
    p: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two entrants.  Ratio, direction and p come from one statistic, the signed ranks of the paired differences.

    Attributes:
        first, second: positions in the run.
        ratio: of their slowdowns, first by second, of a typical pair: the pseudomedian, with its interval.
        p, adjusted: of the signed-rank test, and that adjusted for all pairs (Holm).
        ahead: -1 where the ranks say that the first loses less, 1 the second, 0 neither.
    """

    first: int
    second: int
    ratio: Interval
    p: float
    adjusted: float
    ahead: int

    def better(self, level: float) -> int | None:
        """The entrant that loses less, None where the adjusted p does not show it, or ties leave no typical difference."""
        if self.adjusted > 1.0 - level or not self.ahead or (self.ratio.value - 1.0) * self.ahead <= 0.0:
            return None
        return self.first if self.ahead < 0 else self.second


@dataclass(frozen=True, slots=True)
class ArenaSummary:
    """The comparison.

    Attributes:
        run: the replays.
        standings: pool by pool, entrant by entrant; who never ended well on a pool is missing.
        ranking: best first; only entrants whose replays all ended well.
        pairs: of them.
        unit: what a block of the tests is: "pool" or "replay".
        level: of confidence.
    """

    run: ArenaRun
    standings: tuple[Standing, ...]
    ranking: tuple[Rank, ...]
    pairs: tuple[Pair, ...]
    unit: str
    level: float

    @property
    def notes(self) -> list[str]:
        """What bears on believing the numbers."""
        run, out = self.run, list[str]()
        if run.seeds < FEW_SEEDS:
            out.append(f"few seeds ({run.seeds}): intervals and tests say little below {FEW_SEEDS}, and rankings settle with about 20")
        if run.settings.batch >= run.settings.trials:
            out.append(asked_once(run.settings.batch, run.settings.trials))
        first, labels = (self.ranking[0].entrant, self.labels) if self.ranking else (-1, [])
        for pair in self.pairs:
            better = pair.better(self.level)
            if better is not None and better != first and first in (pair.first, pair.second):
                out.append(
                    f"{labels[first]} has the lowest mean slowdown, and {labels[better]} is better in the typical {self.unit} "
                    f"(p {pair.adjusted:.3g}): a few large losses decide the mean, and the verdict of the pair goes by the ranks"
                )
        return out

    def seconds_of(self, entrant: int) -> float | None:
        """Median seconds of a replay of an entrant; None where no replay's are known."""
        mine = [s for job, s in self.run.took.items() if job.entrant == entrant]
        return float(np.median(mine)) if mine else None

    @property
    def labels(self) -> list[str]:
        """Names of the entrants; two that differ in folders only have their whole text."""
        short = [e.label for e in self.run.entrants]
        return [n if short.count(n) == 1 else f"{e.sampler} + {e.model}" for n, e in zip(short, self.run.entrants, strict=True)]

    def to_json(self) -> dict[str, object]:
        """Everything as plain data; times in microseconds, None for what was not reached."""
        run = self.run
        labels = self.labels
        return {
            "notes": self.notes,
            "settings": {"trials": run.settings.trials, "batch": run.settings.batch, "seeds": run.seeds, "level": self.level},
            "pools": [_pool_json(p, run.budget(i)) for i, p in enumerate(run.pools)],
            "entrants": [{"label": n, "sampler": e.sampler, "model": e.model or None} for n, e in zip(labels, run.entrants, strict=True)],
            "standings": [_standing_json(s, run.pools, labels) for s in self.standings],
            "unit": self.unit,
            "ranking": [
                {"entrant": labels[r.entrant], "rank": r.rank, "slowdown": r.slowdown.to_json(), "p_vs_first": r.p} for r in self.ranking
            ],
            "pairs": [
                {
                    "first": labels[p.first],
                    "second": labels[p.second],
                    "ratio": p.ratio.to_json(),
                    "p": p.p,
                    "p_holm": p.adjusted,
                    "better": None if (better := p.better(self.level)) is None else labels[better],
                }
                for p in self.pairs
            ],
            "failures": [
                {"pool": run.pools[f.job.pool].name, "entrant": labels[f.job.entrant], "seed": f.job.seed, "message": f.message}
                for f in run.failures
            ],
        }


def summarise(run: ArenaRun, level: float = 0.95, resamples: int = RESAMPLES) -> ArenaSummary:
    """The comparison of a run's entrants.  Equal runs give equal numbers.

    Args:
        run: see `arena.run_arena`.
        level: of confidence.
        resamples: of the bootstrap.
    """
    standings = []
    for p in range(len(run.pools)):
        for e in range(len(run.entrants)):
            curves = run.curves(p, e)
            if len(curves):
                standings.append(_standing(run.pools[p], p, e, curves, level, resamples))
    complete = [e for e in range(len(run.entrants)) if all(len(run.curves(p, e)) == run.seeds for p in range(len(run.pools)))]
    scores = {e: [losses(run.pools[p], run.curves(p, e)) for p in range(len(run.pools))] for e in complete}
    unit = "pool" if len(run.pools) >= POOLS_TO_GENERALISE else "replay"
    blocks = {e: np.array([g.mean() for g in s]) if unit == "pool" else np.concatenate(s) for e, s in scores.items()}
    pairs = _pairs(complete, blocks, level)
    return ArenaSummary(run, tuple(standings), _ranking(complete, scores, blocks, pairs, level, resamples), pairs, unit, level)


def losses(pool: Pool, curves: Floats) -> Floats:
    """For each curve the mean over its trials of log(best so far / best of the pool), [runs]; before the first success, the slowest of the
    pool stands for the best so far."""
    slowest = pool.seconds[np.isfinite(pool.seconds)].max()
    return np.asarray(np.log(np.minimum(curves, slowest) / pool.best).mean(axis=1))


def _standing(pool: Pool, p: int, e: int, curves: Floats, level: float, resamples: int) -> Standing:
    goals = []
    for share in SHARES:
        goal = pool.best / share
        trials = trials_to(curves, goal)
        good = int((pool.seconds <= goal).sum())
        found = median_interval(trials, level, resamples=resamples)
        goals.append(Goal(share, found, float(np.isfinite(trials).mean()), chance_trials(len(pool), good), good))
    points = np.unique(np.rint(np.geomspace(1, curves.shape[1], 64)).astype(np.int64))
    curve = bootstrap_medians(curves[:, points - 1], level, resamples=resamples)
    end = median_interval(curves[:, -1] / pool.best, level, resamples=resamples)
    return Standing(p, e, len(curves), tuple(goals), end, points, curve)


def _pairs(entrants: Sequence[int], blocks: Mapping[int, Floats], level: float) -> tuple[Pair, ...]:
    found = []
    for i, a in enumerate(entrants):
        for b in entrants[i + 1 :]:
            apart = blocks[a] - blocks[b]
            found.append((a, b, _exp(pseudomedian(apart, level)), signed_rank(apart), ahead(apart)))
    adjusted = holm([p for *_, p, _ in found])
    return tuple(Pair(a, b, ratio, p, q, side) for (a, b, ratio, p, side), q in zip(found, adjusted, strict=True))


def _ranking(
    entrants: Sequence[int],
    scores: Mapping[int, Sequence[Floats]],
    blocks: Mapping[int, Floats],
    pairs: Sequence[Pair],
    level: float,
    resamples: int,
) -> tuple[Rank, ...]:
    if not entrants:
        return ()
    ranks = dict(zip(entrants, mean_ranks(np.stack([blocks[e] for e in entrants], axis=1)).tolist(), strict=True))
    slowdowns = {e: _exp(mean_interval(scores[e], level, resamples=resamples)) for e in entrants}
    order = sorted(entrants, key=lambda e: (slowdowns[e].value, e))
    against_first = {}
    for p in pairs:
        if order[0] in (p.first, p.second):
            other, side = (p.second, -1) if p.first == order[0] else (p.first, 1)
            against_first[other] = p.adjusted if p.ahead in (side, 0) else 1.0
    return tuple(Rank(e, ranks[e], slowdowns[e], against_first.get(e, 1.0)) for e in order)


def _exp(x: Interval) -> Interval:
    return Interval(math.exp(x.value), math.exp(x.low), math.exp(x.high))


def _pool_json(pool: Pool, budget: int) -> dict[str, object]:
    return {
        "name": pool.name,
        "digest": pool.digest,
        "workload": pool.workload,
        "sketches": len(pool.sketches),
        "candidates": len(pool),
        "failed": int(np.isinf(pool.seconds).sum()),
        "best_us": pool.best * 1e6,
        "budget": budget,
    }


def _standing_json(s: Standing, pools: Sequence[Pool], labels: Sequence[str]) -> dict[str, object]:
    names = ("median", "low", "high")
    return {
        "pool": pools[s.pool].name,
        "entrant": labels[s.entrant],
        "runs": s.runs,
        "slowdown": s.slowdown.to_json(),
        "goals": [
            {
                "share": g.share,
                "trials": g.trials.to_json(),
                "reached": g.reached,
                "chance_trials": g.chance,
                "candidates": g.candidates,
                "of_chance": g.of_chance if math.isfinite(g.of_chance) else None,
            }
            for g in s.goals
        ],
        "curve": {
            "trials": s.trials.tolist(),
            **{f"{n}_us": [x * 1e6 if math.isfinite(x) else None for x in c.tolist()] for n, c in zip(names, s.curve, strict=True)},
        },
    }
