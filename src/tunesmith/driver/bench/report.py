"""Report a benchmark as a table of workloads and systems, with the reasons for skipped systems.

Each row has the compute precision of the system, because a library may compute float32 operators in a narrower format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import NOISY, microseconds, plain_table, printable, rate
from tunesmith.driver.bench.ratio import Ratio, best_of
from tunesmith.measure.precision import EPS

OURS = "tunesmith"
LEGEND = (
    "min and p90 are those of samples: means of calls that take 2 ms together. error: the largest difference from numpy's float64 result, "
    "or for own programs and models from our code without records, relative to the largest element"
)
_SAID = {"faster": "tunesmith is faster", "slower": "tunesmith is slower"}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Timing of one system on one workload.

    Attributes:
        workload: canonical text.
        system: `tunesmith` or the name of a baseline.
        ok: the system ran and its output was correct; otherwise the numbers are None.
        median, minimum, p90: seconds of one call, over all samples; a sample is the mean of calls that total 2 ms.
        runs: number of timed calls.
        gflops: rate at the median.
        note: the variant of the library, or why it is not ok.
        clean: other processes used the machine during no sample.
        precision: the compute precision ("f32", "bf16"), see `measure.precision`.
        ratio: its time over ours, with an interval; None for ours, or without ours.
        error: largest difference from numpy's result, relative to the largest element.  numpy computes in float64 and rounds once.
    """

    workload: str
    system: str
    ok: bool
    median: float | None = None
    minimum: float | None = None
    p90: float | None = None
    runs: int = 0
    gflops: float | None = None
    note: str = ""
    clean: bool = True
    precision: str = ""
    error: float | None = None
    ratio: Ratio | None = None

    @classmethod
    def failed(cls, workload: str, system: str, why: str) -> BenchRow:
        """A system that cannot be timed."""
        return cls(workload, system, False, note=why)

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith bench --json`."""

        def us(seconds: float | None) -> float | None:
            return None if seconds is None else seconds * 1e6

        return {
            "workload": self.workload,
            "system": self.system,
            "ok": self.ok,
            "note": self.note,
            "median_us": us(self.median),
            "min_us": us(self.minimum),
            "p90_us": us(self.p90),
            "runs": self.runs,
            "gflops": self.gflops,
            "precision": self.precision,
            "error": self.error,
            "clean": self.clean,
            "ratio": None if self.ratio is None else self.ratio.to_json(),
        }


@dataclass(frozen=True)
class BenchReport(Rendered):
    """All rows of a benchmark, and the skipped systems.

    Attributes:
        rows: rows by workload, in the order of the arguments.
        skipped: skipped baselines, with the reason.
        absent: a line per system and workload without the operator, and per workload that is not timed.
    """

    rows: tuple[BenchRow, ...]
    skipped: Mapping[str, str]
    absent: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether something was timed, and no system failed."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def ratio(self, workload: str) -> Ratio | None:
        """Time of the fastest baseline over ours (`best_of`): above 1 if ours is faster; None if one of the two is missing.

        Baselines that compute in a narrower precision than ours are left out: they solve an easier problem.
        """
        narrower = self.narrower(workload)
        others = [r.ratio for r in self.rows if r.workload == workload and r.ok and r.ratio is not None and r not in narrower]
        return best_of(others)

    def narrower(self, workload: str) -> list[BenchRow]:
        """The baselines that compute in a narrower precision than ours, which `ratio` leaves out."""
        rows = [r for r in self.rows if r.workload == workload and r.ok]
        eps = next((EPS.get(r.precision, math.inf) for r in rows if r.system == OURS), 0.0)
        return [r for r in rows if r.ratio is not None and EPS.get(r.precision, 0.0) > eps]

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith bench --json`: the rows, the ratio of the best baseline to ours of each workload, and reasons."""
        best = {w: self.ratio(w) for w in dict.fromkeys(r.workload for r in self.rows)}
        return {
            "rows": [row.to_json() for row in self.rows],
            "best": {w: None if found is None else found.to_json() for w, found in best.items()},
            "skipped": dict(self.skipped),
            "absent": list(self.absent),
        }

    def render(self) -> RenderableType:
        """A table per workload for a terminal, fastest system first."""
        workloads = dict.fromkeys(r.workload for r in self.rows if r.ok)
        parts: list[RenderableType] = [self._table(w) for w in workloads]
        parts += [printable(LEGEND, style="dim")] if workloads else []
        ratios = [ratio for ratio in map(self.ratio, workloads) if ratio is not None]
        parts += [printable(f"not decided: {text}") for text in dict.fromkeys(r.advice for r in ratios if r.advice)]
        parts += [printable(f"! {r.workload}: {r.system}: {r.note}", style="red") for r in self.rows if not r.ok]
        parts += [printable(f"skipped: {name}: {why}", style="dim") for name, why in self.skipped.items()]
        parts += [printable(f"skipped: {text}", style="dim") for text in self.absent]
        return Group(*parts)

    def _table(self, workload: str) -> Table:
        rows = sorted([r for r in self.rows if r.workload == workload and r.median], key=lambda r: r.median or 0.0)
        cells = [
            [
                r.system,
                microseconds(r.median, r.clean),
                microseconds(r.minimum),
                microseconds(r.p90),
                rate(r.gflops),
                "1.00" if r.system == OURS else "-" if r.ratio is None else str(r.ratio),
                r.precision or "-",
                "-" if r.error is None else f"{r.error:.1e}",
                r.note,
            ]
            for r in rows
        ]
        title = workload + self._headline(workload)
        if any(not r.clean for r in rows):
            title += NOISY
        columns = ["system", "median us", "min us", "p90 us", "GFLOP/s", "/ ours", "precision", "error", "how"]
        return plain_table(title, columns, cells, left=["precision", "how"])

    def _headline(self, workload: str) -> str:
        """The ratio of the best baseline to ours with its verdict, and which baselines it leaves out."""
        best = self.ratio(workload)
        narrower = self.narrower(workload)
        left_out = []
        for precision in dict.fromkeys(r.precision for r in narrower):
            names = [r.system for r in narrower if r.precision == precision]
            left_out.append(f"{' and '.join(names)} {'computes' if len(names) == 1 else 'compute'} in {precision}")
        own = next((r.precision for r in self.rows if r.workload == workload and r.system == OURS and r.ok), "")
        text = "" if best is None else f": best baseline / ours = {best}, {_SAID.get(best.verdict, best.verdict)}"
        if left_out:
            text += f" ({f'of {own} baselines' if best is not None else f'no baseline computes in {own}'}; {', '.join(left_out)})"
        return text
