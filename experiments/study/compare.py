"""Compare two runs of a study per arm and workload, for example before and after a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

from rich.console import Group, RenderableType

from tunesmith.display.noise import noise_remark
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import microseconds, plain_table, printable
from tunesmith.experiments.study.results import Arm, RunIndex, load_manifest, load_run
from tunesmith.experiments.study.statistics import Ratio, adjusted, interval, ratio, verdict
from tunesmith.experiments.study.summary import best_known, final_times, mean_times, noise, reached
from tunesmith.support.errors import UserError

ADVICE = "Run it again in another folder on a quiet machine"
SHARE = 95
"""Percent of the speed of the best known program that counts as reached."""


@dataclass(frozen=True, slots=True)
class Line:
    """Comparison of one arm on one workload.

    Attributes:
        workload: name; empty for the mean over common workloads, with times relative to the best known program of both runs.
        arm: name of the arm.
        best_a, best_b: final seconds of the searches, one per seed.
        ratio: B's time over A's: B is faster below 1; with the adjusted interval and p-value among all lines.
        trials_a, trials_b: result of `summary.reached` for `SHARE` percent of the best speed of both runs.
    """

    workload: str
    arm: str
    best_a: tuple[float, ...]
    best_b: tuple[float, ...]
    ratio: Ratio
    trials_a: Mapping[str, object] | None = None
    trials_b: Mapping[str, object] | None = None

    @property
    def verdict(self) -> str:
        """Verdict on B relative to A."""
        return verdict(self.ratio.ratio, self.ratio.p_adjusted)

    def to_json(self) -> dict[str, object]:
        """The line as plain data."""
        sides = {"a": (self.best_a, self.trials_a), "b": (self.best_b, self.trials_b)}
        return {
            "workload": self.workload or None,
            "arm": self.arm,
            **{s: {"best": interval(best).to_json(), "each": list(best), f"trials_to_{SHARE}": t} for s, (best, t) in sides.items()},
            **self.ratio.to_json(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Comparison(Rendered):
    """Comparison of two runs.

    Attributes:
        names: names of the studies, with their folders.
        lines: arms and workloads of both runs.
        notes: caveats: different settings, and parts of one run only.
    """

    names: tuple[str, str]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The data written by `--json`; times in seconds."""
        return {"runs": list(self.names), "lines": [line.to_json() for line in self.lines], "notes": list(self.notes)}

    def render(self) -> RenderableType:
        """The comparison as a table for a terminal."""
        intervals = ["95 % interval", "adjusted"]
        columns = ["workload", "arm", "seeds", "A us", "B us", "B/A", *intervals, f"A to {SHARE} %", f"B to {SHARE} %", "p (Holm)", "B is"]
        table = plain_table(f"A = {self.names[0]}, B = {self.names[1]}", columns, list(map(_row, self.lines)), left=["arm", "B is"])
        return Group(table, *[printable(f"! {note}") for note in self.notes])


def compare_runs(a: str | PathLike[str], b: str | PathLike[str]) -> Comparison:
    """Compare the common cells of two run folders that are done in both.

    Args:
        a, b: the folders; ratios are B's times over A's.
    Raises:
        RecordError: a folder is not a run, or a file in it is malformed.
        UserError: no common workload and arm is done in both runs.
    """
    first, second = load_run(a), load_run(b)
    known = best_known([first, second])
    workloads = [w for w in first.workloads if w in second.workloads and w in known]
    lines: list[Line] = []
    for arm in [arm for arm in first.arms if arm in second.arms]:
        common = [line for w in workloads if (line := _line(first, second, w, arm, known[w])) is not None]
        times = [tuple(mean_times(run, arm, workloads, known)) for run in (first, second)]
        lines += common
        if len(common) > 1 and all(times):
            lines.append(Line("", arm.name, times[0], times[1], ratio(times[1], times[0])))
    if not lines:
        raise UserError(f"nothing is done in both runs. {first.name} has {_have(first)}; {second.name} has {_have(second)}")
    ratios = adjusted([line.ratio for line in lines])
    adjusted_lines = tuple([replace(line, ratio=r) for line, r in zip(lines, ratios, strict=True)])
    names = (f"{first.name} in {fspath(a)}", f"{second.name} in {fspath(b)}")
    return Comparison(names, adjusted_lines, (*_notes(first, second), *_environment_notes(Path(a), Path(b))))


def _line(first: RunIndex, second: RunIndex, workload: str, arm: Arm, known: float) -> Line | None:
    a, b = final_times(first, workload, arm), final_times(second, workload, arm)
    if not a or not b:
        return None
    trials = [reached(run.of(workload, arm), known * 100 / SHARE) for run in (first, second)]
    return Line(workload, arm.name, tuple(a), tuple(b), ratio(b, a), trials[0], trials[1])


def _row(line: Line) -> list[str]:
    r = line.ratio
    us = [microseconds(interval(best).mean) if line.workload else "-" for best in (line.best_a, line.best_b)]
    return [
        line.workload or "all workloads",
        line.arm,
        f"{len(line.best_a)}, {len(line.best_b)}",
        *us,
        f"{r.ratio:.3f}",
        "-" if r.low is None else f"{r.low:.3f} to {r.high:.3f}",
        "-" if r.low_adjusted is None else f"{r.low_adjusted:.3f} to {r.high_adjusted:.3f}",
        _reached(line.trials_a),
        _reached(line.trials_b),
        "-" if r.p_adjusted is None else f"{r.p_adjusted:.3f}",
        line.verdict,
    ]


def _reached(trials: Mapping[str, object] | None) -> str:
    if trials is None:
        return "-"
    median = trials["median"]
    return f"{'-' if median is None else f'{median:g}'} ({trials['reached']}/{trials['of']})"


def _notes(first: RunIndex, second: RunIndex) -> Iterator[str]:
    """Caveats of a comparison: different settings and variants, missing parts, unfinished runs."""
    for name in sorted({*first.settings, *second.settings}):
        a, b = first.settings.get(name), second.settings.get(name)
        if a != b:
            yield f"the setting {name} differs: {a} in A, {b} in B"
    for name in first.variants:
        if name in second.variants and first.variants[name] != second.variants[name]:
            yield f"the variant {name} differs: {first.variants[name]} in A, {second.variants[name]} in B"
    for run, other, label in ((first, second, "A"), (second, first, "B")):
        alone = [*[w for w in run.workloads if w not in other.workloads], *[a.name for a in run.arms if a not in other.arms]]
        if alone:
            yield f"only in {label}: {', '.join(alone)}"
        counts = noise(run.results)
        if counts["measured"]:
            yield f"{label}: {noise_remark(counts['clean'], counts['measured'], ADVICE)}"
        if not run.ok:
            yield f"{label} is not finished: {sum(r.state != 'done' for r in run.results)} of {len(run.results)} cells are not done"


def _environment_notes(a: Path, b: Path) -> Iterator[str]:
    """Differences in machine, software and source between the last parts of the runs."""
    first, second = ((load_manifest(folder) or [{}])[-1] for folder in (a, b))
    for fact, what in (("host", "machine"), ("versions", "software"), ("git", "source")):
        known = [x for x in (first.get(fact), second.get(fact)) if isinstance(x, dict)]
        if len(known) == 2 and known[0] != known[1]:
            changed = sorted(k for k in {*known[0], *known[1]} if known[0].get(k) != known[1].get(k))
            facts = "; ".join(f"{k} {known[0].get(k)} in A, {known[1].get(k)} in B" for k in changed)
            yield f"the {what} differs: {facts}"


def _have(run: RunIndex) -> str:
    done = {(r.cell.workload, r.cell.arm.name) for r in run.results if r.state == "done"}
    return ", ".join(f"{w} by {a}" for w, a in sorted(done)) or "no finished cell"
