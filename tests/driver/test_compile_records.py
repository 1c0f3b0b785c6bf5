"""Records whose programs fail to compile are reported and replaced by a default schedule, or refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.driver import compile_records
from tunesmith.driver.compile_model import compile_model
from tunesmith.driver.compile_records import DamagedLogWarning, UnusedLogWarning
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pass_infra import Pass
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError, RecordError


def marked(s: Schedule) -> None:
    """Apply a step that no lowering accepts: the block packs nothing."""
    s.annotate(s.get_block("C"), "pack_constant", 1)


def test_a_failing_record_is_reported_and_the_others_are_used(hand: ModuleType) -> None:
    good, bad = hand.matmul(), workload("matmul(m=8,n=16,k=8)").func
    mod = IRModule({"good": good, "bad": bad})
    database = Database([hand.record_of(good), hand.record_of(bad, marked)])
    module = tunesmith.compile(mod, hand.TARGET, database)
    found = module.coverage
    assert [(c.function, c.status) for c in found] == [("good", "used"), ("bad", "refused")]
    assert "its record cannot be compiled: bad: block C is annotated pack_constant" in found[1].reason
    assert "Tune it again" in found[1].reason
    a, b, c = np.ones((8, 8), np.float32), np.ones((8, 16), np.float32), np.zeros((8, 16), np.float32)
    module["bad"](a, b, c)
    assert (c == 8).all()
    with pytest.raises(RecordError, match=r"1 of 2 functions have no usable record.*\n.*bad .*: refused: .*cannot be compiled"):
        tunesmith.compile(mod, hand.TARGET, database, strict=True)


@pytest.mark.parametrize("error", [KeyError("gone"), RecursionError(), MemoryError("no more"), OverflowError()])
def test_any_exception_of_lowering_is_attributed_to_the_record(hand: ModuleType, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def breaks(func: object, target: object) -> object:
        if "parallel(" in str(func):
            raise error
        return lowered(func, target)  # type: ignore[arg-type]

    import tunesmith.lower.pipelines as pipelines

    first = pipelines.CPU.passes[0]
    lowered = first.run
    monkeypatch.setattr(pipelines.CPU, "passes", (Pass(first.name, breaks, first.requires, first.provides), *pipelines.CPU.passes[1:]))  # type: ignore[arg-type]
    module = tunesmith.compile(hand.matmul(), hand.TARGET, Database([hand.record_of(hand.matmul())]))
    assert module.coverage[0].status == "refused" and (str(error) or type(error).__name__) in module.coverage[0].reason


def test_a_program_that_fails_without_its_record_is_an_error(hand: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import tunesmith.lower.pipelines as pipelines

    def breaks(func: object, target: object) -> object:
        raise BuildError("never")

    first = pipelines.CPU.passes[0]
    monkeypatch.setattr(pipelines.CPU, "passes", (Pass(first.name, breaks, first.requires, first.provides),))  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="never"):
        tunesmith.compile(hand.matmul(), hand.TARGET, Database([hand.record_of(hand.matmul())]))


def model() -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (4, 8))
    y = b.matmul(x, b.constant(np.ones((8, 16), np.float32)))
    return IRModule({"main": b.finish(b.softmax(y))})


@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_a_failing_record_of_a_model_is_reported(hand: ModuleType, executor: str) -> None:
    first, second = extract_tasks(GRAPH(model(), hand.TARGET))

    def wrong(s: Schedule) -> None:
        s.annotate(s.get_block(s.blocks()[0].name), "pack_constant", "nothing")

    database = Database([hand.record_of(first.func, lambda s: None), hand.record_of(second.func, wrong)])
    made = tunesmith.compile(model(), hand.TARGET, database, executor=executor)
    assert [c.status for c in made.coverage] == ["used", "refused"]
    np.testing.assert_allclose(made(np.ones((4, 8), np.float32)), np.full((4, 16), 1 / 16), rtol=1e-6)
    with pytest.raises(RecordError, match="1 of 2 functions"):
        tunesmith.compile(model(), hand.TARGET, database, strict=True, executor=executor)


@pytest.mark.parametrize(
    "step",
    [
        ["pad_rows", {"block": {"rv": "b0"}, "pad": 2**36}, []],
        ["annotate", {"target": {"rv": "b0"}, "key": "prefetch", "value": 2**62}, []],
        ["annotate", {"target": {"rv": "b0"}, "key": "prefetch", "value": "far"}, []],
        ["split", {"loop": {"rv": "l0"}, "factors": [None, 2**40]}, ["l8", "l9"]],
        ["sample_tile", {"loop": {"rv": "l0"}, "n": 2, "waste": 1e30}, ["v0"], [2**40]],
    ],
)
def test_out_of_range_numbers_in_a_trace_are_refused(hand: ModuleType, step: list[object]) -> None:
    def cached(s: Schedule) -> None:
        b = s.get_block("C")
        s.get_loops(b)
        s.cache_write(b, "workspace")

    func = hand.matmul()
    fine = hand.record_of(func, cached)
    row = step[3] if len(step) == 4 else []
    record = hand.record_of(func, trace=[*fine.trace, step], row=row)
    module = tunesmith.compile(func, hand.TARGET, Database([record]))
    assert module.coverage[0].status == "refused" and f"{step[0]} refused [" in module.coverage[0].reason


def test_strict_warns_about_a_damaged_log(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    with log.open("a") as file:
        file.write('{"v": 1, "kind": "rec')
    with pytest.warns(DamagedLogWarning, match=r"1 lines of the log could not be read \(.*log.jsonl:3\).*log verify"):
        module = tunesmith.compile(hand.MATMUL, hand.TARGET, log, strict=True)
    assert module.coverage[0].status == "used"
    tunesmith.compile(hand.MATMUL, hand.TARGET, log)  # not strict: no warning, since coverage reports missing records
    unreadable = tmp_path / "unreadable.jsonl"
    unreadable.write_text("hello\n{}\n")
    with pytest.warns(DamagedLogWarning, match="2 lines of the log could not be read"):  # no function has a record
        tunesmith.compile(hand.MATMUL, hand.TARGET, unreadable)
    command = ["compile", hand.MATMUL, "--target", str(hand.TARGET), "--records", str(log), "-o", str(tmp_path / "m.so"), "--strict"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0 and "! 1 lines of the log could not be read" in result.stderr, result.output


def test_a_log_of_other_functions_causes_a_warning(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    reason = r"none of the 1 records of the log is for a function .*: no record of this workload\. Tune it\.  `coverage` has"
    with pytest.warns(UnusedLogWarning, match=reason):
        tunesmith.compile("matmul(m=5,n=5,k=5)", hand.TARGET, log)
    with warnings.catch_warnings(action="error"):
        tunesmith.compile(hand.MATMUL, hand.TARGET, log)
        tunesmith.compile("matmul(m=5,n=5,k=5)", hand.TARGET, Database())


def test_emptied_traces_are_never_used(hand: ModuleType, tmp_path: Path) -> None:
    """Neither from a current log, whose lines hold their configuration, nor from one of an earlier version."""
    func = hand.matmul()
    line = {**hand.record_of(func, sketch="tile").to_json(), "trace": []}
    old = {name: value for name, value in line.items() if name != "schedule"}
    cases = [(line, "missing", "1 lines of the log could not be read"), (old, "refused", "is inconsistent")]
    for n, (written, status, reason) in enumerate(cases):
        log = hand.write_log(tmp_path / f"{n}.jsonl")
        with log.open("a") as file:
            file.write(json.dumps(written) + "\n")
        with warnings.catch_warnings(action="ignore", category=DamagedLogWarning):
            (found,) = tunesmith.compile(func, hand.TARGET, log).coverage
        assert found.status == status and reason in found.reason and found.digest == structural.digest(func)
        with pytest.raises(RecordError, match="1 of 1 functions"), warnings.catch_warnings(action="ignore", category=DamagedLogWarning):
            tunesmith.compile(func, hand.TARGET, log, strict=True)


def test_a_failing_schedule_of_the_analytic_model_is_reported(hand: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default schedule replaces it; with a scheduler other than the analytic model the error propagates."""
    import tunesmith.lower.pipelines as pipelines

    first = pipelines.CPU.passes[0]

    def breaks(func: PrimFunc, target: Target) -> PrimFunc:
        if func.name == "fused_matmul_add" and not structural.equal(func, default_schedule(plain, target)):
            raise BuildError("too large")
        return first.run(func, target)

    b = GraphBuilder("main")
    x = b.input("x", (8, 16))
    y = b.add(b.matmul(x, b.input("w", (16, 32))), b.constant(np.ones(32, np.float32), "bias"))
    mod = GRAPH(IRModule({"main": b.finish(y)}), hand.TARGET)
    plain = next(f for f in mod.values() if isinstance(f, PrimFunc))
    assert isinstance(plain, PrimFunc) and plain.name == "fused_matmul_add"
    monkeypatch.setattr(pipelines.CPU, "passes", (Pass(first.name, breaks, first.requires, first.provides), *pipelines.CPU.passes[1:]))
    model = compile_model(mod, hand.TARGET)
    (found,) = model.coverage
    assert found.status == "missing" and "the default schedule is used: too large" in found.reason
    got = model(np.ones((8, 16), np.float32), np.ones((16, 32), np.float32))
    np.testing.assert_array_equal(got, np.full((8, 32), 17, np.float32))
    with pytest.raises(BuildError, match="too large"):
        compile_model(mod, hand.TARGET, untuned=lambda f, target: f)


def test_slow_choices_are_reported(hand: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tunesmith.compile(hand.matmul(), hand.TARGET)
    assert not capsys.readouterr().err
    monkeypatch.setattr(compile_records, "_PATIENCE_S", 0.0)
    tunesmith.compile(hand.matmul(), hand.TARGET)
    assert capsys.readouterr().err == "choosing schedules for functions without records, 1 done (matmul) ...\n"
