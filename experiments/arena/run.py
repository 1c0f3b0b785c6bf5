"""Replay samplers and models on tabular benchmarks, and report their search efficiency; no hardware is used."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from tunesmith.display.noise import clean_share
from tunesmith.display.progress import clock
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import microseconds, plain_table, plural, printable
from tunesmith.experiments.arena.methods import line_up, parse_spec
from tunesmith.experiments.arena.plots import plot_arena
from tunesmith.experiments.arena.pool import Pool
from tunesmith.experiments.arena.pool_file import load_pools
from tunesmith.experiments.arena.replay import ArenaSettings, Failure, run_arena
from tunesmith.experiments.arena.report import POOLS_TO_GENERALISE, SHARES, ArenaSummary, Goal, summarise
from tunesmith.experiments.arena.statistics import Interval
from tunesmith.support import atomic_file
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import names_a_file

JOURNAL = "replays.jsonl"
"""File of completed replays in the folder of a run."""


@dataclass(frozen=True, slots=True)
class ArenaReport(Rendered):
    """Result of an arena.

    Attributes:
        summary: all numbers.
    """

    summary: ArenaSummary

    @property
    def ok(self) -> bool:
        """Whether all replays completed."""
        return not self.summary.run.failures

    def to_json(self) -> dict[str, object]:
        """The numbers as plain data; see docs/arena.md."""
        return self.summary.to_json()

    def render(self) -> RenderableType:
        """Tables for a terminal: one per pool, the ranking, all pairs, notes, and failures."""
        run = self.summary.run
        parts: list[RenderableType] = [self._pool_table(i) for i in range(len(run.pools))]
        parts += [self._ranking_table()] if self.summary.ranking else []
        parts += [self._pairs_table()] if self.summary.pairs else []
        parts += [printable(f"! {note}", style="yellow") for note in self.summary.notes]
        for f in run.failures[:5]:
            why = "\n".join([f.message, *self._location(f)])
            parts.append(plain_table("", ["failed", "why"], [[self._replay_name(f), why]], left=["why"]))
        if len(run.failures) > 5:
            parts.append(f"... and {len(run.failures) - 5} more failures")
        return Group(*parts)

    def _replay_name(self, f: Failure) -> str:
        run = self.summary.run
        return f"{self.summary.labels[f.job.method]} on {run.pools[f.job.pool].name}, seed {f.job.seed}"

    def _location(self, f: Failure) -> list[str]:
        """The last line of the traceback that is in a file of the method; empty if there is none."""
        method = self.summary.run.methods[f.job.method]
        named = [parse_spec(spec)[0] for spec in (method.sampler, method.model) if spec]
        files = {Path(name.rpartition(":")[0]).name for name in named if names_a_file(name)}
        frames = re.findall(r'^  File "([^"]+)", line (\d+), in (.+)\n(?:    (.+))?', f.detail, re.MULTILINE)
        own = [frame for frame in frames if Path(frame[0]).name in files]
        return [f"{path}, line {line}, in {name}: {code}" for path, line, name, code in own[-1:]]

    def _pool_table(self, at: int) -> RenderableType:
        s, pool = self.summary, self.summary.run.pools[at]
        budget = s.run.budget(at)
        columns = [
            "method",
            *(f"to {share:.0%}" for share in SHARES),
            f"of chance to {SHARES[1]:.0%}",
            "median slowdown at the end",
            "seeds",
        ]
        standings = [x for x in s.standings if x.pool == at]
        rows = [
            [s.labels[x.method], *[_trials(g, budget) for g in x.goals], _share(x.goals[1]), _interval(x.slowdown), str(x.runs)]
            for x in standings
        ]
        if standings:
            rows.append(["(random order)", *[str(g.chance) for g in standings[0].goals], "100 %", "", ""])
            rows.append(["(candidates of the goal)", *[str(g.candidates) for g in standings[0].goals], "", "", ""])
        title = (
            f"{pool.name}: {len(pool)} candidates, {clean_share(pool.clean, pool.measured)} of the measurements clean, "
            f"best {microseconds(pool.best)} us, {budget} trials; "
            f"median trials to a fraction of the best throughput, {s.level:.0%} intervals"
        )
        return plain_table(title, columns, rows)

    def _ranking_table(self) -> RenderableType:
        s = self.summary
        title = f"ranking over {plural(len(s.run.pools), 'pool')} by mean slowdown along the search. {self._meaning()}"
        rows = []
        for i, r in enumerate(s.ranking):
            seconds = s.seconds_of(r.method)
            cost = "-" if seconds is None else f"{seconds:.2f}"
            rows.append([s.labels[r.method], _interval(r.slowdown), f"{r.rank:.2f}", "" if i == 0 else _p(r.p), cost])
        return plain_table(title, ["method", "mean slowdown", "mean rank", "p against the first", "s per replay"], rows)

    def _pairs_table(self) -> RenderableType:
        s = self.summary
        rows = []
        for p in s.pairs:
            better = p.better(s.level)
            unknown = "too few to tell" if p.too_few else "no difference shown"
            verdict = unknown if better is None else f"{'A' if better == p.first else 'B'} is better"
            risk = 1.0 - s.level
            ratio = _interval(p.ratio, excludes_1=p.p <= risk)
            adjusted = _bounds(p.simultaneous, excludes_1=p.p <= risk / len(s.pairs)) or "-"
            rows.append([s.labels[p.first], s.labels[p.second], ratio, adjusted, _p(p.adjusted), verdict])
        columns = ["A", "B", "typical slowdown A/B", "adjusted interval", "p (Holm)", "verdict"]
        return plain_table(
            "all pairs; the verdict uses p: ratio, p and direction come from one signed-rank test. The adjusted intervals hold for all "
            f"pairs at once (Bonferroni, {s.level:.0%})",
            columns,
            rows,
            left=["B", "verdict"],
        )

    def _meaning(self) -> str:
        """The scope of the p-values."""
        s = self.summary
        if s.unit == "pool":
            return "The p-values are over pools, and generalise to workloads like these"
        these = "this pool" if len(s.run.pools) == 1 else f"these {len(s.run.pools)} pools"
        return f"The p-values concern {these} only; {POOLS_TO_GENERALISE} or more are needed to generalise to other workloads"

    def write(self, folder: str | PathLike[str]) -> list[Path]:
        """Write `report.txt` (the terminal output), `arena.json`, `standings.csv`, `curves.csv`, `ranking.csv` and `pairs.csv`, and
        `failures.txt` with the tracebacks of failed replays.

        Raises:
            UserError: a file cannot be written.
        """
        data = self.to_json()
        tables = _tables(self.summary)
        out = Path(folder)
        texts = {"report.txt": str(self), "arena.json": json.dumps(data, indent=1)}
        failures = self.summary.run.failures
        if failures:
            texts["failures.txt"] = "\n\n".join(f"{self._replay_name(f)}: {f.message}\n{f.detail}" for f in failures)
        paths = [*(out / name for name in texts), *(out / f"{name}.csv" for name in tables)]
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                atomic_file.write_text(out / name, text + "\n")
            for path, rows in zip(paths[len(texts) :], tables.values(), strict=True):
                lines = io.StringIO(newline="")
                csv.writer(lines, lineterminator="\n").writerows(rows)
                atomic_file.write_text(path, lines.getvalue())
        except OSError as error:
            raise UserError(f"cannot write into {out}: {error.strerror or error}") from error
        return paths

    def plot(self, folder: str | PathLike[str]) -> list[Path]:
        """Plot the curves of each pool and the ranking as SVG.

        Raises:
            MissingExtraError: matplotlib is not installed.
            UserError: a file cannot be written.
        """
        return plot_arena(self.summary, Path(folder))


def arena(
    pools: Iterable[str | PathLike[str] | Pool],
    samplers: Sequence[str] = ("random", "evolutionary"),
    models: Sequence[str] = ("xgb",),
    seeds: int = 10,
    trials: int = 256,
    *,
    batch: int = 32,
    workers: int | None = None,
    workloads: Iterable[str] = (),
    folder: str | PathLike[str] | None = None,
    progress: bool = True,
) -> ArenaReport:
    """Replay samplers with models on tabular benchmarks.

    Args:
        pools: record tables (parquet), tuning logs, or pools; every workload and target of a file is a pool.
        samplers: names, or `path.py:Class`; with settings, as in `evolutionary(drafting=off,keep=256)`.
        models: likewise, cost models for the samplers that take one; `none` disables the sampler's learning.
        seeds: replays of each sampler with each model on each pool.
        trials: trials per search; limited by the size of the pool.
        batch: candidates per sampler call.
        workers: processes; by default one per core, 0 for none.  The results do not depend on it.
        workloads: workloads of the files to use, by name, workload digest or pool digest; all by default.
        folder: folder of a journal of replays, which are not repeated.
        progress: show progress on standard error.
    Raises:
        UserError: an argument is invalid, or a file contains no pool.
        RecordError: a file cannot be read.
    """
    given = list(pools)
    found = [p for p in given if isinstance(p, Pool)]
    files = [p for p in given if not isinstance(p, Pool)]
    if files or not found:
        found += load_pools(files, workloads)
    methods = line_up(samplers, models)
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    settings = ArenaSettings(trials, batch)
    journal = None if folder is None else Path(folder) / JOURNAL
    with _ReplayProgress(progress) as shown:
        run = run_arena(found, methods, seeds, settings, workers=count, journal=journal, progress=shown)
    return ArenaReport(summarise(run))


class _ReplayProgress:
    """Progress on standard error, with the estimated remaining time: a bar in a terminal, else a line every few seconds."""

    def __init__(self, enabled: bool) -> None:
        self._console = Console(stderr=True)
        self._enabled = enabled
        self._bar: Progress | None = None
        self._last = self._start = time.monotonic()
        self._known: int | None = None

    def __enter__(self) -> _ReplayProgress:
        if self._enabled and self._console.is_terminal:
            columns = ("replays", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("replays")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if self._known is None:  # the first call passes the number of journalled replays
            self._known, self._start = done, time.monotonic()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif self._enabled and (done == total or time.monotonic() - self._last > 5.0):
            self._last = time.monotonic()
            pace = (self._last - self._start) / (done - self._known) if done > self._known else None
            left = f", about {clock(pace * (total - done))} left" if pace is not None and done < total else ""
            self._console.print(f"{done} of {total} replays{left}", style="dim", highlight=False)


def _tables(s: ArenaSummary) -> dict[str, list[list[object]]]:
    """Rows of the CSV files, with a header; cells of goals not reached are empty."""
    labels, pools = s.labels, [p.name for p in s.run.pools]
    of_goals = ("trials", "trials_low", "trials_high", "reached", "chance_trials", "candidates")
    goals = [f"{what}_{share:.0%}" for share in SHARES for what in of_goals]
    standings: list[list[object]] = [["pool", "entrant", "runs", *_columns("slowdown_end"), *goals]]
    curves: list[list[object]] = [["pool", "entrant", "trial", "median_us", "low_us", "high_us"]]
    for x in s.standings:
        who: list[object] = [pools[x.pool], labels[x.method]]
        found = [y for g in x.goals for y in (*g.trials.to_json(), g.reached, g.chance, g.candidates)]
        standings.append([*who, x.runs, *x.slowdown.to_json(), *found])
        for i, trial in enumerate(x.trials.tolist()):
            curves.append([*who, trial, *[y * 1e6 if math.isfinite(y := float(c[i])) else None for c in x.curve]])
    ranking: list[list[object]] = [["entrant", *_columns("slowdown_mean"), "mean_rank", "p_vs_first"]]
    ranking += [[labels[r.method], *r.slowdown.to_json(), r.rank, r.p] for r in s.ranking]
    pairs: list[list[object]] = [["first", "second", *_columns("ratio"), *_columns("ratio_adjusted")[1:], "p", "p_holm", "better"]]
    for p in s.pairs:
        better = p.better(s.level)
        found = [*p.ratio.to_json(), *p.simultaneous.to_json()[1:], p.p, p.adjusted]
        pairs.append([labels[p.first], labels[p.second], *found, None if better is None else labels[better]])
    return {"standings": standings, "curves": curves, "ranking": ranking, "pairs": pairs}


def _columns(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"]


def _trials(goal: Goal, budget: int) -> str:
    """`41 (33..60)`; `>256` if half of the searches did not reach the goal."""
    shown = [f"{x:g}" if math.isfinite(x) else f">{budget}" for x in (goal.trials.value, goal.trials.low, goal.trials.high)]
    return f"{shown[0]} ({shown[1]}..{shown[2]})"


def _share(goal: Goal) -> str:
    return f"{goal.of_chance:.0%}".replace("%", " %") if math.isfinite(goal.of_chance) else "-"


def _interval(x: Interval, excludes_1: bool = False) -> str:
    if not math.isfinite(x.value):
        return "-"
    bounds = _bounds(x, excludes_1)
    return f"{x.value:.3f}" + (f" ({bounds})" if bounds else "")


def _bounds(x: Interval, excludes_1: bool = False) -> str:
    """`1.012..1.490`; `>1.000..1.490` if an end of exactly 1 does not belong to the interval; empty for too few pairs."""
    if math.isinf(x.high):
        return ""
    below, above = (">" if excludes_1 and x.low == 1.0 else ""), ("<" if excludes_1 and x.high == 1.0 else "")
    return f"{below}{x.low:.3f}..{above}{x.high:.3f}"


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
