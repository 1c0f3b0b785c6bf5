"""ApplyRecords: the best record of every function becomes its schedule; no search, no draw, no measurement.

Same log, same module, same target: same programs, on every machine.  What could not be covered is told, function by function.

A log may come from anywhere.  So a record is used only if its trace, its row and the program agree with each other, the scheduled program
is well formed, and its time is one that the target can reach; what turns out later, when the program is lowered and built, is
reported by `refuse`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record, target_key
from tunesmith.schedule.schedule import replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import RecordError, UserError

Untuned = Callable[[PrimFunc, Target], PrimFunc]
"""What becomes of a function that no record covers."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a database had for one function.

    Attributes:
        function: its name in the module.
        digest: of the unscheduled function, the key of its records.
        status: "used", "missing" (no verified record for this target), "refused" (the best record does not apply any more), "plain"
            (there is nothing to search for, see `why_plain`), or "external" (an external code generator compiles it).
        record: identity of the best record, empty if there is none.
        seconds: what that record measured; None if there is none.
        reason: why no record was used, with what to do; empty if one was.
    """

    function: str
    digest: str
    status: str
    record: str = ""
    seconds: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        """One line."""
        if self.status == "used" and self.seconds is not None:
            return f"{self.function}: record {self.record} ({self.seconds * 1e6:.4g} us when it was measured)"
        return f"{self.function} ({self.digest}): {self.status}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A module after the pass, and what was found for each of its functions, in their order."""

    mod: IRModule
    coverage: tuple[Coverage, ...]


@dataclass(frozen=True)
class ApplyRecords:
    """The pass: `(mod, target) -> mod`, which may be put anywhere into a `ModulePipeline`; `apply` gives the diagnostics, too.

    A record is used only for the workload and the target it was measured on.  Names of functions are kept, and functions of
    other kinds left alone.

    Args:
        database: the records.
        target: what is compiled for; None for the target that the pass is called with.
        strict: refuse a module that is not covered completely.
        untuned: schedules what is not covered; by default `default_schedule`.
    """

    database: Database
    target: Target | None = None
    strict: bool = False
    untuned: Untuned = field(default=default_schedule)

    name: ClassVar[str] = "apply_records"

    def __call__(self, mod: IRModule, target: Target | None = None) -> IRModule:
        """The module with every covered function scheduled.  Raises as `apply`."""
        return self.apply(mod, target).mod

    def apply(self, mod: IRModule, target: Target | None = None) -> Applied:
        """The module with every covered function scheduled, and the diagnostics.

        Args:
            mod: the module.
            target: what is compiled for, if the pass was made for no target, or for this one.
        Raises:
            UserError: no target was given, or another one than the pass was made for.
            RecordError: `strict`, and a function has no record that can be used; the message lists all of them.
        """
        target = self._target(target)
        found = {name: self._find(name, func, target) for name, func in mod.items() if isinstance(func, PrimFunc)}
        coverage = tuple([c for _, c in found.values()])
        self._check(coverage, target)
        functions = {name: s if s is not None else self._plain(mod[name], target) for name, (s, _) in found.items()}
        return Applied(mod.update(functions), coverage)

    def refuse(self, mod: IRModule, applied: Applied, broken: Mapping[str, str], target: Target | None = None) -> Applied:
        """What `apply` made of `mod`, without records whose programs turned out to be unusable.

        A function without a record gets `default_schedule`.

        Args:
            mod: the module before `apply`.
            applied: what `apply` gave.
            broken: what is wrong, by the name of the function.
            target: as for `apply`.
        Raises:
            RecordError: `strict`, and there is one.
        """
        target = self._target(target)
        coverage = tuple([c if c.function not in broken else _refused(c, broken[c.function]) for c in applied.coverage])
        self._check(coverage, target)
        used = {c.function for c in applied.coverage if c.status == "used"}
        plain = {name: self._plain(mod[name], target) if name in used else default_schedule(mod[name], target) for name in broken}
        return Applied(applied.mod.update(plain), coverage)

    def _target(self, given: Target | None) -> Target:
        if given is None and self.target is None:
            raise UserError("apply_records needs a target: give it one, ApplyRecords(database, target), or call it with one")
        if given is not None and self.target is not None and given.key != self.target.key:
            raise UserError(
                f"apply_records was made for {self.target} and is called for {given}: records of one target are never used for another. "
                "Leave the target out where the pass is made"
            )
        return given if given is not None else self.target  # type: ignore[return-value]  # one of them is there

    def _check(self, coverage: Sequence[Coverage], target: Target) -> None:
        lacking = [c for c in coverage if c.status in ("missing", "refused")]
        if self.strict and lacking:
            lines = "\n".join(f"  {c}" for c in lacking)
            raise RecordError(f"{len(lacking)} of {len(coverage)} functions have no record that can be used for {target}:\n{lines}")

    def _plain(self, func: PrimFunc, target: Target) -> PrimFunc:
        made = self.untuned(func, target)
        if not isinstance(made, PrimFunc):
            raise UserError(
                f"{getattr(self.untuned, '__name__', 'untuned')} gave {type(made).__name__} for {func.name}: "
                "what schedules functions without a record returns a PrimFunc"
            )
        return made

    def _find(self, name: str, func: PrimFunc, target: Target) -> tuple[PrimFunc | None, Coverage]:
        """The function under its best record, or None, and what is to be told."""
        digest = structural.digest(func)
        record = self.database.best(digest, target.to_json(), func)
        if record is None:
            plain = why_plain(func)
            return None, Coverage(name, digest, "plain" if plain else "missing", reason=plain or self._why_missing(digest, target))
        try:
            scheduled = apply_record(record, func)
        except UserError as error:
            reason = f"its record does not apply: {error}. Tune it again"
            return None, Coverage(name, digest, "refused", record.identity, _finite(record), reason)
        return scheduled, Coverage(name, digest, "used", record.identity, _finite(record))

    def _why_missing(self, digest: str, target: Target) -> str:
        """Nothing, nothing for this target, or nothing that is verified."""
        mine = self.database.records(digest, target.to_json())
        if mine:
            failed = sum(r.error is not None for r in mine)
            verified = sum(r.verified for r in mine)
            if verified:
                why = "a later run of it failed, or its time is one that the target cannot reach"
                return f"none of its {len(mine)} records counts ({failed} failed; {verified} verified, and {why}). Tune it further"
            return f"none of its {len(mine)} records is verified ({failed} failed). Tune it further"
        others = sorted({target_key(r.target) for r in self.database.records(digest)})
        if others:
            return f"its records are for other targets: {'; '.join(others)}. Tune it for this one"
        bad = self.database.report.bad_count
        damaged = f" ({bad} lines of the log could not be read: `tunesmith log verify` tells which)" if bad else ""
        return f"no record of this workload{damaged}. Tune it"


def why_plain(func: PrimFunc) -> str:
    """Why no search knows schedules of a function; empty if one may."""
    if any(isinstance(p, Var) for p in func.params):
        return "its sizes come with the call: it has a schedule that serves all of them"
    if any(type(n) is IndirectIndex for n in walk(func.body)):
        return "it looks indices up in memory: it has the plain schedule"
    return ""


def apply_record(record: Record, func: PrimFunc) -> PrimFunc:
    """The function under the schedule of one record, under its own name.

    Raises:
        RecordError: the record belongs to another workload, its trace is no trace, lacks decisions or has senseless arguments, or its
            fields contradict each other.
        ScheduleError: a step refuses.
        ScriptError: the steps make no program.
    """
    digest = structural.digest(func)
    if record.workload != digest:
        raise RecordError(f"the record {record.identity} belongs to the workload {record.workload}; {func.name} is {digest}")
    trace = Trace.from_json(record.trace)
    row = trace.row()  # refuses a trace with an open decision: a replay must not draw
    try:
        scheduled = replay(trace, func).func
        verify(scheduled)
    except UserError:
        raise
    except Exception as error:  # a log may come from anywhere: arguments of any type reach the primitives
        raise RecordError(f"the trace of the record {record.identity} breaks with {type(error).__name__}: {error}") from error
    if row != record.row and (record.sketch or record.row):
        raise RecordError(
            f"the record {record.identity} contradicts itself: its trace decides {list(row)}, and its row is {list(record.row)}: "
            "what was measured is not what the trace makes"
        )
    return scheduled if scheduled.name == func.name else scheduled.with_(name=func.name)


def _refused(c: Coverage, why: str) -> Coverage:
    if c.status == "used":
        return replace(c, status="refused", reason=f"its record cannot be compiled: {why}. Tune it again")
    more = f"the schedule that was chosen without measurements cannot be compiled, it has the default one: {why}"
    return replace(c, reason=f"{c.reason}; {more}" if c.reason else more)


def _finite(record: Record) -> float | None:
    return record.seconds if math.isfinite(record.seconds) else None
