"""Add up the time of each pass."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tunesmith.driver.instruments.program_text import Program
from tunesmith.lower.instrument import Instrument


@dataclass(frozen=True, slots=True)
class PassTime:
    """The time of all calls of a pass at one place.

    Attributes:
        path: names of the enclosing passes, from the outermost, and of the pass.
        calls: number of calls, including those that failed.
        seconds: total, with the passes inside.
        own: without them.
    """

    path: tuple[str, ...]
    calls: int
    seconds: float
    own: float


class PassTimes(Instrument):
    """Times of all passes while the context is entered; `str(times)` is a table.

    A pass that another pass runs, as lowering inside of a pass over modules, is listed under it.  The time of other instruments is not
    counted.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], list[float]] = {}
        self._open: list[tuple[str, float]] = []
        """The passes that run: name, and the seconds of the passes inside."""
        self.seconds = 0.0
        """Time in the context, with what is not in passes."""
        self._entered: float | None = None

    def enter(self) -> None:
        """Start the clock of the context."""
        self._entered = time.perf_counter()

    def exit(self) -> None:
        """Stop the clock of the context."""
        if self._entered is not None:
            self.seconds += time.perf_counter() - self._entered
        self._entered = None

    def before(self, name: str, ir: Program) -> None:
        """Open a pass."""
        self._open.append((name, 0.0))
        self._found.setdefault(tuple([n for n, _ in self._open]), [0, 0.0, 0.0])

    def after(self, name: str, before: Program, after: Program, seconds: float) -> None:
        """Close a pass."""
        entry = self._found[tuple([n for n, _ in self._open])]
        _, inside = self._open.pop()
        entry[0] += 1
        entry[1] += seconds
        entry[2] += seconds - inside
        if self._open:
            outer, within = self._open[-1]
            self._open[-1] = outer, within + seconds

    def failed(self, name: str, before: Program, error: BaseException, seconds: float) -> None:
        """Close a pass."""
        self.after(name, before, before, seconds)

    @property
    def rows(self) -> tuple[PassTime, ...]:
        """The passes in the order of their first calls, those inside of a pass after it."""
        return tuple([PassTime(path, int(calls), total, own) for path, (calls, total, own) in self._found.items()])

    def to_json(self) -> list[dict[str, object]]:
        """The rows as data."""
        return [{"path": list(r.path), "calls": r.calls, "seconds": r.seconds, "own": r.own} for r in self.rows]

    def __str__(self) -> str:
        names = ["  " * (len(r.path) - 1) + r.path[-1] for r in self.rows]
        width = max([len(n) for n in (*names, "all passes")])
        lines = [f"{'pass':<{width}} {'calls':>6} {'total ms':>10} {'own ms':>10}"]
        for name, r in zip(names, self.rows, strict=True):
            lines.append(f"{name:<{width}} {r.calls:>6} {r.seconds * 1e3:>10.2f} {r.own * 1e3:>10.2f}")
        total = sum(r.own for r in self.rows) * 1e3
        return "\n".join([*lines, f"{'all passes':<{width}} {sum(r.calls for r in self.rows):>6} {total:>10.2f} {total:>10.2f}"])
