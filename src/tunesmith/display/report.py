"""Report the results of a tuning run per workload, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table

from tunesmith.display.failures import ErrorExample, examples_of, render_examples
from tunesmith.display.model_check import ModelCheck
from tunesmith.display.noise import LEAST_CLEAN, clean_share, noise_remark
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import NOISY, counted, microseconds, plain_table, plural, printable, rate, sparkline
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.status import is_measurement
from tunesmith.search.retake import is_retake
from tunesmith.search.tuner import PHASES, Progress
from tunesmith.support.errors import UserError

LEGEND = (
    "clean: share of the measurements without other load; sketch: structure of the schedule, see `tunesmith show WORKLOAD --trace`",
    "draft: candidates are drawn and ranked by the analytic model (drafted); verify: the learned model ranks the best of them (scored)",
)
"""The words of the tables that their columns do not explain."""


@dataclass(frozen=True)
class TaskReport:
    """Tuning result of one workload.

    Attributes:
        workload: name of the workload.
        digest: key of its records.
        trials: number of measured candidates, including earlier runs.
        resumed: number of candidates measured by earlier runs.
        errors: failed candidates by class.
        best: the best verified record, or None.
        flops: operations of one call; 0 if not counted.
        drafted, scored: candidates scored by the analytic and by the learned model.
        seconds: seconds per phase: total, draft, verify, build, measure, train.
        curve: for each trial, including those of earlier runs, the best verified seconds so far, see `search.tuner.Progress`; None before
            the first success.
        failure: why the workload has no result or an incomplete one; empty on success.
        examples: the most frequent message of each error class, with a candidate.
        measured, noisy: measurements in the log with a time, and how many of them other load disturbed.
        retaken: disturbed candidates in the log that were measured again; see `search.retake`.
    """

    workload: str
    digest: str
    trials: int
    resumed: int
    errors: Mapping[str, int]
    best: Record | None
    flops: int
    drafted: int
    scored: int
    seconds: Mapping[str, float]
    curve: Sequence[float | None] = field(repr=False)
    failure: str = ""
    examples: Sequence[ErrorExample] = ()
    measured: int = 0
    noisy: int = 0
    retaken: int = 0

    @classmethod
    def of(cls, progress: Progress, best: Record | None, failure: str = "", records: Sequence[Record] = ()) -> TaskReport:
        """Build the report of a tuning from its progress and the task's records."""
        p, task = progress, progress.task
        timed = [r.clean for r in records if r.error is None and is_measurement(r)]
        seconds = {name: p.seconds[name] for name in ("total", *PHASES)}
        return cls(
            task.name,
            task.digest,
            p.trials,
            p.resumed,
            dict(p.errors),
            best,
            task.flops,
            p.drafted,
            p.scored,
            seconds,
            tuple(p.curve),
            failure,
            examples_of(records),
            len(timed),
            timed.count(False),
            sum(map(is_retake, records)),
        )

    def __repr__(self) -> str:
        return f"<TaskReport of {self._summary}>"

    @property
    def _summary(self) -> str:
        """Name and best time."""
        return f"{self.workload}: {'no result' if self.best_us is None else f'{self.best_us:.6g} us'}, {plural(self.trials, 'trial')}"

    @property
    def best_us(self) -> float | None:
        """Microseconds of the best record, or None."""
        return None if self.best is None else self.best.seconds * 1e6

    @property
    def gflops(self) -> float | None:
        """Rate of the best record; None without a record or a count of operations."""
        return self.flops / self.best.seconds / 1e9 if self.best is not None and self.flops else None

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith tune --json`."""
        return {
            "workload": self.workload,
            "digest": self.digest,
            "trials": self.trials,
            "errors": dict(sorted(self.errors.items())),
            "examples": [e.to_json() for e in self.examples],
            "best_us": self.best_us,
            "best_clean": self.best is None or self.best.clean,
            "measured": self.measured,
            "noisy": self.noisy,
            "retaken": self.retaken,
            "gflops": self.gflops,
            "drafted": self.drafted,
            "scored": self.scored,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }


@dataclass(frozen=True)
class Report(Rendered):
    """Tuning results of all workloads of a run.

    Attributes:
        tasks: results in the order of the workloads passed to `tune`.
        interrupted: Ctrl-C ended the run; the measurements are in the log.
        notes: unexpected consequences of the settings, and remarks about the programs.
        models: comparisons of the tuned models before and after the run, as a whole.
    """

    tasks: tuple[TaskReport, ...]
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    models: tuple[ModelCheck, ...] = ()

    def __repr__(self) -> str:
        shown = "; ".join([t._summary for t in self.tasks[:3]])
        return f"<Report of {shown}{f'; and {len(self.tasks) - 3} more' if len(self.tasks) > 3 else ''}>"

    @property
    def ok(self) -> bool:
        """Whether every workload completed its search."""
        return not self.interrupted and not any(t.failure for t in self.tasks)

    @property
    def best(self) -> Record | None:
        """The best record of the only workload.  Raises UserError if there are several: see `tasks`."""
        return self._only().best

    @property
    def curve(self) -> Sequence[float | None]:
        """The curve of the only workload.  Raises UserError if there are several: see `tasks`."""
        return self._only().curve

    def __getitem__(self, workload: str) -> TaskReport:
        """The report of a workload, by name.  Raises UserError if it was not tuned."""
        for task in self.tasks:
            if task.workload == workload:
                return task
        raise UserError(f"{workload!r} was not tuned; {', '.join(t.workload for t in self.tasks)} was")

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith tune --json`."""
        models = {"models": [m.to_json() for m in self.models]} if self.models else {}
        return {"tasks": [t.to_json() for t in self.tasks], "notes": list(self.notes), **models}

    def render(self) -> RenderableType:
        """The report as tables for a terminal."""
        parts: list[RenderableType] = [self._found(), self._time(), *[printable(line, style="dim") for line in LEGEND]]
        parts += [line for t in self.tasks for line in render_examples(t.workload, t.examples)]
        parts += [printable(f"The model as a whole: {m}") for m in self.models]
        parts += [printable(f"! {note}", style="yellow") for note in self.notes]
        parts += [printable(f"! {t.workload}: {t.failure}", style="red") for t in self.tasks if t.failure]
        if self.interrupted:
            parts.append(printable("! interrupted; the measurements are in the log, and the next run resumes from it", style="yellow"))
        return Group(*parts)

    def _found(self) -> Table:
        rows = [
            [
                t.workload,
                str(t.trials) + (f" ({t.resumed} before)" if t.resumed else ""),
                "-" if t.best is None else microseconds(t.best.seconds, t.best.clean),
                clean_share(t.measured - t.noisy, t.measured),
                rate(t.gflops),
                "-" if t.best is None else t.best.sketch,
                counted(t.errors) or "none",
                sparkline(t.curve),
            ]
            for t in self.tasks
        ]
        title = "Found" + ("" if all(t.best is None or t.best.clean for t in self.tasks) else NOISY)
        return plain_table(
            title,
            ["workload", "trials", "best us", "clean", "GFLOP/s", "sketch", "errors", "curve"],
            rows,
            left=["sketch", "errors", "curve"],
        )

    def _time(self) -> Table:
        rows = [
            [t.workload, *[f"{t.seconds[name]:.1f}" for name in ("total", *PHASES)], f"{t.drafted:,}", f"{t.scored:,}"] for t in self.tasks
        ]
        return plain_table("Seconds", ["workload", "total", *PHASES, "drafted", "scored"], rows)

    def _only(self) -> TaskReport:
        if len(self.tasks) != 1:
            raise UserError(f"the report has {len(self.tasks)} workloads: select one with report[name], or iterate over report.tasks")
        return self.tasks[0]


def noise_notes(tasks: Sequence[TaskReport], log: str | None, ranked: bool) -> list[str]:
    """A remark if a best time, or most measurements of the tasks, were disturbed by other load.

    Args:
        tasks: results of distinct programs.
        log: path of their log, if any.
        ranked: a run times the leaders again.
    """
    measured, noisy = sum(t.measured for t in tasks), sum(t.noisy for t in tasks)
    best = [t.best for t in tasks if t.best is not None]
    doubtful = sum(not b.clean for b in best)
    if not doubtful and noisy <= (1 - LEAST_CLEAN) * measured:
        return []
    if not doubtful:
        missed = "The best times are clean, and faster candidates may have been missed: search with more trials on a quiet machine"
        return [noise_remark(measured - noisy, measured, missed)]
    which = "the best time is" if len(best) == 1 else f"{doubtful} of {len(best)} best times are"
    found = f"{which} from such measurements"
    again = "Run the same command again on a quiet machine" if log is not None else "Search again on a quiet machine"
    advice = [again] if ranked or log is None else []
    advice += [] if log is None else [f"compare with `tunesmith replay {log} --time`"]
    text = ", or ".join(advice)
    return [noise_remark(measured - noisy, measured, f"{text[0].upper()}{text[1:]}", found)]
