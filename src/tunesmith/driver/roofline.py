"""Compare the time of each function of a model with the least time that the machine needs for it (source: Williams et al., 2009).

The least time of a function is the larger one of its arithmetic at the peak of the multiply-add units, and of its data: weights from main
memory, other tensors from the last-level cache, or from main memory if they exceed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import RenderableType

from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import plain_table
from tunesmith.ir.analysis.least_time import Work
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import MachineRates
from tunesmith.runtime.profile import Profile


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """All calls of one function in a run of the model.

    Attributes:
        function: its name.
        calls: number of calls.
        seconds: of all calls together.
        gflops: arithmetic of direct sums by this time, GFLOP/s; None if it is not known.
        least: the least time of all calls, seconds; None if it is not known.
        bound: "arithmetic" or "data", by the larger least time; empty if it is not known.
    """

    function: str
    calls: int
    seconds: float
    gflops: float | None
    least: float | None
    bound: str


@dataclass(frozen=True, slots=True)
class Roofline(Rendered):
    """The functions of a model, the longest time first, and the rates of the machine at that time.

    Attributes:
        rows: the functions.
        rates: measured just before the model.
        remark: about a busy machine; empty for a quiet one.
    """

    rows: tuple[RooflineRow, ...]
    rates: MachineRates
    remark: str = ""

    def render(self) -> RenderableType:
        """A table for a terminal."""
        whole = sum(r.seconds for r in self.rows) or 1.0
        title = (
            f"{whole * 1e3:.4g} ms; float32 peak {self.rates.peak_gflops:.0f} GFLOP/s, last-level cache {self.rates.l3_gbs:.0f} GB/s, "
            f"memory {self.rates.dram_gbs:.0f} GB/s{f'; {self.remark}' if self.remark else ''}"
        )
        cells = [
            [
                r.function,
                str(r.calls),
                f"{r.seconds * 1e6:.1f}",
                f"{r.seconds / whole:.1%}",
                "-" if r.gflops is None else f"{r.gflops:.0f}",
                "-" if r.least is None else f"{r.least * 1e6:.1f}",
                "-" if r.least is None or not r.seconds else f"{r.least / r.seconds:.0%}",
                r.bound or "-",
            ]
            for r in self.rows
        ]
        return plain_table(
            title, ["function", "calls", "us", "share", "GFLOP/s", "least us", "least / us", "bound by"], cells, left=["bound by"]
        )


def roofline(profile: Profile, functions: Mapping[str, object], rates: MachineRates, target: Target) -> Roofline:
    """The rows of a profile by function; `functions` are the unscheduled ones by name."""
    seconds: dict[str, list[float]] = {}
    for row in profile:
        seconds.setdefault(row.function, []).append(row.microseconds * 1e-6)
    rows = []
    for function, each in seconds.items():
        func, total = functions.get(function.removesuffix("__packed")), sum(each)
        work = Work.of(func) if isinstance(func, PrimFunc) else None
        if work is None:
            rows.append(RooflineRow(function, len(each), total, None, None, ""))
            continue
        arithmetic, data = work.seconds(rates, target.l3_bytes)
        gflops = None if work.operations is None or not total else work.operations * len(each) / total * 1e-9
        least = max(arithmetic, data) * len(each)
        rows.append(RooflineRow(function, len(each), total, gflops, least, "arithmetic" if arithmetic >= data else "data"))
    return Roofline(tuple(sorted(rows, key=lambda r: -r.seconds)), rates, profile.remark)
