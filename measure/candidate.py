"""Represent candidates as plain data: workload as script text, sketch trace as JSON, configuration as a row of integers.

A build request is self-contained, so any process on any machine can serve it, and a replaced process needs no state.  Sending its 5 KB of
text costs 20 us; building takes 30 ms.  Parsing the text is expensive and done once: builders cache programs and parametric sketches.  The
parametric program comes with the request where the search has it, because replaying its trace takes as long as a build.
"""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

from tunesmith.codegen.params import param_specs
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Var, evaluate
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.specialize import sizes_of
from tunesmith.lower.tuned_sizes import TunedSizes
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.measure.evaluator.correctness import tolerance_of
from tunesmith.measure.evaluator.guard_pages import Array
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule, concretize, replay
from tunesmith.schedule.state import Constraint
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import BuildError, InternalError, RecordError, ScriptError, UserError

Candidate = tuple[int, Sequence[int]]
"""Index of the sketch in the task, and the configuration: a tuple or a row of a population array."""

Reference = Callable[[Sequence[Array]], Sequence[Array]]
"""Function from input arrays to expected output arrays, both in argument order."""

_CACHED = 256
T = TypeVar("T")


class SketchLike(Protocol):
    """Interface of a sketch for measurement: a name, unique in the task, and a trace."""

    @property
    def name(self) -> str: ...
    @property
    def trace(self) -> Trace: ...


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """Minimal implementation of `SketchLike`."""

    name: str
    trace: Trace


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Request to build one candidate.

    Attributes:
        workload: script text of the unscheduled function.
        trace: the sketch's trace as JSON text; its decisions are ignored.
        row: one value for each number that the trace samples.
        target: the target with all its facts, as JSON text.
        check_law: also replay the trace with concrete decisions, and compare the two programs.
        version: script text of the function with dynamic sizes of which the workload is one case.  The candidate is compiled for all of
            these sizes.  Empty if there is none.
        sizes: the sizes of the workload, for which that code is timed, in the order of the version's parameters.
        passes: changes of the lowering passes (`PassContext.changes`), as JSON text; empty if there are none.
        sketch: the parametric program of the trace, pickled (`ParametricProgram`); empty if the trace is to be replayed.
    """

    workload: str
    trace: str
    row: tuple[int, ...]
    target: str
    check_law: bool = False
    version: str = ""
    sizes: tuple[int, ...] = ()
    passes: str = ""
    sketch: bytes = field(default=b"", repr=False)

    def of_version(self) -> BuildRequest:
        """The request for the program with dynamic sizes."""
        return replace(self, workload=self.version, sketch=b"")


@dataclass(frozen=True, slots=True)
class ParametricProgram:
    """The program of a sketch, for all rows.

    Attributes:
        func: the unlowered program.
        params: the columns of a row.
        constraints: the constraints on a row.
    """

    func: PrimFunc
    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True)
class MeasureTask:
    """A workload, and the sketches whose configurations are measured.

    Args:
        func: the unscheduled function.
        sketches: candidates refer to them by index.
        reference: computes the expected outputs, for example with numpy.  Without it, the unscheduled function is compiled and
            run once to produce them.
        name: display name; by default the name of the function.
        ranges: value ranges of inputs by argument name; see `argument_data`.
        tolerance: relative tolerance of the comparison; by default derived from the function.
        sizes: the sizes of a function with dynamic shapes that the records are for; `func` is that function for the largest of them.
        version: that function for all of these sizes; None if they are single numbers.
        in_loop: a loop calls the function again and again, so that its constants are in a cache, whatever the policy says.
    """

    func: PrimFunc
    sketches: Sequence[SketchLike]
    reference: Reference | None = None
    name: str = ""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    tolerance: float | None = None
    sizes: TunedSizes | None = None
    version: PrimFunc | None = None
    in_loop: bool = False

    def __post_init__(self) -> None:
        names = [s.name for s in self.sketches]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise UserError(f"sketch names must be unique in a task; {', '.join(twice)} occurs twice")

    @cached_property
    def digest(self) -> str:
        """Key of the workload in records."""
        return structural.digest(self.func)

    @cached_property
    def script(self) -> str:
        """The function as script text.

        Raises:
            InternalError: the text does not parse back to the same function.
        """
        return _script(self.func)

    @cached_property
    def version_script(self) -> str:
        """The version as script text; empty if there is none."""
        return "" if self.version is None else _script(self.version)

    @cached_property
    def version_sizes(self) -> tuple[int, ...]:
        """The largest sizes of the version, in the order of its parameters."""
        if self.version is None or self.sizes is None:
            return ()
        return tuple([self.sizes.box.last[v.name] for v in sizes_of(self.version)])

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

    def request(self, candidate: Candidate, target: str, check_law: bool = False, passes: str = "") -> BuildRequest:
        """The build request of a candidate; the arguments are those of `BuildRequest`.

        Raises:
            UserError: no sketch has that index.
        """
        index, row = candidate
        if not 0 <= index < len(self.sketches):
            raise UserError(
                f"the candidate refers to sketch {index}, but the task {self.name or self.func.name} has {len(self.sketches)} sketch(es)"
            )
        numbers = tuple([int(x) for x in row])
        sketch = self._dumped(index)
        text, trace = self.script, self.traces[index]
        return BuildRequest(text, trace, numbers, target, check_law, self.version_script, self.version_sizes, passes, sketch)

    def _dumped(self, index: int) -> bytes:
        """The parametric program of a sketch, pickled at its first candidate; empty for a sketch that is only a trace."""
        made = self._programs.get(index)
        if made is None:
            program = getattr(self.sketches[index], "program", None)
            made = self._programs[index] = b"" if program is None else pickle.dumps(program)
        return made

    @cached_property
    def _programs(self) -> dict[int, bytes]:
        return {}


def _script(func: PrimFunc) -> str:
    """The text of a function.  Raises InternalError if it does not parse back to the same function."""
    text = script(func)
    found = structural.difference(parse_function(text), func)
    if found is not None:
        raise InternalError(f"the script of {func.name} reads back as another program, at {found}\n{text}")
    return text


def parse_function(text: str) -> PrimFunc:
    """The function of a script.  Raises ScriptError if the text is not a script or holds a module."""
    found = parse(text)
    if isinstance(found, IRModule):
        raise ScriptError("a workload must be a single function, but the script holds a module")
    return found


class SketchCache:
    """Cache of parsed workloads and of sketches replayed with symbolic parameters, from which candidates are instantiated.

    LRU caches of a few hundred entries each.  Not thread-safe.
    """

    def __init__(self) -> None:
        self._workloads: OrderedDict[str, PrimFunc] = OrderedDict()
        self._sketches: OrderedDict[tuple[str, str], ParametricProgram] = OrderedDict()

    def workload(self, text: str) -> PrimFunc:
        """The unscheduled function."""
        return _cached(self._workloads, text, lambda: parse_function(text))

    def program(self, request: BuildRequest) -> PrimFunc:
        """The candidate's program.

        Raises:
            BuildError: the row has the wrong length for the sketch, or violates one of its constraints.
            RecordError, ScheduleError, ScriptError: the texts do not describe a sketch.
        """
        sketch = self._sketch(request)
        row = request.row
        if len(row) != len(sketch.params):
            raise BuildError(f"the row {list(row)} has {len(row)} values, but the sketch samples {len(sketch.params)}")
        values = dict(zip(sketch.params, row, strict=True))
        variables = dict[Var, int](values.items())
        for c in sketch.constraints:
            value = evaluate(c.expr, variables)
            if value > 0 if c.kind == "le0" else value != 0:
                rule = "<= 0" if c.kind == "le0" else "== 0"
                raise BuildError(
                    f"the row {list(row)} violates the constraint [{c.label}] of its sketch: {c.expr!r} is {value}, not {rule}"
                )
        return concretize(sketch.func, values)

    def broken_law(self, request: BuildRequest, program: PrimFunc) -> str:
        """Report of the first difference between the row's program and the replay of its trace; empty if equal, as required."""
        trace = _trace(request)
        replayed = replay(trace.with_configuration(request.row), self.workload(request.workload)).func
        found = structural.difference(program, replayed)
        if found is None:
            return ""
        return (
            f"the sketch instantiated with the row {list(request.row)} differs from its trace replayed with these decisions, at {found}\n"
            f"{request.workload}\n{trace.with_configuration(request.row).as_python()}"
        )

    def _sketch(self, request: BuildRequest) -> ParametricProgram:
        return _cached(self._sketches, (request.workload, request.trace), lambda: self._made(request))

    def _made(self, request: BuildRequest) -> ParametricProgram:
        if request.sketch:
            program: ParametricProgram = pickle.loads(request.sketch)
            return program
        # A trace does not hold the parameter domains; they are not needed, as the search checks rows against them.
        schedule = Schedule(self.workload(request.workload), parametric=True)
        for instruction in _trace(request).instructions:
            apply_instruction(schedule, instruction, None)
        return ParametricProgram(schedule.func, tuple(schedule.params), tuple(schedule.constraints))


def _trace(request: BuildRequest) -> Trace:
    """The trace of a request.  Raises RecordError if its text is not one."""
    try:
        data: object = json.loads(request.trace)
    except ValueError as error:
        raise RecordError(f"the trace of a candidate is not JSON: {error}") from None
    return Trace.from_json(data)


K = TypeVar("K")


def _cached(cache: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """The cached value of a key, made on first use; the least recently used entry is evicted."""
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    value = cache[key] = make()
    if len(cache) > _CACHED:
        cache.popitem(last=False)
    return value
