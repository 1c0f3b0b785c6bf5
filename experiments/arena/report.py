"""Summarise an arena as data: trials to a goal per pool, curves with intervals, and a ranking over pools with significance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.display.noise import LEAST_CLEAN, RETAKE, noise_remark
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
from tunesmith.support.array_types import Float64Array, Int64Array

SHARES = (0.90, 0.95, 0.99)
"""Goals, as fractions of the throughput of the pool's best candidate."""
FEW_SEEDS = 10
"""With fewer seeds, intervals and tests are weak; rankings become stable with about twice as many."""
POOLS_TO_GENERALISE = 6
"""With at least this many pools the tests are over pools and can reach 5 %; otherwise over replays, valid for these pools only."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Trials until a method found sufficiently good candidates.

    Attributes:
        share: fraction of the throughput of the pool's best.
        trials: median over seeds, with its interval; infinite if not reached.
        reached: fraction of seeds that reached the goal.
        chance: exact median trials of a random order.
        candidates: candidates of the pool that reach the goal.
    """

    share: float
    trials: Interval
    reached: float
    chance: int
    candidates: int

    @property
    def of_chance(self) -> float:
        """Trials as a fraction of those of a random order."""
        return self.trials.value / self.chance


@dataclass(frozen=True, slots=True)
class Standing:
    """Results of one method on one pool.

    Attributes:
        pool, method: indices in the run.
        runs: completed seeds.
        goals: a goal for each of `SHARES`.
        slowdown: best seconds at the end over the pool's best: median and interval.
        trials: points of the curve.
        curve: best seconds at these points: median and interval, three arrays.
    """

    pool: int
    method: int
    runs: int
    goals: tuple[Goal, ...]
    slowdown: Interval
    trials: Int64Array
    curve: tuple[Float64Array, Float64Array, Float64Array]


@dataclass(frozen=True, slots=True)
class Rank:
    """Results of one method over all pools.

    Attributes:
        method: index in the run.
        rank: mean rank over the blocks.
        slowdown: geometric mean, over pools, seeds and trials, of the best so far over the pool's best: the expected loss of a search that
            may be stopped at any trial.
        p: p-value that the method is no worse than the first of the ranking, adjusted for all pairs; 1 for the first itself and if the
            test points the other way, which `ArenaSummary.notes` then reports.
    """

    method: int
    rank: float
    slowdown: Interval
    p: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Comparison of two methods.  Ratio, direction and p-value come from one statistic, the signed ranks of the paired differences.

    Attributes:
        first, second: indices in the run.
        ratio: ratio of their slowdowns, first over second, of a typical pair: the pseudomedian, with its interval.
        simultaneous: the same with an interval adjusted for all pairs: of the level 1 - (1 - level) / pairs (Bonferroni).
        p, adjusted: p-value of the signed-rank test, and its adjustment for all pairs (Holm).  Without ties, `simultaneous` excludes 1
            exactly if p is at most (1 - level) / pairs; `adjusted` is then significant too, while Holm's method may reject more.
        ahead: -1 if by the ranks the first loses less, 1 if the second does, 0 if neither.
    """

    first: int
    second: int
    ratio: Interval
    simultaneous: Interval
    p: float
    adjusted: float
    ahead: int

    @property
    def too_few(self) -> bool:
        """Whether there are too few replays (or pools) for the adjusted interval: then it is infinite on both sides."""
        return math.isinf(self.simultaneous.high)

    def better(self, level: float) -> int | None:
        """The method that loses less; None if the adjusted p-value is not significant, or ties leave no typical difference."""
        if self.adjusted > 1.0 - level or not self.ahead or (self.ratio.value - 1.0) * self.ahead <= 0.0:
            return None
        return self.first if self.ahead < 0 else self.second


@dataclass(frozen=True, slots=True)
class ArenaSummary:
    """Comparison of the methods of a run.

    Attributes:
        run: the replays.
        standings: by pool and method; a method without a completed replay on a pool is missing.
        ranking: best first; only methods whose replays all completed.
        pairs: pairs of these methods.
        unit: block of the tests: "pool" or "replay".
        level: confidence level.
    """

    run: ArenaRun
    standings: tuple[Standing, ...]
    ranking: tuple[Rank, ...]
    pairs: tuple[Pair, ...]
    unit: str
    level: float

    @property
    def notes(self) -> list[str]:
        """Caveats about the numbers."""
        run, out = self.run, [*self.run.changes]
        for pool in run.pools:
            if pool.clean < LEAST_CLEAN * pool.measured:
                out.append(f"{pool.name}: {noise_remark(pool.clean, pool.measured, RETAKE)}")
        if run.seeds < FEW_SEEDS:
            out.append(f"few seeds ({run.seeds}): intervals and tests are weak below {FEW_SEEDS}, and rankings become stable with about 20")
        if run.settings.batch >= run.settings.trials:
            out.append(asked_once(run.settings.batch, run.settings.trials))
        if any(pair.too_few for pair in self.pairs):
            blocks = len(run.pools) if self.unit == "pool" else run.seeds * len(run.pools)
            intervals = "an interval" if len(self.pairs) == 1 else "the adjusted intervals"
            out.append(
                f"{blocks} {self.unit}s of each method are too few for {intervals} of a pair at {self.level:.0%}: a difference could not "
                "be shown. More seeds or pools are needed"
            )
        first, labels = (self.ranking[0].method, self.labels) if self.ranking else (-1, [])
        for pair in self.pairs:
            better = pair.better(self.level)
            if better is not None and better != first and first in (pair.first, pair.second):
                out.append(
                    f"{labels[first]} has the lowest mean slowdown, but {labels[better]} is better in the typical {self.unit} "
                    f"(p {pair.adjusted:.3g}): a few large losses dominate the mean, and the verdict of the pair uses the ranks"
                )
        return out

    def seconds_of(self, method: int) -> float | None:
        """Median seconds of a replay of a method; None if unknown."""
        known = [s for job, s in self.run.seconds.items() if job.method == method]
        return float(np.median(known)) if known else None

    @property
    def labels(self) -> list[str]:
        """Names of the methods; methods that differ only in folders have their full text."""
        short = [e.label for e in self.run.methods]
        return [n if short.count(n) == 1 else f"{e.sampler} + {e.model}" for n, e in zip(short, self.run.methods, strict=True)]

    def to_json(self) -> dict[str, object]:
        """Everything as plain data; times in microseconds, None for goals not reached."""
        run = self.run
        labels = self.labels
        return {
            "notes": self.notes,
            "settings": {"trials": run.settings.trials, "batch": run.settings.batch, "seeds": run.seeds, "level": self.level},
            "pools": [_pool_json(p, run.budget(i)) for i, p in enumerate(run.pools)],
            "entrants": [{"label": n, "sampler": e.sampler, "model": e.model or None} for n, e in zip(labels, run.methods, strict=True)],
            "standings": [_standing_json(s, run.pools, labels) for s in self.standings],
            "unit": self.unit,
            "ranking": [
                {"entrant": labels[r.method], "rank": r.rank, "slowdown": r.slowdown.to_json(), "p_vs_first": r.p} for r in self.ranking
            ],
            "pairs": [
                {
                    "first": labels[p.first],
                    "second": labels[p.second],
                    "ratio": p.ratio.to_json(),
                    "ratio_adjusted": p.simultaneous.to_json(),
                    "p": p.p,
                    "p_holm": p.adjusted,
                    "better": None if (better := p.better(self.level)) is None else labels[better],
                }
                for p in self.pairs
            ],
            "failures": [
                {"pool": run.pools[f.job.pool].name, "entrant": labels[f.job.method], "seed": f.job.seed, "message": f.message}
                for f in run.failures
            ],
        }


def summarise(run: ArenaRun, level: float = 0.95, resamples: int = RESAMPLES) -> ArenaSummary:
    """Compare the methods of a run.  Equal runs give equal numbers.

    Args:
        run: see `replay.run_arena`.
        level: confidence level.
        resamples: number of bootstrap resamples.
    """
    standings = []
    for p in range(len(run.pools)):
        for e in range(len(run.methods)):
            curves = run.curves(p, e)
            if len(curves):
                standings.append(_standing(run.pools[p], p, e, curves, level, resamples))
    complete = [e for e in range(len(run.methods)) if all(len(run.curves(p, e)) == run.seeds for p in range(len(run.pools)))]
    scores = {e: [losses(run.pools[p], run.curves(p, e)) for p in range(len(run.pools))] for e in complete}
    unit = "pool" if len(run.pools) >= POOLS_TO_GENERALISE else "replay"
    blocks = {e: np.array([g.mean() for g in s]) if unit == "pool" else np.concatenate(s) for e, s in scores.items()}
    pairs = _pairs(complete, blocks, level)
    return ArenaSummary(run, tuple(standings), _ranking(complete, scores, blocks, pairs, level, resamples), pairs, unit, level)


def losses(pool: Pool, curves: Float64Array) -> Float64Array:
    """Mean over the trials of each curve of log(best so far / best of the pool), [runs]; before the first success the best so far is the
    slowest time of the pool."""
    slowest = pool.seconds[np.isfinite(pool.seconds)].max()
    return np.asarray(np.log(np.minimum(curves, slowest) / pool.best).mean(axis=1))


def _standing(pool: Pool, p: int, e: int, curves: Float64Array, level: float, resamples: int) -> Standing:
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


def _pairs(methods: Sequence[int], blocks: Mapping[int, Float64Array], level: float) -> tuple[Pair, ...]:
    apart = {(a, b): blocks[a] - blocks[b] for i, a in enumerate(methods) for b in methods[i + 1 :]}
    ps = [signed_rank(d) for d in apart.values()]
    shared = 1.0 - (1.0 - level) / max(len(apart), 1)
    return tuple(
        Pair(a, b, _exp(pseudomedian(d, level)), _exp(pseudomedian(d, shared)), p, adjusted, ahead(d))
        for ((a, b), d), p, adjusted in zip(apart.items(), ps, holm(ps), strict=True)
    )


def _ranking(
    methods: Sequence[int],
    scores: Mapping[int, Sequence[Float64Array]],
    blocks: Mapping[int, Float64Array],
    pairs: Sequence[Pair],
    level: float,
    resamples: int,
) -> tuple[Rank, ...]:
    if not methods:
        return ()
    ranks = dict(zip(methods, mean_ranks(np.stack([blocks[e] for e in methods], axis=1)).tolist(), strict=True))
    slowdowns = {e: _exp(mean_interval(scores[e], level, resamples=resamples)) for e in methods}
    order = sorted(methods, key=lambda e: (slowdowns[e].value, e))
    against_first = {}
    for p in pairs:
        if order[0] in (p.first, p.second):
            other, side = (p.second, -1) if p.first == order[0] else (p.first, 1)
            against_first[other] = p.adjusted if p.ahead in (side, 0) else 1.0
    return tuple(Rank(e, ranks[e], slowdowns[e], against_first.get(e, 1.0)) for e in order)


def _exp(x: Interval) -> Interval:
    low = math.exp(x.low) if math.isfinite(x.low) else x.low  # not 0, which would be a bound
    return Interval(math.exp(x.value), low, math.exp(x.high))


def _pool_json(pool: Pool, budget: int) -> dict[str, object]:
    return {
        "name": pool.name,
        "digest": pool.digest,
        "workload": pool.workload,
        "sketches": len(pool.sketches),
        "candidates": len(pool),
        "failed": int(np.isinf(pool.seconds).sum()),
        "measured": pool.measured,
        "clean": pool.clean,
        "best_us": pool.best * 1e6,
        "budget": budget,
    }


def _standing_json(s: Standing, pools: Sequence[Pool], labels: Sequence[str]) -> dict[str, object]:
    names = ("median", "low", "high")
    return {
        "pool": pools[s.pool].name,
        "entrant": labels[s.method],
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
