"""What a tuning run found, for each workload: printable, and as the JSON that scripts read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table

from tunesmith.display.failures import ErrorExample, render_examples
from tunesmith.display.tables import as_text, counted, microseconds, plain_table, printable, rate, sparkline
from tunesmith.measure.records.record import Record
from tunesmith.search.tuner import PHASES, Progress
from tunesmith.support.errors import UserError


@dataclass(frozen=True)
class TaskReport:
    """One workload.

    Attributes:
        workload: its name.
        digest: key of its records.
        trials: measured candidates, those of earlier runs included.
        resumed: how many of them are earlier runs'.
        errors: failed candidates by class.
        best: the best verified record, None if there is none.
        flops: operations of one call, 0 if they are not counted.
        drafted, scored: candidates that the analytic and the learned model judged.
        seconds: where the time went: total, draft, verify, build, measure, train.
        curve: best seconds after each trial; None before the first success.
        failure: why the workload has no result, or not all that was asked for; empty if all is well.
        examples: of each class of errors the most frequent message, with a candidate.
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

    @classmethod
    def of(cls, progress: Progress, best: Record | None, failure: str = "", examples: Sequence[ErrorExample] = ()) -> TaskReport:
        """The report of a tuning."""
        p, task = progress, progress.task
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
            tuple(examples),
        )

    @property
    def best_us(self) -> float | None:
        """Microseconds of the best record."""
        return None if self.best is None else self.best.seconds * 1e6

    @property
    def gflops(self) -> float | None:
        """Rate of the best record; None if there is none, or operations are not counted."""
        return self.flops / self.best.seconds / 1e9 if self.best is not None and self.flops else None

    def to_json(self) -> dict[str, object]:
        """As `tunesmith tune --json` writes it."""
        return {
            "workload": self.workload,
            "digest": self.digest,
            "trials": self.trials,
            "errors": dict(sorted(self.errors.items())),
            "examples": [e.to_json() for e in self.examples],
            "best_us": self.best_us,
            "gflops": self.gflops,
            "drafted": self.drafted,
            "scored": self.scored,
            "seconds": {name: round(value, 6) for name, value in self.seconds.items()},
        }


@dataclass(frozen=True)
class Report:
    """All workloads of a run.

    Attributes:
        tasks: in the order they were asked for.
        interrupted: Ctrl-C ended the run; what was measured is in the log.
        notes: what the settings make of the search, if it is not what one would expect.
    """

    tasks: tuple[TaskReport, ...]
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every workload has what was asked for."""
        return not self.interrupted and not any(t.failure for t in self.tasks)

    @property
    def best(self) -> Record | None:
        """The best record of the only workload.  UserError if there are several: see `tasks`."""
        return self._only().best

    @property
    def curve(self) -> Sequence[float | None]:
        """The curve of the only workload.  UserError if there are several: see `tasks`."""
        return self._only().curve

    def __getitem__(self, workload: str) -> TaskReport:
        """The report of a workload, by name.  UserError if it was not tuned."""
        for task in self.tasks:
            if task.workload == workload:
                return task
        raise UserError(f"{workload!r} was not tuned; {', '.join(t.workload for t in self.tasks)} was")

    def to_json(self) -> dict[str, object]:
        """As `tunesmith tune --json` writes it."""
        return {"tasks": [t.to_json() for t in self.tasks], "notes": list(self.notes)}

    def render(self) -> RenderableType:
        """Tables for a terminal."""
        parts: list[RenderableType] = [self._found(), self._time()]
        parts += [line for t in self.tasks for line in render_examples(t.workload, t.examples)]
        parts += [printable(f"! {note}", style="yellow") for note in self.notes]
        parts += [printable(f"! {t.workload}: {t.failure}", style="red") for t in self.tasks if t.failure]
        if self.interrupted:
            parts.append(printable("! interrupted; what was measured is in the log, and the next run goes on from there", style="yellow"))
        return Group(*parts)

    def __str__(self) -> str:
        return as_text(self.render())

    def _found(self) -> Table:
        rows = [
            [
                t.workload,
                str(t.trials) + (f" ({t.resumed} before)" if t.resumed else ""),
                microseconds(None if t.best is None else t.best.seconds),
                rate(t.gflops),
                "-" if t.best is None else t.best.sketch,
                counted(t.errors) or "none",
                sparkline(t.curve),
            ]
            for t in self.tasks
        ]
        return plain_table(
            "Found", ["workload", "trials", "best us", "GFLOP/s", "sketch", "errors", "curve"], rows, left=["sketch", "errors", "curve"]
        )

    def _time(self) -> Table:
        rows = [
            [t.workload, *[f"{t.seconds[name]:.1f}" for name in ("total", *PHASES)], f"{t.drafted:,}", f"{t.scored:,}"] for t in self.tasks
        ]
        return plain_table("Seconds", ["workload", "total", *PHASES, "drafted", "scored"], rows)

    def _only(self) -> TaskReport:
        if len(self.tasks) != 1:
            raise UserError(f"the report has {len(self.tasks)} workloads: take one, report[name], or go through report.tasks")
        return self.tasks[0]
