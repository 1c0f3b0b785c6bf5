"""ApplyRecords: the best record of every function becomes its schedule; no search, no draw, no measurement.

Same log, same module, same target: same programs, on every machine.  What could not be covered is told, function by function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tunesmith.graph.default_schedule import default_schedule
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.lookup import Lookup
from tunesmith.ir.poly import Var
from tunesmith.ir.target import Target
from tunesmith.ir.visit import walk
from tunesmith.measure.database import Database
from tunesmith.measure.record import Record, target_key
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
    """The pass.  Call it for the module alone, `apply` for the module and the diagnostics.

    A record is used only for the workload and the target it was measured on.  Names of functions are kept, and functions of
    other kinds left alone.

    Args:
        database: the records.
        target: what is compiled for.
        strict: refuse a module that is not covered completely.
        untuned: schedules what is not covered; by default `default_schedule`.
    """

    database: Database
    target: Target
    strict: bool = False
    untuned: Untuned = field(default=default_schedule)

    def __call__(self, mod: IRModule) -> IRModule:
        """The module with every covered function scheduled.  Raises RecordError as `apply`."""
        return self.apply(mod).mod

    def apply(self, mod: IRModule) -> Applied:
        """The module with every covered function scheduled, and the diagnostics.

        Raises:
            RecordError: `strict`, and a function has no record that can be used; the message lists all of them.
        """
        found = {name: self._find(name, func) for name, func in mod.items() if isinstance(func, PrimFunc)}
        coverage = [c for _, c in found.values()]
        lacking = [c for c in coverage if c.status in ("missing", "refused")]
        if self.strict and lacking:
            lines = "\n".join(f"  {c}" for c in lacking)
            raise RecordError(f"{len(lacking)} of {len(coverage)} functions have no record that can be used for {self.target}:\n{lines}")
        functions = {name: s if s is not None else self.untuned(mod[name], self.target) for name, (s, _) in found.items()}
        return Applied(mod.update(functions), tuple(coverage))

    def _find(self, name: str, func: PrimFunc) -> tuple[PrimFunc | None, Coverage]:
        """The function under its best record, or None, and what is to be told."""
        digest = structural.digest(func)
        record = self.database.best(digest, self.target.to_json())
        if record is None:
            plain = why_plain(func)
            return None, Coverage(name, digest, "plain" if plain else "missing", reason=plain or self._why_missing(digest))
        try:
            scheduled = apply_record(record, func)
        except UserError as error:
            reason = f"its record does not apply: {error}. Tune it again"
            return None, Coverage(name, digest, "refused", record.identity, _finite(record), reason)
        return scheduled, Coverage(name, digest, "used", record.identity, _finite(record))

    def _why_missing(self, digest: str) -> str:
        """Nothing, nothing for this target, or nothing that is verified."""
        mine = self.database.records(digest, self.target.to_json())
        if mine:
            failed = sum(r.error is not None for r in mine)
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
    if any(type(n) is Lookup for n in walk(func.body)):
        return "it looks indices up in memory: it has the plain schedule"
    return ""


def apply_record(record: Record, func: PrimFunc) -> PrimFunc:
    """The function under the schedule of one record, under its own name.

    Raises:
        RecordError: the record belongs to another workload, or its trace is no trace, lacks decisions or has senseless arguments.
        ScheduleError: a step refuses.
    """
    digest = structural.digest(func)
    if record.workload != digest:
        raise RecordError(f"the record {record.identity} belongs to the workload {record.workload}; {func.name} is {digest}")
    trace = Trace.from_json(record.trace)
    trace.row()  # refuses a trace with an open decision: a replay must not draw
    try:
        scheduled = replay(trace, func).func
    except UserError:
        raise
    except Exception as error:  # a log may come from anywhere: arguments of any type reach the primitives
        raise RecordError(f"the trace of the record {record.identity} breaks with {type(error).__name__}: {error}") from error
    return scheduled if scheduled.name == func.name else scheduled.with_(name=func.name)


def _finite(record: Record) -> float | None:
    return record.seconds if math.isfinite(record.seconds) else None
