"""The `repr` of programs, schedules, records and reports is one line, and programs show their script."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from tunesmith import Schedule
from tunesmith.display.report import Report, TaskReport
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.script.printer import script
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import ErrorInfo, WorkloadLine
from tunesmith.ops.workload import workload


def test_programs(capsys: pytest.CaptureFixture[str]) -> None:
    func = workload("relu(shape=4)").func
    assert repr(func) == "<PrimFunc relu(X: float32[4], Y: float32[4])>"
    mod = IRModule([func])
    assert repr(mod) == "<IRModule of relu>" and repr(IRModule()) == "<IRModule of no functions>"
    assert repr(IRModule([func.with_(name=f"f{i}") for i in range(6)])) == "<IRModule of f0, f1, f2, f3 and 2 more>"
    b = GraphBuilder("main")
    graph = b.finish(b.relu(b.input("x", (4, 8))))
    assert repr(graph) == "<GraphFunc main(x: float32[4, 8])>"
    for program in (func, mod, graph):
        program.show()
        assert capsys.readouterr().out == f"{program}\n"
        assert program._repr_html_().startswith("<pre") and "<" not in program._repr_html_()[1:-6]
    assert str(func) == script(func)


def test_schedules() -> None:
    s = Schedule(workload("relu(shape=4)").func)
    assert repr(s) == "<Schedule of relu, 0 steps>"
    s.get_block("Y")
    assert repr(s) == "<Schedule of relu, 1 step>"


def test_records_and_databases(hand: ModuleType) -> None:
    record = replace(hand.record_of(hand.matmul(), seconds=4e-5), workload="0123456789abcdef", sketch="tile", row=(1, 2))
    assert repr(record) == "<Record of 01234567: 40 us, tile [1, 2]>"
    assert repr(replace(record, verified=False, sketch="")) == "<Record of 01234567: 40 us, not verified, schedule [1, 2]>"
    failed = replace(record, samples=(), verified=False, error=ErrorInfo("crash", "died"))
    assert repr(failed) == "<Record of 01234567: crash, tile [1, 2]>"
    database = Database([record, failed], [WorkloadLine("w1", "relu", "")])
    assert repr(database) == "<Database of 2 records of 2 workloads>"
    assert repr(Database([record])) == "<Database of 1 record of 1 workload>"


def test_reports(hand: ModuleType) -> None:
    best = hand.record_of(hand.matmul(), seconds=4e-5)
    task = TaskReport("relu(shape=4)", "w0", 1, 0, {}, best, 4, 0, 0, {}, ())
    assert repr(task) == "<TaskReport of relu(shape=4): 40 us, 1 trial>"
    assert repr(Report((task, replace(task, best=None, trials=3)))) == (
        "<Report of relu(shape=4): 40 us, 1 trial; relu(shape=4): no result, 3 trials>"
    )
    assert repr(Report((task,) * 5)).endswith("1 trial; and 2 more>")
