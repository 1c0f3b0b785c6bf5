"""Compute the numbers of a report from a run folder, as one plain JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tunesmith.experiments.arena.statistics import trials_to
from tunesmith.experiments.study.results import Arm, CellResult, RunIndex
from tunesmith.experiments.study.statistics import Interval, adjusted, interval, paired_ratio
from tunesmith.search.tuner import PHASES
from tunesmith.support.array_types import Float64Array

SHARES = (90, 95, 99)
"""Percentages of the best known speed for which trials are counted."""
POINTS = 160
"""Maximum number of points of a curve."""

Json = dict[str, object]


def summarise(run: RunIndex) -> Json:
    """All numbers of a report, except the environment.

    Only finished cells are compared.  The best known time of a workload is the lowest final time of any cell of the run; speeds are
    relative to it.
    """
    known = best_known([run])
    return {
        "name": run.name,
        "question": run.question,
        "settings": dict(run.settings),
        "variants": {name: x for name, x in run.variants.items() if any(a.variant == name for a in run.arms)},
        "cells": {state: sum(r.state == state for r in run.results) for state in ("done", "interrupted", "failed", "waiting")},
        "arms": [a.name for a in run.arms],
        **noise(run.results),
        "workloads": [_workload(run, w, known) for w in run.workloads],
        "results": [_result(run, w, a, known) for w in run.workloads for a in run.arms],
        "overall": _overall(run, known),
        "against_first": _against_first(run, known),
        "time": [_time(run, a) for a in run.arms],
        "failures": [
            {"workload": r.cell.workload, "arm": r.cell.arm.name, "seed": r.cell.seed, "failure": r.failure} for r in _failed(run)
        ],
    }


def noise(results: Sequence[CellResult]) -> dict[str, int]:
    """Number of measurements with a time, and of those that no other process disturbed: `measured` and `clean`."""
    measured = sum(r.measured for r in results)
    return {"measured": measured, "clean": measured - sum(r.noisy for r in results)}


def best_known(runs: Sequence[RunIndex]) -> Mapping[str, float]:
    """Lowest final seconds of the finished cells of the runs, by workload."""
    out: dict[str, float] = {}
    for run in runs:
        for r in run.results:
            if r.state == "done" and r.best_s is not None:
                out[r.cell.workload] = min(out.get(r.cell.workload, math.inf), r.best_s)
    return out


def curves(results: Sequence[CellResult], trials: int = 0) -> Float64Array:
    """Best seconds after each trial, [seeds, trials]; infinity before the first success.

    A search that ended early, because it ran out of candidates, keeps its last value.
    """
    trials = max([trials, *[len(r.curve) for r in results]], default=0)
    out = np.full((len(results), trials), np.inf)
    for line, r in zip(out, results, strict=True):
        values = [np.inf if x is None else x for x in r.curve]
        line[: len(values)] = values
        line[len(values) :] = values[-1] if values else np.inf
    return out


def reached(results: Sequence[CellResult], seconds: float) -> Json:
    """Trials to reach a time: the median over seeds (None if half of them do not), and the number of seeds that do."""
    counts = trials_to(curves(results), seconds)
    median = float(np.median(counts)) if len(counts) else math.inf
    return {"median": median if math.isfinite(median) else None, "reached": int(np.isfinite(counts).sum()), "of": len(counts)}


def _workload(run: RunIndex, workload: str, known: Mapping[str, float]) -> Json:
    flops = max((r.flops for r in run.results if r.cell.workload == workload), default=0)
    spaces = [
        {"imperfect_tiles": s.imperfect_tiles, "sketches": s.sketches, "rows": s.rows, "admissible": s.admissible, "failure": s.failure}
        for s in run.spaces
        if s.workload == workload
    ]
    return {"name": workload, "flops": flops, "best_known_us": _us(known.get(workload)), "spaces": spaces}


def _result(run: RunIndex, workload: str, arm: Arm, known: Mapping[str, float]) -> Json:
    done = run.of(workload, arm)
    every = [r for r in run.results if r.cell.workload == workload and r.cell.arm == arm]
    out: Json = {
        "workload": workload,
        "arm": arm.name,
        "seeds": [r.cell.seed for r in done],
        "wanted": len(every),
        "errors": _errors(every),
        "trials": sum(r.trials for r in every),
        **noise(every),
    }
    if not done:
        return out | {"best_us": None, "each_us": [], "gflops": None, "percent": None, "trials_to": {}, "sketches": [], "curve": None}
    best = final_times(run, workload, arm)
    mean, flops = interval(best), done[0].flops
    return out | {
        "best_us": mean.scaled(1e6).to_json(),
        "each_us": [x * 1e6 for x in best],
        "gflops": mean.inverse(flops / 1e9).to_json() if flops else None,
        "percent": mean.inverse(100 * known[workload]).at_most(100.0).to_json(),
        "trials_to": {str(share): reached(done, known[workload] * 100 / share) for share in SHARES},
        "sketches": [r.sketch for r in done],
        "curve": _curve(curves(done) / known[workload]),
    }


def _curve(relative: Float64Array) -> Json:
    """Percent of the best known speed over trials: the mean over seeds, from the first trial at which all have a program, with interval."""
    inside = np.atleast_1d(np.isfinite(relative).all(axis=0))
    picks = thinned(relative.shape[1])
    picks = [t for t in picks if inside[t - 1]]
    found = [interval(relative[:, t - 1].tolist()).inverse(100).at_most(100.0) for t in picks]
    return {"trials": picks, "percent": [_rounded(i.mean) for i in found], "low": _bounds(found, "low"), "high": _bounds(found, "high")}


def thinned(trials: int, points: int = POINTS) -> list[int]:
    """Trials from 1 to the last, thinned for drawing: evenly spaced on a logarithmic scale, which keeps all at the beginning."""
    if trials <= points:
        return list(range(1, trials + 1))
    return sorted({round(x) for x in np.geomspace(1, trials, points)})


def _overall(run: RunIndex, known: Mapping[str, float]) -> list[Json]:
    """Mean speed of each arm over workloads, relative to the best known; only seeds that finished all workloads count."""
    out: list[Json] = []
    trials = max((len(r.curve) for r in run.results), default=0)
    for arm in run.arms:
        by_seed = _complete(run, arm, run.workloads)
        lines = [
            np.exp(np.log(np.concatenate([curves([r], trials) / known[r.cell.workload] for r in rs])).mean(axis=0))
            for rs in by_seed.values()
        ]
        times = mean_times(run, arm, run.workloads, known)
        percent = interval(times).inverse(100).at_most(100.0).to_json() if times else None
        every = [r for r in run.results if r.cell.arm == arm]
        curve = _curve(np.array(lines)) if lines else None
        out.append({"arm": arm.name, "seeds": list(by_seed), **noise(every), "percent": percent, "curve": curve})
    return out


def mean_times(run: RunIndex, arm: Arm, workloads: Sequence[str], known: Mapping[str, float]) -> list[float]:
    """For each seed that finished these workloads, the geometric mean of its times relative to the best known."""
    return list(_means_by_seed(run, arm, workloads, known).values())


def _means_by_seed(run: RunIndex, arm: Arm, workloads: Sequence[str], known: Mapping[str, float]) -> dict[int, float]:
    out: dict[int, float] = {}
    for seed, results in _complete(run, arm, workloads).items():
        times = [r.best_s / known[r.cell.workload] for r in results if r.best_s is not None]
        out[seed] = math.exp(math.fsum(map(math.log, times)) / len(times))
    return out


def _complete(run: RunIndex, arm: Arm, workloads: Sequence[str]) -> dict[int, list[CellResult]]:
    """Results of the seeds that finished all these workloads."""
    by_seed: dict[int, list[CellResult]] = {}
    for workload in workloads:
        for r in run.of(workload, arm):
            by_seed.setdefault(r.cell.seed, []).append(r)
    return {seed: rs for seed, rs in by_seed.items() if len(rs) == len(workloads)}


def _against_first(run: RunIndex, known: Mapping[str, float]) -> list[Json]:
    """Times of every arm over those of the first, by seed: for each workload, and if there are several, for all together with an empty
    `workload`."""
    if not run.arms:
        return []
    first, *others = run.arms
    pairs: list[tuple[str, Arm, dict[int, float], dict[int, float]]] = []
    for arm in others:
        pairs += [(w, arm, _by_seed(run, w, arm), _by_seed(run, w, first)) for w in run.workloads]
        if len(run.workloads) > 1:
            pairs.append(("", arm, _means_by_seed(run, arm, run.workloads, known), _means_by_seed(run, first, run.workloads, known)))
    compared = [
        (w, a, found, len(times.keys() & base.keys())) for w, a, times, base in pairs if (found := paired_ratio(times, base)) is not None
    ]
    ratios = adjusted([found for _, _, found, _ in compared])
    return [{"workload": w, "arm": a.name, "seeds": n, **r.to_json()} for (w, a, _, n), r in zip(compared, ratios, strict=True)]


def final_times(run: RunIndex, workload: str, arm: Arm) -> list[float]:
    """Final seconds of the finished searches, one per seed."""
    return list(_by_seed(run, workload, arm).values())


def _by_seed(run: RunIndex, workload: str, arm: Arm) -> dict[int, float]:
    return {r.cell.seed: r.best_s for r in run.of(workload, arm) if r.best_s is not None}


def _time(run: RunIndex, arm: Arm) -> Json:
    """Seconds of an arm by phase over all its cells, with the number of timed trials."""
    results = [r for r in run.results if r.cell.arm == arm]
    seconds = {name: _rounded(math.fsum(r.seconds[name] for r in results)) for name in ("total", *PHASES)}
    return {
        "arm": arm.name,
        "seconds": seconds,
        "trials": sum(r.timed_trials for r in results),
        "drafted": sum(r.drafted for r in results),
        "scored": sum(r.scored for r in results),
    }


def _errors(results: Sequence[CellResult]) -> dict[str, int]:
    out: dict[str, int] = {}
    for r in results:
        for kind, n in r.errors.items():
            out[kind] = out.get(kind, 0) + n
    return dict(sorted(out.items()))


def _failed(run: RunIndex) -> list[CellResult]:
    return [r for r in run.results if r.failure]


def _bounds(found: Sequence[Interval], side: str) -> list[float | None]:
    return [None if (x := getattr(i, side)) is None else _rounded(x) for i in found]


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _rounded(x: float) -> float:
    """Round to six digits, to limit the size of the page."""
    return float(f"{x:.6g}")
