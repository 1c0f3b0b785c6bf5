"""Sketch and Space: a trace applied once with symbolic tile sizes, and all of them for one workload.

A candidate is (sketch, row of integers).  Structural choices (what to cache where, which order) are different sketches;
everything numeric is a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.schedule.state import Constraint
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.param_space import ParamSpace
from tunesmith.support.errors import ScheduleError


@dataclass(frozen=True)
class Sketch:
    """One structure of a schedule, with its tile sizes open.

    Attributes:
        name: the structural choices, readable; unique in a space.
        trace: the steps, without decisions.
        func: the raw parametric program.
        params: the columns of a row.
        constraints: what a row must meet.
    """

    name: str
    trace: Trace
    func: PrimFunc
    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...]

    @cached_property
    def space(self) -> ParamSpace:
        """The admissible rows."""
        return ParamSpace(self.params, self.constraints)

    @cached_property
    def timed(self) -> PrimFunc:
        """The parametric program whose calls are timed: without what is computed once from constants."""
        lifted = hoist_constant_packing(self.func)
        return self.func if lifted is None else lifted.main

    def analytic(self, target: Target) -> AnalyticModel:
        """The analytic model of its rows on `target`; made once, however many searches ask."""
        model = self.features(target).analytic
        assert model is not None
        return model

    def features(self, target: Target) -> FeatureProgram:
        """The feature program of its rows on `target`; made once, however many searches ask."""
        if target not in self._features:
            self._features[target] = FeatureProgram(self.timed, self.params, self.constraints, target=target)
        return self._features[target]

    @cached_property
    def _features(self) -> dict[Target, FeatureProgram]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Without what was compiled from it: machine code stays in its process."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def concretize(self, row: tuple[int, ...]) -> PrimFunc:
        """The program of a row."""
        return concretize(self.func, dict(zip(self.params, row, strict=True)))

    def trace_of(self, row: tuple[int, ...]) -> Trace:
        """The trace of a row: with it, the candidate can be replayed without the sketch."""
        return self.trace.with_row(row)


def make_sketch(name: str, func: PrimFunc, schedule: Callable[[Schedule], None]) -> Sketch:
    """Run `schedule` parametrically on `func`.  Raises ScheduleError when a step refuses."""
    s = Schedule(func, parametric=True)
    schedule(s)
    return Sketch(name, s.trace, s.func, tuple(s.params), tuple(s.constraints))


@dataclass(frozen=True)
class Space:
    """The sketches of one workload.

    Attributes:
        sketches: those with admissible rows.
        left_out: those without, a line each: the name, and which constraints no row meets.
    """

    sketches: tuple[Sketch, ...]
    left_out: tuple[str, ...] = ()

    def size(self) -> int:
        """Candidates: the sum of the sketches' sizes (an upper bound where joint constraints exist)."""
        return sum(s.space.size() for s in self.sketches)


def collect(
    name_and_schedule: list[tuple[str, Callable[[Schedule], None]]], func: PrimFunc, left_out: list[str] | None = None
) -> list[Sketch]:
    """The sketches that can be made; a structure that does not fit this workload is left out.

    Args:
        name_and_schedule: named schedules.
        func: what they are applied to.
        left_out: gets a line for each structure that fits and has no admissible row.
    """
    out: list[Sketch] = []
    for name, schedule in name_and_schedule:
        try:
            sketch = make_sketch(name, func, schedule)
        except ScheduleError:
            continue
        try:
            sketch.space  # noqa: B018  an empty table is found here
        except ScheduleError as error:
            if left_out is not None:
                left_out.append(f"{name}: {error.message}")
            continue
        out.append(sketch)
    return out
