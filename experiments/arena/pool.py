"""Build tabular benchmarks: pools of measured candidates of one workload on one target, and their tasks.

A pool is read from a tuning log or a record table.  Each configuration has one time in seconds, infinite if it failed, so that any
search can be replayed on it without hardware.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from tunesmith.experiments.arena.pool_space import PoolSketch, PoolTask
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Poly, Var, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.trace_template import template
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import Constraint
from tunesmith.schedule.trace import Trace
from tunesmith.search.samplers.proposals import METHODS
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.space.param_space import ParamSpace, Rows
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.array_types import Float64Array
from tunesmith.support.errors import BuildError, RecordError, UserError


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a pool.

    Attributes:
        sketch: name of the sketch.
        trace: the steps as JSON data; its decisions are ignored.
        row: the configuration, as Python integers.
        seconds: median time; infinite if the candidate failed.
        clean: whether no other process disturbed it; None if the time was not measured.
    """

    sketch: str
    trace: Sequence[object]
    row: tuple[int, ...]
    seconds: float
    clean: bool | None = None


@dataclass(frozen=True)
class MeasuredSketch:
    """The measured configurations of one sketch.

    Attributes:
        name: unique in the pool.
        trace: the steps as JSON text, without decisions.
        rows: [N, P], distinct, in lexicographic order.
        seconds: [N], inf for failures.
    """

    name: str
    trace: str
    rows: Rows = field(repr=False, compare=False)
    seconds: Float64Array = field(repr=False, compare=False)


@dataclass(frozen=True)
class Pool:
    """A tabular benchmark: measured candidates of one workload on one target; see `make_pool` and `load_pools`.  Picklable.

    Attributes:
        name: display name of the workload.
        script: the workload's program as text.
        target: the target as plain JSON.
        sketches: sorted by name, each with at least one configuration.
        skipped: number of unusable measurements: schedules without a sketch, or configurations that do not match theirs.
        measured, clean: measurements with a time, and how many of them no other process disturbed; 0 for synthetic times.
    """

    name: str
    script: str
    target: Mapping[str, object]
    sketches: tuple[MeasuredSketch, ...]
    skipped: int = 0
    measured: int = field(default=0, compare=False)
    clean: int = field(default=0, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the task: compiled code and tables are not transferable."""
        return {name: getattr(self, name) for name in ("name", "script", "target", "sketches", "skipped", "measured", "clean")}

    def __len__(self) -> int:
        """Number of candidates, including failures."""
        return sum(len(s.rows) for s in self.sketches)

    def renamed(self, name: str) -> Pool:
        """The same pool under another name."""
        return replace(self, name=name)

    @cached_property
    def workload(self) -> str:
        """Digest of the workload's program."""
        return structural.digest(self._func)

    @cached_property
    def digest(self) -> str:
        """Digest of the contents: equal for equal measurements, independent of order and file."""
        h = blake2b(digest_size=16)
        for text in (self.workload, json.dumps(self.target, sort_keys=True)):
            h.update(text.encode())
        for s in self.sketches:
            h.update(json.dumps([s.name, s.trace, list(s.rows.shape)]).encode())
            h.update(s.rows.astype("<i8").tobytes())
            h.update(s.seconds.astype("<f8").tobytes())
        return h.hexdigest()

    @cached_property
    def seconds(self) -> Float64Array:
        """Seconds of all candidates, sketch after sketch, [len(self)]."""
        return np.concatenate([s.seconds for s in self.sketches])

    @property
    def best(self) -> float:
        """Seconds of the fastest candidate."""
        return float(self.seconds.min())

    @cached_property
    def task(self) -> PoolTask:
        """The search task on the pool; the first use creates the workload's space.

        A sketch of the rules is used if its name, steps and configurations match the measurements, with its original space as the real
        space; any other sketch is replayed from its trace, and its real space is the product of the values in the pool.

        Raises:
            RecordError: a trace cannot be applied to the workload.
        """
        func, target = self._func, Target.from_json(self.target)
        try:
            known = {s.name: s for s in generate(func, target).sketches}
        except BuildError:  # no rule matches: the workload was scheduled by hand or by user-defined rules
            known = {}
        sketches = [_pool_sketch(s, known.get(s.name), func) for s in self.sketches]
        return PoolTask(self.name, func, target, sketches=tuple(sketches))

    def index(self, candidate: Candidate) -> int:
        """The index of a candidate in `seconds`.

        Raises:
            UserError: the candidate is not in the pool.
        """
        try:
            return self._indices[candidate]
        except (KeyError, TypeError):
            raise UserError(self._unknown(candidate)) from None

    def look_up(self, candidates: Sequence[Candidate]) -> list[Result]:
        """The measured result of each candidate.  Raises UserError as `index` does."""
        seconds = [float(self.seconds[self.index(c)]) for c in candidates]
        return [Result(c, s if math.isfinite(s) else None) for c, s in zip(candidates, seconds, strict=True)]

    @cached_property
    def _func(self) -> PrimFunc:
        return parse_function(self.script)

    @cached_property
    def _indices(self) -> dict[Candidate, int]:
        every = ((k, row) for k, s in enumerate(self.sketches) for row in s.rows.tolist())
        return {Candidate(k, tuple(row)): i for i, (k, row) in enumerate(every)}

    def _unknown(self, candidate: object) -> str:
        k = getattr(candidate, "sketch", None)
        if not isinstance(candidate, Candidate):
            what = f"{candidate!r}, which is not a Candidate"
        elif not isinstance(k, int) or not 0 <= k < len(self.sketches):
            what = f"sketch {k!r}; the pool has {len(self.sketches)} sketches"
        else:
            what = f"the row {list(candidate.row)} of the sketch {self.sketches[k].name!r}"
        return (
            f"not in the pool of {self.name}: {what}. A pool holds measured candidates only, which a sampler obtains through "
            f"the methods of its sketches' space ({METHODS})"
        )


def make_pool(name: str, script: str, target: Mapping[str, object], measurements: Iterable[Measurement]) -> Pool:
    """Build a pool from measurements.

    A candidate measured several times gets the median, where a failure counts as infinitely slow.

    Args:
        name: display name of the workload.
        script: program of the workload.
        target: the target as plain JSON, with its machine rates if known, which the analytic model uses.
        measurements: measurements in any order.
    Raises:
        UserError: no candidate ran.
        RecordError: a trace is invalid.
    """
    groups: dict[tuple[str, str], dict[tuple[int, ...], list[float]]] = {}
    columns: dict[str, int] = {}
    skipped = 0
    clean: list[bool] = []
    for m in measurements:
        text = json.dumps(template(m.trace), separators=(",", ":"))
        if text not in columns:
            columns[text] = _columns(Trace.from_json(json.loads(text)))
        if not m.sketch or len(m.row) != columns[text]:
            skipped += 1
            continue
        groups.setdefault((m.sketch, text), {}).setdefault(m.row, []).append(m.seconds)
        clean += [m.clean] if m.clean is not None and math.isfinite(m.seconds) else []
    names = [name for name, _ in groups]
    sketches = []
    for (sketch, text), rows in sorted(groups.items()):
        label = sketch if names.count(sketch) == 1 else f"{sketch} #{blake2b(text.encode(), digest_size=3).hexdigest()}"
        order = sorted(rows)
        table = np.array(order, np.int64).reshape(len(order), -1)
        sketches.append(MeasuredSketch(label, text, table, np.array([np.median(rows[r]) for r in order])))
    pool = Pool(name, script, dict(target), tuple(sketches), skipped, len(clean), sum(clean))
    if not sketches or not math.isfinite(pool.best):
        raise UserError(
            f"the pool of {name} holds {len(pool)} candidates, and none of them ran ({skipped} records have no sketch, or a row that "
            "does not match it). An arena needs measurements of a search"
        )
    return pool


def _columns(trace: Trace) -> int:
    """Number of values sampled by the trace."""
    return sum(len(i.outputs) for i in trace.instructions if i.kind.startswith("sample_"))


def _pool_sketch(measured: MeasuredSketch, known: Sketch | None, func: PrimFunc) -> PoolSketch:
    """The measured sketch of the rules if it matches, otherwise the sketch rebuilt from the trace."""
    rows = measured.rows
    steps = json.loads(measured.trace)
    if known is not None and json.loads(json.dumps(template(known.trace.to_json()))) == steps and known.space.admissible(rows).all():
        return PoolSketch(known.name, known.trace, known.func, known.params, known.constraints, known.space, rows)
    trace = Trace.from_json(steps)
    schedule = Schedule(func, parametric=True)
    try:
        for instruction in trace.instructions:
            apply_instruction(schedule, instruction, None)
    except UserError as error:
        raise RecordError(f"the trace of the sketch {measured.name!r} cannot be applied to its workload: {error}") from error
    return _with_domains(measured, trace, schedule)


def _with_domains(measured: MeasuredSketch, trace: Trace, schedule: Schedule) -> PoolSketch:
    """The sketch with Params whose domains are the values in the pool, because a trace does not contain the domains."""
    rows = measured.rows
    params = tuple([Param(p.name, rows[:, i].tolist()) for i, p in enumerate(schedule.params)])
    values: dict[Var, Poly] = {old: poly(new) for old, new in zip(schedule.params, params, strict=True)}
    allocs = {b: b.like(shape=[substitute_poly(e, values) for e in b.shape]) for b in schedule.func.allocs}
    func = schedule.func.with_(body=substitute(schedule.func.body, values, allocs), allocs=tuple(allocs.values()))
    constraints = tuple([Constraint(c.kind, substitute_poly(c.expr, values), c.label) for c in schedule.constraints])
    return PoolSketch(measured.name, trace, func, params, constraints, ParamSpace(params, ()), rows)
