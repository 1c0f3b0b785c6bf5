"""Convert records to training data: features, times and tasks of measured programs as arrays.

A record identifies its program by workload, trace and row.  Records of one sketch differ only in the row, so each sketch is rebuilt once,
parametrically, and its feature program runs over all of its rows: 1400 records of 74 sketches take 4 s, nearly all of it for the
sketches.  Only the scheduling steps of a record are executed; records that cannot be rebuilt are counted and reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tunesmith.costmodel.features.feature_program import FeatureProgram, gather
from tunesmith.costmodel.models.sample_weights import sample_weights
from tunesmith.datasets.family import family
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.record import target_key
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.support.array_types import BoolArray, Float32Array, Float64Array, Int64Array
from tunesmith.support.errors import RecordError, TunesmithError, UserError
from tunesmith.support.html_table import html_paragraph, html_table


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured program as plain data.

    Attributes:
        workload: digest of the workload.
        target: identity of the target, as JSON data.
        sketch: name of the sketch; empty for a schedule written by hand.
        trace: the schedule as JSON data; its decisions are ignored.
        row: the values that the trace samples.
        seconds: median time; inf if the program failed.
        clean: whether no other process disturbed the measurement.
    """

    workload: str
    target: Mapping[str, object]
    sketch: str
    trace: Sequence[object]
    row: Sequence[int]
    seconds: float
    clean: bool = True


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A workload on a target: the scope within which times are comparable.

    Attributes:
        workload: digest.
        name: display name, such as `matmul(m=512,n=512,k=512)`.
        target: identity as canonical text.
    """

    workload: str
    name: str
    target: str

    @property
    def family(self) -> str:
        """The operator family, see `datasets.family`."""
        return family(self.name)


@dataclass(slots=True)
class Refused:
    """Records that cannot be used: their total number, and the number for each reason."""

    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1) -> None:
        """Count `count` skipped records with this reason."""
        self.count += count
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    def __str__(self) -> str:
        return "\n".join([f"{self.count} records skipped", *[f"  {n}: {why}" for why, n in self.reasons.items()]])


class TrainingSet:
    """Measured programs with their features; see `training_set`.

    Attributes:
        tasks: the tasks, in the order of their first program.
        groups: int64 [N], the task of each program, an index into `tasks`.
        seconds: float64 [N], inf for failed programs.
        refused: records that were skipped.
        clean: bool [N], whether no other process disturbed a measurement.
    """

    def __init__(
        self,
        tasks: Sequence[TaskKey],
        groups: Int64Array,
        seconds: Float64Array,
        sketches: Sequence[_SketchRows],
        refused: Refused,
        clean: BoolArray | None = None,
    ) -> None:
        self.tasks, self.groups, self.seconds, self.refused = tuple(tasks), groups, seconds, refused
        self.clean = np.ones(len(seconds), np.bool_) if clean is None else clean
        self._sketches = sketches
        self._features: dict[str, Float32Array] = {}

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def ran(self) -> BoolArray:
        """bool [N], the programs that did not fail."""
        return np.isfinite(self.seconds)

    @property
    def weights(self) -> Float64Array:
        """float64 [N], the weight of each program in training: see `sample_weights`; failures have that of clean measurements."""
        return sample_weights(self.clean | ~self.ran)

    def _repr_html_(self) -> str:
        """The set in a notebook: programs per task, those that ran, and of these the ones with a clean measurement."""
        rows = []
        for i, task in enumerate(self.tasks):
            own, ran = self.groups == i, self.ran & (self.groups == i)
            best = f"{self.seconds[ran].min() * 1e6:.4g}" if ran.any() else "-"
            rows.append([task.name, str(own.sum()), str(ran.sum()), str((ran & self.clean).sum()), best])
        title = f"{len(self)} programs of {len(self.tasks)} tasks"
        refused = html_paragraph(str(self.refused)) if self.refused.count else ""
        return html_table(title, ["task", "programs", "ran", "clean", "best us"], rows) + refused

    def features(self, inputs: str) -> Float32Array:
        """The features of all programs for a model with these `CostModel.inputs`; computed once."""
        found = self._features.get(inputs)
        if found is None:
            parts = [s.program.inputs(s.rows, inputs) for s in self._sketches]
            found = self._features[inputs] = gather(parts, [s.positions for s in self._sketches])
        return found


@dataclass(slots=True)
class _SketchRows:
    """A rebuilt sketch: its feature program, its rows, and their positions among all programs."""

    program: FeatureProgram
    rows: Int64Array
    positions: Int64Array


def training_set(
    measured: Iterable[Measured],
    workloads: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    target_of: Callable[[Mapping[str, object]], Target] = Target.from_json,
    refused: Refused | None = None,
) -> TrainingSet:
    """The training set of the programs of records.

    Args:
        measured: records of any workloads and targets, in any order; a program that occurs twice counts twice.
        workloads: script text of each workload, by digest.
        names: display names by digest; the digest by default.
        target_of: maps an identity to a target with the rates for the analytic cost; by default estimates for the processor.  Searches
            use measured rates, so a model for a search should be trained with the same.
        refused: records that were skipped before; records that are skipped here are added.
    Raises:
        UserError: no record can be used; the message contains the reasons.
    """
    refused = Refused() if refused is None else refused
    sketches = _Sketches(workloads, target_of)
    tasks: dict[TaskKey, int] = {}
    groups: list[int] = []
    seconds: list[float] = []
    clean: list[bool] = []
    found: dict[tuple[TaskKey, str], tuple[list[Measured], FeatureProgram]] = {}
    for key, same in _by_sketch(measured, workloads, names or {}).items():
        try:
            found[key] = same, sketches.program(same[0])
        except Exception as error:  # arguments of steps come from files, and invalid ones may raise anything in a primitive
            refused.add(f"{key[0].name}, sketch {same[0].sketch or 'by hand'!r}: {_first_line(error)}", len(same))
    rows: list[_SketchRows] = []
    for (task, _), (same, program) in found.items():
        usable = _usable(same, program, f"{task.name}, sketch {same[0].sketch or 'by hand'!r}", refused)
        if usable:
            at = np.arange(len(seconds), len(seconds) + len(usable), dtype=np.int64)
            width = len(program.analysis.params)
            rows.append(_SketchRows(program, np.array([m.row for m in usable], np.int64).reshape(-1, width), at))
            groups += [tasks.setdefault(task, len(tasks))] * len(usable)
            seconds += [m.seconds for m in usable]
            clean += [m.clean for m in usable]
    if not seconds:
        raise UserError(f"no record can be used for training: {refused if refused.count else 'there is none'}")
    return TrainingSet(list(tasks), np.array(groups, np.int64), np.array(seconds, np.float64), rows, refused, np.array(clean, np.bool_))


def _by_sketch(
    measured: Iterable[Measured], workloads: Mapping[str, str], names: Mapping[str, str]
) -> dict[tuple[TaskKey, str], list[Measured]]:
    """The records grouped by task and by steps without decisions."""
    out: dict[tuple[TaskKey, str], list[Measured]] = {}
    for m in measured:
        name = names.get(m.workload) or m.workload
        steps = json.dumps([x[:3] if isinstance(x, list) else x for x in m.trace], separators=(",", ":"))
        out.setdefault((TaskKey(m.workload, name, target_key(m.target)), steps), []).append(m)
    return out


def _usable(same: Sequence[Measured], program: FeatureProgram, where: str, refused: Refused) -> list[Measured]:
    """The records whose rows are admissible in the sketch."""
    width = len(program.analysis.params)
    fitting = [m for m in same if len(m.row) == width]
    if len(fitting) < len(same):
        refused.add(f"{where}: the row does not have the {width} values that the trace samples", len(same) - len(fitting))
    if not fitting or not program.constraints:
        return fitting
    ok = program.admissible(np.array([m.row for m in fitting], np.int64).reshape(-1, width))
    if not ok.all():
        refused.add(f"{where}: the row violates a constraint of the sketch", int((~ok).sum()))
    return [m for m, good in zip(fitting, ok, strict=True) if good]


class _Sketches:
    """Feature programs of sketches; each workload is parsed once."""

    def __init__(self, workloads: Mapping[str, str], target_of: Callable[[Mapping[str, object]], Target]) -> None:
        self._scripts, self._target_of = workloads, target_of
        self._functions: dict[str, PrimFunc] = {}
        self._targets: dict[str, Target] = {}

    def program(self, m: Measured) -> FeatureProgram:
        """The feature program of a record's sketch, for the timed part: without computations on constants, which run once."""
        schedule = Schedule(self._function(m.workload), parametric=True)
        for instruction in Trace.from_json(list(m.trace)).instructions:
            apply_instruction(schedule, instruction, None)
        hoisted = hoist_constant_packing(schedule.func)
        func = schedule.func if hoisted is None else hoisted.main
        # NumPy: a log has hundreds of rows per sketch, for which compilation would take longer than evaluation.
        return FeatureProgram(func, schedule.params, schedule.constraints, target=self._target(m.target), backend="numpy")

    def _function(self, digest: str) -> PrimFunc:
        if digest not in self._functions:
            if digest not in self._scripts:
                raise RecordError(f"the program of workload {digest} is not among the workloads")
            self._functions[digest] = parse_function(self._scripts[digest])
        return self._functions[digest]

    def _target(self, identity: Mapping[str, object]) -> Target:
        key = target_key(identity)
        if key not in self._targets:
            self._targets[key] = self._target_of(identity)
        return self._targets[key]


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    text = lines[0] if lines else "no message"
    return text if isinstance(error, TunesmithError) else f"{type(error).__name__}: {text}"
