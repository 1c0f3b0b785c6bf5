"""Show the progress of a search on standard error: a live table in a terminal, else one line per batch."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tunesmith.display.tables import counted, microseconds, plain_table, plural, printable, rate
from tunesmith.measure.records.record import Record
from tunesmith.search.tuner import Progress

_COLUMNS = ["workload", "trials", "best us", "GFLOP/s", "errors", "time goes to", "left"]

_NO_MORE = "no more candidates"


class ProgressView:
    """A live view of the tasks of a search.  As a context manager it controls the terminal.

    Args:
        console: the output; by default standard error.
        total: trials of all tasks together; None for one budget per task.
        seconds: the time budget; None without one.
        tasks: number of tasks of the run, some of which may never begin; None if all do.
    """

    def __init__(
        self, console: Console | None = None, total: int | None = None, seconds: float | None = None, tasks: int | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._total, self._seconds, self._number = total, seconds, tasks
        self._start = time.monotonic()
        self._tasks: dict[str, Progress] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a remark above the progress."""
        self._console.print(printable(f"! {text}", "yellow"), soft_wrap=True)

    def say(self, text: str) -> None:
        """Print what happens next, for steps without progress of their own."""
        self._console.print(printable(text), highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """The callback of a search: update one task."""
        self._tasks[progress.task.name] = progress
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
        elif progress.trials:
            done = self._done()
            self._console.print(printable(f"[{done}] {line(progress)}" if done else line(progress)), highlight=False, soft_wrap=True)

    def table(self) -> Table:
        """All tasks, with the estimated remaining time in the title."""
        left = self._left()
        title = ", ".join([plural(len(self._tasks), "task"), *[part for part in (self._done(), self._sum()) if part]])
        title += "" if left is None else f", about {clock(left)} left"
        return plain_table(title, _COLUMNS, [cells(p) for p in self._tasks.values()], left=["errors", "time goes to"])

    def _done(self) -> str:
        """The spent part of the shared budget, such as `312 of 2000 trials, 41 of 60 s`; empty without one."""
        trials = sum(p.trials for p in self._tasks.values())
        parts = [] if self._total is None else [f"{trials} of {self._total} trials"]
        spent = time.monotonic() - self._start
        parts += [] if self._seconds is None else [f"{min(spent, self._seconds):.0f} of {self._seconds:.0f} s"]
        return ", ".join(parts)

    def _sum(self) -> str:
        """The best times of all calls together, an estimate of the whole program's; empty for one task or none with a time."""
        known = [p.task.weight * p.best.seconds for p in self._tasks.values() if p.best is not None]
        number = max(self._number or 0, len(self._tasks))
        if number < 2 or not known:
            return ""
        some = "" if len(known) == number else f" for {len(known)} of {number} workloads"
        return f"{sum(known) * 1e3:.4g} ms{some}"

    def _left(self) -> float | None:
        """Remaining seconds at the pace of this run; None before the first measurement or without a bound on trials."""
        tasks = self._tasks.values()
        if self._total is not None:
            done = sum(p.trials - p.resumed for p in tasks)
            left = max(0, self._total - sum(p.trials for p in tasks))
            return sum(p.seconds["total"] for p in tasks) / done * left if done else None
        each = [seconds_left(p) for p in tasks]
        known = [s for s in each if s is not None]
        return sum(known) if known and len(known) == len(each) else None


def cells(p: Progress) -> list[str]:
    """A task as table cells."""
    left = seconds_left(p)
    return [
        p.task.name,
        f"{p.trials}" if p.budget is None else f"{p.trials}/{p.budget}",
        _time(p.best),
        rate(p.gflops),
        counted(p.errors),
        time_split(p),
        _NO_MORE if p.exhausted else "-" if left is None else clock(left),
    ]


def line(p: Progress) -> str:
    """A task as a line of text."""
    name, trials, best, gflops, errors, split, left = cells(p)
    again = f"{plural(p.timed_again, 'leader')} timed again: " if p.timed_again else ""
    before = f" (was {_time(p.best_before)} us)" if p.timed_again and p.best_before not in (None, p.best) else ""
    parts = [f"{trials} trials", f"{again}best {best} us{before}" + (f" ({gflops} GFLOP/s)" if gflops != "-" else "")]
    parts += [f"errors: {errors}"] if errors else []
    parts += [f"{p.retaken} disturbed, taken again"] if p.retaken else []
    parts += [split] if split else []
    if p.exhausted:
        parts.append(_NO_MORE)
    elif left != "-" and p.budget is not None and p.trials < p.budget:
        parts.append(f"{left} left")
    return f"{name}: {', '.join(parts)}"


def _time(best: Record | None) -> str:
    return "-" if best is None else microseconds(best.seconds, best.clean)


def time_split(p: Progress) -> str:
    """`search 12 %, build 40 %, measure 48 %`; empty before any time is recorded."""
    s = p.seconds
    total = s["total"]
    if total < 1e-3:
        return ""
    parts = {"search": s["draft"] + s["verify"] + s["train"], "build": s["build"], "measure": s["measure"]}
    return ", ".join(f"{name} {round(100 * value / total)} %" for name, value in parts.items())


def seconds_left(p: Progress) -> float | None:
    """Remaining seconds of a task at the pace of this run; None before the first measurement or without a budget of its own."""
    done = p.trials - p.resumed
    if p.budget is None:
        return None
    if p.trials >= p.budget or p.exhausted:
        return 0.0
    return p.seconds["total"] / done * (p.budget - p.trials) if done else None


def clock(seconds: float) -> str:
    """A duration as `1:05:09`, `4:20` or `12 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    shown = time.strftime("%H:%M:%S", time.gmtime(seconds)) if seconds < 86400 else f"{seconds / 3600:.0f} h"
    return shown.lstrip("0:") if seconds >= 600 else shown[-4:]
