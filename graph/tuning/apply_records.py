"""Schedule every function by its best tuning record, without search, sampling or measurement.

The result is deterministic for a log, a module and a target, on every machine.  Functions without a usable record are reported.

Logs are untrusted.  A record is used only if its trace, its configuration and the program are consistent, the scheduled program is well
formed, and its time is possible on the target.  Failures found later, during lowering and build, are passed to `refuse`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import ClassVar

from tunesmith.codegen.build import pass_changes
from tunesmith.graph.passes.place_functions import placed_like, target_of, unplaced
from tunesmith.graph.passes.store_rows import COPIES_ROW
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import version_for, with_versions
from tunesmith.lower.tuned_sizes import measured_function
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record, target_key
from tunesmith.schedule.schedule import replay
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import RecordError, UserError


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A function scheduled without a record.

    Attributes:
        func: the function.
        sketch: the structural choices of its schedule; empty if they have no name.
        error_growth: rounding errors of the schedule, relative to direct sums; None if they are not known.
    """

    func: PrimFunc
    sketch: str = ""
    error_growth: float | None = None


Untuned = Callable[[PrimFunc, Target], PrimFunc | Scheduled]
"""Schedules a function without a usable record."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of one function by a database.

    Attributes:
        function: name in the module.
        digest: digest of the unscheduled function, the key of its records.
        status: "used", "missing" (no verified record for this target), "refused" (the best record does not apply any more), "plain"
            (the default schedule is used for these sizes), or "external" (an external code generator compiles it).
        record: identity of the best record, empty if there is none.
        seconds: measured time of that record; None if there is none.
        reason: why no record was used, and what to do; empty if one was used.
        sizes: of a function with dynamic shapes, the sizes that this entry is about; such a function has an entry for each range of
            sizes with records, and one for all other sizes.
        sketch: the structural choices of the schedule, among them the algorithm; without a record, those that the analytic model chose.
        error_growth: rounding errors of the schedule, relative to direct sums, of root mean squares; None if they are not known.
    """

    function: str
    digest: str
    status: str
    record: str = ""
    seconds: float | None = None
    reason: str = ""
    sizes: str = ""
    sketch: str = ""
    error_growth: float | None = None

    def __str__(self) -> str:
        """The coverage in one line."""
        at = f" for {self.sizes}" if self.sizes else ""
        errors = ""
        if self.error_growth is not None and self.error_growth > 1:
            errors = f"errors {self.error_growth:.2g} times those of direct sums"
        if self.status == "used" and self.seconds is not None:
            how = "".join(f"{x}, " for x in (self.sketch, errors) if x)
            return f"{self.function}{at}: record {self.record} ({how}measured time {self.seconds * 1e6:.4g} us)"
        without = f"; its schedule without a record: {self.sketch}, {errors}" if errors else ""
        return f"{self.function} ({self.digest}){at}: {self.status}: {self.reason}{without}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A module after the pass, and the coverage of its functions, in order."""

    mod: IRModule
    coverage: tuple[Coverage, ...]


@dataclass(frozen=True)
class ApplyRecords:
    """A module pass `(mod, target) -> mod` for any position in a `Pipeline`; `apply` also returns the coverage.

    A record is used only for the workload and the target of its measurement.  Names of functions are kept, and functions other than
    PrimFuncs are unchanged.

    Args:
        database: the records, or the path of a log, which is read at each call of the pass.  Only records that were compiled with the
            passes of the current `PassContext` are used.
        target: target of the compilation; None for the target that the pass is called with.
        strict: reject a module that is not covered completely.
        untuned: schedules functions that are not covered; by default `default_schedule`.
        error_growth: largest growth of rounding errors, relative to direct sums, of the schedules that are used; slower records are used
            in place of those with larger errors.
    """

    database: Database | str | PathLike[str]
    target: Target | None = None
    strict: bool = False
    untuned: Untuned = field(default=default_schedule)
    error_growth: float = ERROR_GROWTH

    name: ClassVar[str] = "apply_records"

    def __call__(self, mod: IRModule, target: Target | None = None) -> IRModule:
        """Schedule every function of the module; raises as `apply` does.

        The attribute `coverage` of a function holds its coverage: a later application of any records keeps its schedule.
        """
        applied = self.apply(mod, target)
        entries: dict[str, list[dict[str, object]]] = {}
        for c in applied.coverage:
            entries.setdefault(c.function, []).append(asdict(c))
        changed = [name for name in entries if applied.mod[name] is not mod[name]]
        return (
            mod.update({name: _with_attr(applied.mod[name], COVERAGE, json.dumps(entries[name])) for name in changed}) if changed else mod
        )

    def apply(self, mod: IRModule, target: Target | None = None) -> Applied:
        """Schedule every function of the module and report the coverage.

        Args:
            mod: the module.
            target: target of the compilation; required if the pass has no target, else equal to it.
        Raises:
            UserError: the target is missing, or differs from the target of the pass.
            RecordError: `strict` is set and some functions have no usable record; the message lists all of them.
        """
        if not isinstance(self.database, Database):
            return replace(self, database=self.loaded).apply(mod, target)
        target = self._target(target)
        found = {name: self.find(name, func, target) for name, func in mod.items() if isinstance(func, PrimFunc)}
        coverage = tuple([c for _, entries in found.values() for c in entries])
        self._check(coverage, target)
        plain = {name: self._plain(mod[name], target) for name, (s, _) in found.items() if s is None}
        functions = {name: placed_like(plain[name].func if s is None else s, mod[name]) for name, (s, _) in found.items()}
        return Applied(mod.update(functions), _with_choices(coverage, plain))

    @property
    def loaded(self) -> Database:
        """The database, loaded if it is a log."""
        return self.database if isinstance(self.database, Database) else Database.from_log(self.database)

    def refuse(self, mod: IRModule, applied: Applied, broken: Mapping[str, str], target: Target | None = None) -> Applied:
        """Replace the schedules in the result of `apply` whose programs cannot be compiled.

        A broken function that used a record is scheduled by `untuned`; all others are scheduled by `default_schedule`.

        Args:
            mod: the module before `apply`.
            applied: the result of `apply`.
            broken: function name -> error message.
            target: as for `apply`.
        Raises:
            RecordError: `strict` is set and a function has no usable record.
        """
        target = self._target(target)
        used = {c.function for c in applied.coverage if c.status == "used"}
        coverage = tuple(
            [
                _refused(c, broken[c.function]) if c.function in broken and (c.status == "used" or c.function not in used) else c
                for c in applied.coverage
            ]
        )
        self._check(coverage, target)
        plain = {n: self._plain(mod[n], target, None if n in used else default_schedule) for n in broken}
        functions = {name: placed_like(made.func, mod[name]) for name, made in plain.items()}
        return Applied(applied.mod.update(functions), _with_choices(coverage, plain))

    def _target(self, given: Target | None) -> Target:
        if given is None and self.target is None:
            raise UserError("apply_records needs a target: create it with ApplyRecords(database, target), or call it with a target")
        if given is not None and self.target is not None and given.key != self.target.key:
            raise UserError(
                f"apply_records was created for {self.target} and is called for {given}: records of one target are never used for another. "
                "Create the pass without a target"
            )
        return given if given is not None else self.target  # type: ignore[return-value]  # one of them is there

    def _records(self, target: Target) -> Database:
        """The records that were compiled as the current `PassContext` compiles."""
        return self.loaded.compiled_with(pass_changes(target))

    def _check(self, coverage: Sequence[Coverage], target: Target) -> None:
        uncovered = [c for c in coverage if c.status in ("missing", "refused")]
        if self.strict and uncovered:
            lines = "\n".join(f"  {c}" for c in uncovered)
            raise RecordError(f"{len(uncovered)} of {len(coverage)} functions have no usable record for {target}:\n{lines}")

    def _plain(self, func: PrimFunc, target: Target, untuned: Untuned | None = None) -> Scheduled:
        """A function scheduled without a record, by default by `self.untuned`."""
        made = (untuned or self.untuned)(unplaced(func), target_of(func, target))
        if isinstance(made, PrimFunc):
            return Scheduled(made)
        if not isinstance(made, Scheduled):
            raise UserError(
                f"{getattr(self.untuned, '__name__', 'untuned')} returned {type(made).__name__} for {func.name}: "
                "a schedule for functions without a record must return a PrimFunc"
            )
        return made

    def find(self, name: str, func: PrimFunc, target: Target) -> tuple[PrimFunc | None, tuple[Coverage, ...]]:
        """The function scheduled by its best record, or None, and its coverage, one entry for each range of sizes.

        A function with an own target (`graph.passes.place_functions`) has the records of that one.
        """
        if func.attr(COVERAGE) is not None:
            return func, _coverage_of(name, func)
        func, target = unplaced(func), target_of(func, target)
        digest = structural.digest(func)
        if func.attr(COPIES_ROW) is not None:
            why = "it copies a row whose number is an argument: the default schedule"
            return None, (Coverage(name, digest, "plain", reason=why),)
        if sizes_of(func):
            return self._find_sizes(name, func, digest, target)
        record = self._records(target).best(digest, target.to_json(), func)
        if record is None:
            return None, (Coverage(name, digest, "missing", reason=self._why_missing(digest, target)),)
        try:
            record, scheduled, growth = self._applied(record, digest, target, func)
        except ErrorGrowthError as error:
            how = f"Tune it with Search(error_growth={self.error_growth:g}), or tunesmith tune --error-growth {self.error_growth:g}"
            reason = f"{error}, as are those of all its verified records. {how}"
            return None, (Coverage(name, digest, "refused", record.identity, _finite(record), reason),)
        except UserError as error:
            reason = f"its record does not apply: {error}. Tune it again"
            return None, (Coverage(name, digest, "refused", record.identity, _finite(record), reason),)
        return scheduled, (_used(Coverage(name, digest, "used"), record, growth),)

    def _applied(
        self, best: Record, digest: str, target: Target, func: PrimFunc, to: PrimFunc | None = None
    ) -> tuple[Record, PrimFunc, float]:
        """The fastest record whose rounding errors are within the limit, the function scheduled by it, and the growth of its errors; raises
        as `apply_record`."""
        try:
            return best, *_scheduled(best, func, to, self.error_growth)
        except ErrorGrowthError as error:
            records = self._records(target)
            for record in records.top(digest, target.to_json(), len(records)):
                with suppress(ErrorGrowthError):
                    return record, *_scheduled(record, func, to, self.error_growth)
            raise error

    def _find_sizes(self, name: str, func: PrimFunc, digest: str, target: Target) -> tuple[PrimFunc | None, tuple[Coverage, ...]]:
        """A function with dynamic shapes with a version for each range of sizes that has a record, and its coverage."""
        versions: list[tuple[SizeRanges, PrimFunc]] = []
        found: list[tuple[SizeRanges, Coverage]] = []
        for box, workload in self._records(target).tuned_sizes(digest, target.to_json()):
            at = Coverage(name, digest, "missing", sizes=str(box))
            try:
                measured = measured_function(func, box)
                record = self._records(target).best(workload, target.to_json(), measured)
                if record is None:
                    found.append((box, replace(at, reason=self._why_missing(workload, target))))
                    continue
                at = replace(at, record=record.identity, seconds=_finite(record))
                record, scheduled, growth = self._applied(record, workload, target, measured, version_for(func, box))
                at = _used(at, record, growth)
            except UserError as error:
                found.append((box, replace(at, status="refused", reason=f"its record does not apply: {error}. Tune it again")))
                continue
            versions.append((box, scheduled))
            found.append((box, at))
        if not any(a.overlaps(b) for (a, _), (b, _) in itertools.combinations(versions, 2)):
            versions.sort(key=lambda v: v[0])
        if not found:
            why = f"it has dynamic shapes, and the log has no record for them. Tune it for some sizes, as in sizes='{example_sizes(func)}'"
            return None, (Coverage(name, digest, "missing", reason=why),)
        rest = Coverage(name, digest, "plain", sizes="all other sizes", reason="the default schedule: no record is for these sizes")
        coverage = [c for _, c in sorted(found, key=lambda x: x[0])]
        return with_versions(self._plain(func, target).func, versions), (*coverage, rest)

    def _why_missing(self, digest: str, target: Target) -> str:
        """The reason for a missing record: no records, records only for other targets, or no valid record."""
        database = self._records(target)
        records = database.records(digest, target.to_json())
        if records:
            failed = sum(r.error is not None for r in records)
            verified = sum(r.verified for r in records)
            if verified:
                why = "a later run failed, or the time is impossible on the target"
                return f"none of its {len(records)} records is valid ({failed} failed; {verified} verified, but {why}). Tune it further"
            cause = _most_frequent_error(records)
            if failed == len(records):
                return f"every candidate failed ({failed}), most of them with: {cause}. Remove the cause before you tune it again"
            most = f", most of them with: {cause}" if failed else ""
            return f"none of its {len(records)} records is verified ({failed} failed{most}). Tune it further"
        others = sorted({target_key(r.target) for r in database.records(digest)})
        if others:
            return f"its records are for other targets: {'; '.join(others)}. Tune it for this one"
        changed = database.changes_measured(digest)
        if changed:
            how = ", ".join(c or "the default passes" for c in changed)
            return f"its records were measured with other passes: {how}. Tune it with those of the current PassContext"
        bad = database.report.bad_count
        damaged = f" ({bad} lines of the log could not be read: `tunesmith log verify` lists them)" if bad else ""
        return f"no record of this workload{damaged}. Tune it"


COVERAGE = "coverage"
"""Attribute of functions that `ApplyRecords` scheduled as a pass: their coverage as JSON text."""


def _coverage_of(name: str, func: PrimFunc) -> tuple[Coverage, ...]:
    """The coverage in the attribute of a scheduled function.  RecordError for other data."""
    try:
        return tuple([replace(Coverage(**entry), function=name) for entry in json.loads(str(func.attr(COVERAGE)))])
    except (ValueError, TypeError) as error:
        raise RecordError(f"the attribute {COVERAGE} of {name} is not what the pass apply_records wrote: {error}. Remove it") from error


def _with_attr(func: PrimFunc, key: str, value: str) -> PrimFunc:
    return func.with_(attrs=tuple(sorted({**dict(func.attrs), key: value}.items())))


def example_sizes(func: PrimFunc) -> str:
    """An example of the sizes to tune a function for: `n=1..128`."""
    return " ".join(f"{v.name}=1..128" for v in sizes_of(func))


class ErrorGrowthError(RecordError):
    """The rounding errors of a record's schedule exceed the limit."""


def apply_record(record: Record, func: PrimFunc, to: PrimFunc | None = None, error_growth: float = math.inf) -> PrimFunc:
    """Schedule a function by one record; the name of the function is kept.

    Args:
        record: a record of `func`.
        func: the measured function.
        to: the function to schedule, if it is not `func`: the same with dynamic sizes.
        error_growth: limit of the growth of rounding errors.
    Raises:
        ErrorGrowthError: the errors of the schedule are larger.
        RecordError: the record belongs to another workload, its trace is malformed, lacks decisions or has invalid arguments, or its
            fields are inconsistent.
        ScheduleError: a step is not applicable.
        ScriptError: the scheduled program is not well formed.
    """
    return _scheduled(record, func, to, error_growth)[0]


def _scheduled(record: Record, func: PrimFunc, to: PrimFunc | None, error_growth: float) -> tuple[PrimFunc, float]:
    """The result of `apply_record`, and the growth of its rounding errors."""
    digest = structural.digest(func)
    if record.workload != digest:
        raise RecordError(f"the record {record.identity} belongs to the workload {record.workload}; {func.name} is {digest}")
    trace = Trace.from_json(record.trace)
    row = trace.configuration()  # raises if a decision is missing: a replay must not sample
    try:
        replayed = replay(trace, func if to is None else to)
        if replayed.error_growth > error_growth:
            raise ErrorGrowthError(
                f"its errors are {replayed.error_growth:.2g} times those of direct sums, more than error_growth={error_growth:g}"
            )
        verify(replayed.func)
    except UserError:
        raise
    except Exception as error:  # logs are untrusted: primitives are called with arguments of any type
        raise RecordError(f"the trace of the record {record.identity} fails with {type(error).__name__}: {error}") from error
    if row != record.row and (record.sketch or record.row):
        raise RecordError(
            f"the record {record.identity} is inconsistent: its trace has the decisions {list(row)}, but its row is {list(record.row)}: "
            "the trace does not give the measured program"
        )
    return replayed.func if replayed.func.name == func.name else replayed.func.with_(name=func.name), replayed.error_growth


def _with_choices(coverage: Sequence[Coverage], plain: Mapping[str, Scheduled]) -> tuple[Coverage, ...]:
    """The coverage with the schedules of functions that use no record."""

    def chosen(c: Coverage) -> Coverage:
        made = plain.get(c.function)
        return c if made is None else replace(c, sketch=made.sketch, error_growth=made.error_growth)

    return tuple([chosen(c) for c in coverage])


def _used(c: Coverage, record: Record, growth: float) -> Coverage:
    seconds = _finite(record)
    return replace(c, status="used", record=record.identity, seconds=seconds, sketch=record.sketch, error_growth=growth)


def _most_frequent_error(records: Sequence[Record]) -> str:
    """The first line of the most frequent error message; of equally frequent ones, the first."""
    lines = Counter([next(iter(r.error.message.strip().splitlines()), r.error.kind) for r in records if r.error is not None])
    return lines.most_common(1)[0][0].rstrip(".") if lines else ""


def _refused(c: Coverage, why: str) -> Coverage:
    if c.status == "used":
        return replace(c, status="refused", reason=f"its record cannot be compiled: {why}. Tune it again")
    more = f"its schedule without records cannot be compiled, the default schedule is used: {why}"
    return replace(c, reason=f"{c.reason}; {more}" if c.reason else more)


def _finite(record: Record) -> float | None:
    return record.seconds if math.isfinite(record.seconds) else None
