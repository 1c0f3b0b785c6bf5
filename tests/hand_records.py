"""Create records of hand-written schedules for tests that replay logs; provided by the `hand` fixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.environment import environment
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule

MATMUL = "matmul(m=24,n=32,k=16)"
TARGET = Target("llvm")


def tiled(s: Schedule, columns: int = 16) -> None:
    """A matrix product with vectors of `columns`, one row at a time."""
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    outer, inner = s.split(j, [None, *s.sample_tile(j, 2, "j", domains=[(4, 8, 16)], decision=[columns])])
    s.reorder([i, outer, k, inner])
    s.decompose_reduction(block, k)
    s.vectorize(inner)
    s.parallel(i)


def record_of(
    func: PrimFunc, schedule: Callable[[Schedule], None] = tiled, target: Target = TARGET, seconds: float = 1e-5, **changes: object
) -> Record:
    """The record that a search would write for this schedule."""
    s = Schedule(func)
    schedule(s)
    host, versions = environment()
    fields: dict[str, object] = {
        "workload": structural.digest(func),
        "target": target.to_json(),
        "trace": s.trace.to_json(),
        "sketch": "",
        "row": s.trace.configuration(),
        "samples": (seconds,),
        "clean": True,
        "error": None,
        "verified": True,
        "host": host,
        "versions": versions,
        "seed": 0,
        "timestamp": 1000.0,
        "policy": {},
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def matmul() -> PrimFunc:
    """A small matrix product."""
    return workload(MATMUL).func


def write_log(path: Path, *records: Record, name: str = MATMUL, func: PrimFunc | None = None) -> Path:
    """Write a log with these records of one workload; returns its path."""
    func = func or matmul()
    RecordLog(path).append(WorkloadLine(structural.digest(func), name, script(func)), *records)
    return path
