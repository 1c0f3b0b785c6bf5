"""Compile a module under the records of a log; a record whose program cannot be compiled is reported, and costs nothing else.

All functions are built at once.  Only when that fails is each function that has a record built alone, to find those that are to blame.
If a schedule of the analytic model cannot be compiled, the function gets the default schedule, and its coverage says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from tunesmith.graph.tuning.apply_records import Applied, ApplyRecords
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import BuildError

T = TypeVar("T")


class DamagedLogWarning(UserWarning):
    """Lines of a log could not be read, where every function has to have a record."""


def compile_records(
    passes: ApplyRecords, mod: IRModule, target: Target, build: Callable[[IRModule], T], alone: Callable[[PrimFunc], object]
) -> tuple[T, Applied]:
    """What `build` makes of the module under its records, and the diagnostics.

    Args:
        passes: applies the records.
        mod: functions without schedules.
        target: what is compiled for.
        build: lowers and builds a module.
        alone: lowers and builds one function, to find out whether it can be built.
    Raises:
        RecordError: the pass is strict, and a function has no record that can be used.
        BuildError: the module cannot be compiled, whatever the records.
    """
    applied = passes.apply(mod, target)
    if passes.strict:
        _remark(passes.database)
    try:
        return build(applied.mod), applied
    except Exception as error:  # lowering meets whatever a trace can make
        replaceable = {"used"}
        if passes.untuned is analytic_schedule and isinstance(error, BuildError):
            replaceable |= {"missing", "plain", "refused"}
        broken = {c.function: why for c in applied.coverage if c.status in replaceable and (why := _fault(applied.mod[c.function], alone))}
        if not broken:
            raise
        failed = error
    try:
        applied = passes.refuse(mod, applied, broken, target)
    except Exception as error:
        raise error from failed
    return build(applied.mod), applied


def _fault(func: PrimFunc, alone: Callable[[PrimFunc], object]) -> str:
    """Why a function cannot be built; empty if it can."""
    try:
        alone(func)
    except Exception as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def _remark(database: Database) -> None:
    report = database.report
    if report.bad_count:
        where = ", ".join(f"{b.path}:{b.line}" for b in report.bad[:3]) + (", ..." if report.bad_count > 3 else "")
        warnings.warn(
            f"{report.bad_count} lines of the log could not be read ({where}): records that they held are not used. "
            "`tunesmith log verify` says what is wrong with them",
            DamagedLogWarning,
            stacklevel=stacklevel(),
        )
