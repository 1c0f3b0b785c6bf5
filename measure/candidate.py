"""A candidate as plain data: the workload as script text, the trace of a sketch as JSON, and one row of integers.

A request to build one is complete in itself: 5 KB of text cost 20 us to send, where building takes 30 ms, so it may go to any
process on any machine, and a process that was replaced needs to be told nothing.  What is dear is reading the texts,
and that is done once: a builder remembers the programs and the parametric sketches that it has met.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from tunesmith.codegen.params import param_specs
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, evaluate
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.measure.evaluator.correctness import tolerance_of
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule, concretize, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import BuildError, InternalError, RecordError, ScriptError, UserError

Candidate = tuple[int, Sequence[int]]
"""Index of the sketch among those of the task, and the row: a tuple or a line of a population."""

Reference = Callable[[Sequence[Array]], Sequence[Array]]
"""What a workload computes: inputs in the order of the arguments to outputs in the order of the arguments."""

_REMEMBERED = 256
T = TypeVar("T")


class SketchLike(Protocol):
    """What is measured of a sketch: its name, unique in the task, and its steps."""

    @property
    def name(self) -> str: ...
    @property
    def trace(self) -> Trace: ...


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """The least that is a sketch."""

    name: str
    trace: Trace


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One candidate for a builder.

    Attributes:
        workload: script text of the unscheduled function.
        trace: the sketch's trace as JSON text; decisions in it are not looked at.
        row: a value for each number that the trace samples.
        target: the target with all its facts, as JSON text.
        check_law: replay the trace concretely too, and compare the two programs.
    """

    workload: str
    trace: str
    row: tuple[int, ...]
    target: str
    check_law: bool = False


@dataclass(frozen=True)
class MeasureTask:
    """A workload and the sketches whose rows are to be measured.

    Args:
        func: the unscheduled function.
        sketches: what candidates refer to by index.
        reference: computes the right outputs, with numpy say.  Without one the unscheduled function is compiled and run
            once for it.
        name: as people call it; the name of the function by default.
        ranges: of inputs, by name of the argument; see `argument_data`.
        tolerance: relative tolerance of the comparison; by default it follows from the function.
    """

    func: PrimFunc
    sketches: Sequence[SketchLike]
    reference: Reference | None = None
    name: str = ""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    tolerance: float | None = None

    def __post_init__(self) -> None:
        names = [s.name for s in self.sketches]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise UserError(f"sketches of one task have different names; {', '.join(twice)} occurs twice")

    @cached_property
    def digest(self) -> str:
        """Key of the workload in records."""
        return structural.digest(self.func)

    @cached_property
    def script(self) -> str:
        """The function as text.

        Raises:
            InternalError: the text reads back as another function.
        """
        text = script(self.func)
        found = structural.difference(parse_function(text), self.func)
        if found is not None:
            raise InternalError(f"the script of {self.func.name} reads back as another program, at {found}\n{text}")
        return text

    @cached_property
    def traces(self) -> tuple[str, ...]:
        """The sketches' traces as JSON text."""
        return tuple([json.dumps(s.trace.to_json(), separators=(",", ":")) for s in self.sketches])

    @cached_property
    def params(self) -> tuple[ParamSpec, ...]:
        """The function's arguments."""
        return tuple(param_specs(self.func))

    @cached_property
    def relative_tolerance(self) -> float:
        """See `correctness`."""
        return tolerance_of(self.func) if self.tolerance is None else self.tolerance

    def request(self, candidate: Candidate, target: str, check_law: bool = False) -> BuildRequest:
        """What to send to a builder.

        Raises:
            UserError: there is no sketch of that index.
        """
        index, row = candidate
        if not 0 <= index < len(self.sketches):
            raise UserError(f"a candidate names sketch {index}; the task {self.name or self.func.name} has {len(self.sketches)}")
        return BuildRequest(self.script, self.traces[index], tuple([int(x) for x in row]), target, check_law)


def parse_function(text: str) -> PrimFunc:
    """The one function of a script.  ScriptError if it is none, or a module."""
    found = parse(text)
    if isinstance(found, IRModule):
        raise ScriptError("a workload is one function, and the script holds a module")
    return found


class SketchCache:
    """Programs of candidates: each workload is parsed once, each sketch replayed once with its Params open.

    Holds the last few hundred of each.  For one thread at a time.
    """

    def __init__(self) -> None:
        self._workloads: OrderedDict[str, PrimFunc] = OrderedDict()
        self._sketches: OrderedDict[tuple[str, str], tuple[Trace, Schedule]] = OrderedDict()

    def workload(self, text: str) -> PrimFunc:
        """The unscheduled function."""
        return _remember(self._workloads, text, lambda: parse_function(text))

    def program(self, request: BuildRequest) -> PrimFunc:
        """The candidate's program.

        Raises:
            BuildError: the row does not belong to the sketch, or breaks one of its constraints.
            RecordError, ScheduleError, ScriptError: the texts make no sketch.
        """
        _, sketch = self._sketch(request)
        row = request.row
        if len(row) != len(sketch.params):
            raise BuildError(f"the row {list(row)} has {len(row)} values, and the sketch samples {len(sketch.params)}")
        values = dict(zip(sketch.params, row, strict=True))
        variables = dict[Var, int](values.items())
        for c in sketch.constraints:
            value = evaluate(c.expr, variables)
            if value > 0 if c.kind == "le0" else value != 0:
                rule = "<= 0" if c.kind == "le0" else "== 0"
                raise BuildError(f"the row {list(row)} breaks the constraint [{c.label}] of its sketch: {c.expr!r} is {value}, not {rule}")
        return concretize(sketch.func, values)

    def broken_law(self, request: BuildRequest, program: PrimFunc) -> str:
        """Where the program of the row differs from the replay of its trace; empty if they are the same, as they must be."""
        trace, _ = self._sketch(request)
        replayed = replay(trace.with_row(request.row), self.workload(request.workload)).func
        found = structural.difference(program, replayed)
        if found is None:
            return ""
        return (
            f"the sketch with the row {list(request.row)} put in is not what its trace gives with these decisions, at {found}\n"
            f"{request.workload}\n{trace.with_row(request.row).as_python()}"
        )

    def _sketch(self, request: BuildRequest) -> tuple[Trace, Schedule]:
        return _remember(self._sketches, (request.workload, request.trace), lambda: self._replay(request))

    def _replay(self, request: BuildRequest) -> tuple[Trace, Schedule]:
        try:
            data: Any = json.loads(request.trace)
        except ValueError as error:
            raise RecordError(f"the trace of a candidate is not JSON: {error}") from None
        trace = Trace.from_json(data)
        # The domains are not in a trace, and not needed: what a row may hold is the search's business.
        schedule = Schedule(self.workload(request.workload), parametric=True)
        for instruction in trace.instructions:
            apply_instruction(schedule, instruction, None)
        return trace, schedule


K = TypeVar("K")


def _remember(known: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """The value of the key, made on first use; the value that was not used for longest goes first."""
    if key in known:
        known.move_to_end(key)
        return known[key]
    value = known[key] = make()
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
    return value
