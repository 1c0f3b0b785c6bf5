"""Define sketches, schedules with symbolic tile sizes, and the search space of a workload.

A candidate is a configuration: (sketch, row of integers).  Structural choices (caching, loop order) are separate sketches; every numeric
choice is a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.measure.candidate import ParametricProgram
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.schedule.state import Constraint
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.param_space import ParamSpace
from tunesmith.support.errors import ScheduleError


@dataclass(frozen=True)
class Sketch:
    """A schedule structure with symbolic tile sizes.

    Attributes:
        name: readable structural choices; unique in a space.
        trace: the steps without decisions.
        func: the unlowered parametric program.
        params: the columns of a row.
        constraints: the constraints on a row.
        error_growth: rounding errors relative to direct sums, see `ScheduleState.error_growth`.
    """

    name: str
    trace: Trace
    func: PrimFunc
    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...]
    error_growth: float = field(default=1.0, kw_only=True)

    @cached_property
    def space(self) -> ParamSpace:
        """The admissible rows."""
        return ParamSpace(self.params, self.constraints)

    @cached_property
    def timed(self) -> PrimFunc:
        """The parametric program that is timed: without computations on constants, which run once."""
        hoisted = hoist_constant_packing(self.func)
        return self.func if hoisted is None else hoisted.main

    @property
    def program(self) -> ParametricProgram:
        """What builders instantiate, so that they do not replay the trace."""
        return ParametricProgram(self.func, self.params, self.constraints)

    def analytic(self, target: Target) -> AnalyticModel:
        """The analytic model of the rows on `target`; cached across searches."""
        model = self.features(target).analytic
        assert model is not None
        return model

    def features(self, target: Target) -> FeatureProgram:
        """The feature program of the rows on `target`; cached across searches."""
        if target not in self._features:
            self._features[target] = FeatureProgram(self.timed, self.params, self.constraints, target=target)
        return self._features[target]

    def use(self, space: ParamSpace, program: FeatureProgram | None) -> None:
        """Take the admissible rows of this sketch, and its feature program, which were made elsewhere."""
        self.__dict__["space"] = space
        if program is not None:
            assert program.target is not None
            self._features[program.target] = program

    @cached_property
    def _features(self) -> dict[Target, FeatureProgram]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        """The dataclass fields only: compiled code cannot be pickled."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def concretize(self, row: tuple[int, ...]) -> PrimFunc:
        """The program of a row."""
        return concretize(self.func, dict(zip(self.params, row, strict=True)))

    def trace_of(self, row: tuple[int, ...]) -> Trace:
        """The trace with the decisions of a row, which replays the candidate without the sketch."""
        return self.trace.with_configuration(row)


def make_sketch(name: str, func: PrimFunc, schedule: Callable[[Schedule], None]) -> Sketch:
    """Run `schedule` parametrically on `func`.  Raises ScheduleError if a step is refused."""
    s = Schedule(func, parametric=True)
    schedule(s)
    return Sketch(name, s.trace, s.func, tuple(s.params), tuple(s.constraints), error_growth=s.error_growth)


@dataclass(frozen=True)
class Space:
    """The sketches of one workload.

    Attributes:
        sketches: the sketches with admissible rows.
        left_out: a line for each sketch without admissible rows: its name and the constraints that no row satisfies.
        refused: a line for each schedule that a primitive refused: its rule, its name and the reason.
        plain: a line for each block that no structure of the derived schedules matches, or whose structure is serial: its name and the
            reason.
    """

    sketches: tuple[Sketch, ...]
    left_out: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """A line for each schedule of a rule that is no sketch of the space: those of `left_out` and of `refused`."""
        return (*[f"dropped, no admissible configuration: {line}" for line in self.left_out], *self.refused)

    def size(self) -> int:
        """Number of candidates: the sum of the sketch sizes (an upper bound if there are joint constraints)."""
        return sum(s.space.size() for s in self.sketches)


def collect(
    name_and_schedule: list[tuple[str, Callable[[Schedule], None]]],
    func: PrimFunc,
    left_out: list[str] | None = None,
    refused: list[str] | None = None,
) -> list[Sketch]:
    """The sketches of named schedules; schedules that do not apply to the function are skipped.

    Args:
        name_and_schedule: named schedules.
        func: the unscheduled function.
        left_out: receives a line for each schedule that applies but has no admissible row.
        refused: receives a line for each schedule that a primitive refused.
    """
    out: list[Sketch] = []
    for name, schedule in name_and_schedule:
        try:
            sketch = make_sketch(name, func, schedule)
        except ScheduleError as error:
            if refused is not None:
                refused.append(f"{name!r}: {error.summary}")
            continue
        try:
            sketch.space  # noqa: B018  raises if no row is admissible
        except ScheduleError as error:
            if left_out is not None:
                left_out.append(f"{name}: {error.message}")
            continue
        out.append(sketch)
    return out
