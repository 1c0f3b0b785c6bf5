"""Measure the schedules of another tuner's records here, and write records of them to a log."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType

from tunesmith.datasets.replay_metaschedule import Replayed, replay_database
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import microseconds, plain_table, printable
from tunesmith.driver.tune import builder_and_runner
from tunesmith.driver.tune_options import target_here
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import MeasureTask, NamedTrace
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.records.log import RecordLog
from tunesmith.support.errors import RecordError


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """One record of the other tuner.

    Attributes:
        line: its line in the file, from 1.
        function: name of the function of its workload.
        theirs: the median seconds that the other tuner measured; infinity if it failed there.
        seconds: the median seconds measured here; infinity if it failed or has no counterpart.
        note: why there is no time.
    """

    line: int
    function: str
    theirs: float
    seconds: float
    note: str

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith log import --json`."""
        times = {"theirs_us": self.theirs, "us": self.seconds}
        shown = {k: None if math.isinf(s) else s * 1e6 for k, s in times.items()}
        return {"line": self.line, "function": self.function, **shown, "note": self.note}


@dataclass(frozen=True, slots=True)
class ImportReport(Rendered):
    """The records of the other tuner, in the order of the file."""

    rows: tuple[ImportedRow, ...]

    @property
    def ok(self) -> bool:
        """Whether a record was measured."""
        return any(math.isfinite(row.seconds) for row in self.rows)

    def to_json(self) -> list[dict[str, object]]:
        """The data written by `tunesmith log import --json`."""
        return [row.to_json() for row in self.rows]

    def render(self) -> RenderableType:
        """The results as a table for a terminal."""
        cells = [[str(r.line), r.function, microseconds(r.theirs, True), microseconds(r.seconds, True)] for r in self.rows]
        notes = [printable(f"! {r.note.splitlines()[0]}", style="yellow") for r in self.rows if r.note]
        return Group(plain_table("Imported", ["line", "function", "theirs us", "here us"], cells, left=["function"]), *notes)


def import_metaschedule(path: str | Path, log: str | Path, target: str | Target | None = None, workers: int = 0) -> ImportReport:
    """Replay the records of a MetaSchedule database, measure them here, and append them to a log, which `compile` takes as `records=`.

    Args:
        path: the folder of the database, or its record file.
        log: the log of tunesmith.
        target: the target to build for; by default this machine.
        workers: compiling processes; with 0 this process builds and runs.
    Returns:
        The times of both tuners.  A record without counterpart is a row with the instruction in its note.
    Raises:
        RecordError: the database cannot be read, or has no record.
        UserError: the target is not known.
        BuildError: the target's code cannot run here.
    """
    found = list(replay_database(path))
    if not found:
        raise RecordError(f"{path}: the database has no record")
    here = target_here(target)
    seconds: dict[int, tuple[float, str]] = {}
    with contextlib.ExitStack() as stack:
        builder, runner = builder_and_runner(workers, here, stack)
        measurer = stack.enter_context(Measurer(here, builder, runner, log=RecordLog(log)))
        for workload in dict.fromkeys(r.workload for r in found):
            ours = [r for r in found if r.workload == workload and r.schedule is not None]
            if not ours:
                continue
            task = MeasureTask(ours[0].func, [_sketch(r) for r in ours])
            records = measurer.measure(task, [(i, ()) for i in range(len(ours))], extra={"imported": "metaschedule"})
            for r, record in zip(ours, records, strict=True):
                seconds[r.line] = record.seconds, record.error.message if record.error is not None else ""
    rows = [ImportedRow(r.line, r.func.name, r.seconds, *seconds.get(r.line, (math.inf, r.refusal))) for r in found]
    return ImportReport(tuple(rows))


def _sketch(r: Replayed) -> NamedTrace:
    assert r.schedule is not None
    return NamedTrace(f"metaschedule:{r.line}", r.schedule.trace)
