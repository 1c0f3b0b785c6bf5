"""Compile a module with the records of a log, and replace records whose programs fail to compile.

All functions are built at once.  Only if that fails, each function with a record is built alone to find the failing ones.  If a
schedule of the analytic model fails to compile, the function gets the default schedule, reported in its coverage.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tunesmith.graph.tuning.apply_records import Applied, ApplyRecords, Scheduled, Untuned
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.instrument import InstrumentError, observed
from tunesmith.lower.pass_context import PassContext, unobserved
from tunesmith.measure.calibration.worker import print_progress
from tunesmith.measure.records.database import Database
from tunesmith.search.analytic_schedule import untuned_choice
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import BuildError

T = TypeVar("T")

_PATIENCE_S = 4.0
"""Seconds between the lines that say how many schedules are chosen."""


class DamagedLogWarning(UserWarning):
    """Lines of a log could not be read, although every function needs a record, or none has one."""


class UnusedLogWarning(UserWarning):
    """A log has records, and none of them is for a function of the module and its target."""


def compile_records(
    passes: ApplyRecords, mod: IRModule, target: Target, build: Callable[[IRModule], T], alone: Callable[[PrimFunc], object]
) -> tuple[T, Applied]:
    """Apply the records to a module and build it.

    Args:
        passes: applies the records.
        mod: functions without schedules.
        target: target of compilation.
        build: lowers and builds a module.
        alone: lowers and builds one function, to test whether it can be built.
    Returns:
        The result of `build`, and the applied records with diagnostics.
    Raises:
        RecordError: the pass is strict, and a function has no usable record.
        BuildError: the module cannot be compiled, even without records.
    """
    applied = _applied(passes, mod, target)
    if passes.strict or not any(c.status == "used" for c in applied.coverage):
        _remark(passes.loaded)
    _remark_unused(passes.loaded, applied, target)
    try:
        return build(applied.mod), applied
    except InstrumentError:
        raise
    except Exception as error:  # a trace of a log can produce any program, so lowering can raise anything
        replaceable = {"used"}
        if getattr(passes.untuned, "func", passes.untuned) is untuned_choice and isinstance(error, BuildError):
            replaceable |= {"missing", "plain", "refused"}
        suspects = dict.fromkeys([c.function for c in applied.coverage if c.status in replaceable])
        broken = {name: why for name in suspects if (why := _fault(applied.mod[name], alone))}
        if not broken:
            raise
        failed = error
    try:
        applied = passes.refuse(mod, applied, broken, target)
    except Exception as error:
        raise error from failed
    return build(applied.mod), applied


def _applied(passes: ApplyRecords, mod: IRModule, target: Target) -> Applied:
    """The result of the pass, which the instruments of the current `PassContext` observe."""
    found: list[Applied] = []
    told = replace(passes, untuned=_Told(passes.untuned))

    def run() -> IRModule:
        found.append(told.apply(mod, target))
        return found[0].mod

    observed(PassContext.current().instruments, passes.name, mod, run, optional=False)
    return found[0]


class _Told:
    """Chooses schedules, and says on standard error how many are chosen if that takes longer than some seconds."""

    def __init__(self, untuned: Untuned) -> None:
        self._untuned, self._chosen = untuned, 0
        self._next = time.monotonic() + _PATIENCE_S
        self.__name__ = getattr(untuned, "__name__", "untuned")

    def __call__(self, func: PrimFunc, target: Target) -> PrimFunc | Scheduled:
        made = self._untuned(func, target)
        self._chosen += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PATIENCE_S
            print_progress(f"choosing schedules for functions without records, {self._chosen} done ({func.name}) ...")
        return made


def _fault(func: PrimFunc, alone: Callable[[PrimFunc], object]) -> str:
    """Why a function cannot be built; empty if it can."""
    try:
        with unobserved():
            alone(func)
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def _remark(database: Database) -> None:
    report = database.report
    if report.bad_count:
        where = ", ".join(f"{b.path}:{b.line}" for b in report.bad[:3]) + (", ..." if report.bad_count > 3 else "")
        warnings.warn(
            f"{report.bad_count} lines of the log could not be read ({where}); their records are not used.  "
            "`tunesmith log verify` reports the errors",
            DamagedLogWarning,
            stacklevel=stacklevel(),
        )


def _remark_unused(database: Database, applied: Applied, target: Target) -> None:
    """Warn about a log that has records, but none for the target and a function of the module."""
    key = target.to_json()
    missing = [c for c in applied.coverage if c.status == "missing"]
    others = [c for c in applied.coverage if c.status in ("used", "refused")]
    if (
        not len(database)
        or not missing
        or others
        or any(database.records(c.digest, key) or database.tuned_sizes(c.digest, key) for c in missing)
    ):
        return
    warnings.warn(
        f"none of the {len(database)} records of the log is for a function of the module and its target; the first function: "
        f"{missing[0].reason}.  `coverage` has the reason for each function",
        UnusedLogWarning,
        stacklevel=stacklevel(),
    )
