"""Test the measurer from candidates to records, including real faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.ir.target.target import Target
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pipelines import CPU
from tunesmith.measure.builder import Builder, BuildResult, InProcessBuilder
from tunesmith.measure.candidate import BuildRequest, Candidate, MeasureTask
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, Record
from tunesmith.measure.runner import Runner, RunRequest, RunResult
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.schedule.schedule import replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import InternalError, RunError, UserError

TARGET = Target("llvm")
QUICK = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9))
NOISY = TimingPolicy(number=3, repeats=2, window_s=0.0, quiet_fraction=float("inf"))
SOME: list[Candidate] = [(0, [4]), (1, (8,)), (0, np.array([5000])), (0, np.array([16])), (1, [4])]


class ScriptedRunner(Runner):
    """Returns the given seconds in order; None is a crash.  Stores the requests."""

    def __init__(self, seconds: Sequence[float | None], slots: int = 1) -> None:
        self.seconds = list(seconds)
        self.slots = slots
        self.requests: list[list[RunRequest]] = []

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        self.requests.append(list(requests))
        out = []
        for request in requests:
            s = self.seconds.pop(0)
            if s is None:
                out.append(RunResult((), True, ErrorInfo("crash", "died"), False, 0.0))
            else:
                out.append(RunResult((s,), True, None, request.best is None or s < request.best, 0.0))
        return out

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return self.run(requests)

    def close(self) -> None:
        pass


def measurer(
    runner: Runner | None = None, builder: Builder | None = None, policy: MeasurePolicy = QUICK, log: RecordLog | None = None
) -> Measurer:
    return Measurer(TARGET, builder or InProcessBuilder(), runner or InProcessRunner(), policy, log)


def outcome(record: Record) -> tuple[str, tuple[int, ...], str | None]:
    return record.sketch, record.row, None if record.error is None else record.error.kind


def test_record_fields(add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    with measurer(log=log) as m:
        records = m.measure(add_task, SOME, seed=5, extra={"tag": "x"})
        assert m.best(add_task) == min(r.seconds for r in records if r.verified)
    assert [outcome(r) for r in records] == [
        ("tiled", (4,), None),
        ("parallel", (8,), None),
        ("tiled", (5000,), "build_error"),
        ("tiled", (16,), None),
        ("parallel", (4,), None),
    ]
    first, bad = records[0], records[2]
    assert first.workload == add_task.digest and first.target == TARGET.to_json() and first.seed == 5
    assert first.verified and len(first.samples) == 2 and first.clean
    assert first.policy == QUICK.to_json() and first.policy["kind"] == "race"
    assert first.extra["tag"] == "x" and first.extra["build_s"] > 0 and first.extra["run_s"] > 0  # type: ignore[operator]
    assert {"lower_s", "llvm_s", "object_bytes", "calls"} <= set(first.extra)
    assert bad.extra["run_s"] == 0 and bad.samples == () and "violates the constraint" in bad.error.message  # type: ignore[union-attr]
    program = replay(Trace.from_json(json.loads(json.dumps(first.trace))), add_task.func).func
    assert "T.vectorized(4)" in str(program)
    contents = log.load()
    assert contents.report.bad_count == 0
    assert [r.identity for r in contents.records] == [r.identity for r in records]
    assert [(w.name, w.script) for w in contents.workloads.values()] == [("add(60)", add_task.script)]
    best = Database.from_log(log.path).best(add_task.digest, TARGET.to_json())
    assert best is not None and best.seconds == min(r.seconds for r in records if r.verified)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_order_does_not_depend_on_workers(add_task: MeasureTask, workers: int, overlap: bool) -> None:
    with LocalBuilder(workers) as builder, measurer(builder=builder, policy=replace(QUICK, overlap=overlap)) as m:
        assert [outcome(r) for r in m.measure(add_task, SOME * 2)] == [outcome(r) for r in measurer().measure(add_task, SOME * 2)]
        assert m.measure(add_task, []) == []


def test_runner_receives_the_best_time(add_task: MeasureTask) -> None:
    runner = ScriptedRunner([3.0, 4.0, None, 2.0, 5.0])
    m = measurer(runner)
    records = m.measure(add_task, [(0, [4])] * 5)
    assert [r[0].best for r in runner.requests] == [None, 3.0, 3.0, 3.0, 2.0]
    assert [r.verified for r in records] == [True, False, False, True, False]
    assert m.best(add_task) == 2.0
    runner.seconds = [3.0, 1.0]
    runner.requests.clear()
    trusting = measurer(runner, policy=replace(QUICK, verify="never"))
    trusting.measure(add_task, [(0, [4])] * 2)
    assert [r[0].best for r in runner.requests] == [None, 3.0]
    m.note_best(add_task, 1.0)
    m.note_best(add_task, 1.5)
    assert m.best(add_task) == 1.0


def test_runner_with_several_slots_gets_several_candidates_at_once(add_task: MeasureTask) -> None:
    runner = ScriptedRunner([float(i) for i in range(1, 20)], slots=2)
    records = measurer(runner).measure(add_task, [(0, [4]), (0, [5000]), (0, [8]), (1, [4]), (1, [8])])
    assert [len(requests) for requests in runner.requests] == [1, 2, 1]
    assert [r.samples for r in records] == [(1.0,), (), (2.0,), (3.0,), (4.0,)]


def test_earlier_records_survive_a_failing_runner(add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    with pytest.raises(IndexError):
        measurer(ScriptedRunner([1.0, 2.0]), log=log).measure(add_task, [(0, [4])] * 3)
    assert [r.samples for r in log.load().records] == [(1.0,), (2.0,)]


def test_records_are_logged_as_they_are_measured(add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    runner = ScriptedRunner([1.0, 2.0, 3.0])
    stream = measurer(runner, log=log).stream(add_task, [(0, [4])] * 3)
    for n in range(1, 4):
        next(stream)
        assert len(log.load().records) == n == len(runner.requests)


def test_law_is_checked_periodically(add_task: MeasureTask) -> None:
    checked: list[bool] = []

    class Watching(InProcessBuilder):
        def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
            checked.extend(r.check_law for r in requests)
            return super().build(requests)

    m = measurer(ScriptedRunner([1.0] * 7), Watching(), replace(QUICK, law_every=3))
    m.measure(add_task, [(0, [4])] * 2)
    m.measure(add_task, [(0, [4])] * 5)
    assert checked == [True, False, False, True, False, False, True]


def test_law_violation_is_raised_after_the_last_record(add_task: MeasureTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.measure.candidate.concretize", lambda func, row: add_task.func)
    log = RecordLog(tmp_path / "log.jsonl")
    with pytest.raises(
        InternalError, match=r"1 of 3 candidates violate the law of sketches; the first: the sketch instantiated with the row \[4\]"
    ):
        measurer(log=log).measure(add_task, [(0, [4])] * 3)
    assert len(log.load().records) == 3


def test_unscheduled_function_is_the_default_reference(add_task: MeasureTask) -> None:
    bare = replace(add_task, reference=None)
    (record,) = measurer().measure(bare, [(0, [4])])
    assert record.verified
    (record,) = measurer(policy=replace(QUICK, verify="never")).measure(bare, [(0, [4])])
    assert not record.verified


def test_wrong_reference_fails_every_candidate(add_task: MeasureTask) -> None:
    (record,) = measurer().measure(replace(add_task, reference=lambda x: [x[0] - x[1]]), [(0, [4])])
    assert record.error is not None and record.error.kind == "wrong_result" and record.samples


def test_ranges_reach_inputs_and_reference(add_task: MeasureTask) -> None:
    seen: list[float] = []

    def reference(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        seen.append(float(inputs[0].min()))
        return [inputs[0] + inputs[1]]

    m = measurer(policy=replace(QUICK, verify="always"))
    for low in (5.0, 7.0):
        (record,) = m.measure(replace(add_task, reference=reference, ranges={"A": (low, low + 1)}), [(0, [4])])
        assert record.verified
    m.measure(replace(add_task, reference=reference, ranges={"A": (7.0, 8.0)}), [(0, [4])])
    assert [int(s) for s in seen] == [5, 7]


def test_tasks_that_cannot_be_measured_are_rejected(add_task: MeasureTask) -> None:
    with pytest.raises(UserError, match="the candidate refers to sketch 7"):
        measurer().measure(add_task, [(7, [4])])
    with pytest.raises(UserError, match="the reference returned 0 outputs"):
        measurer().measure(replace(add_task, reference=lambda _: []), [(0, [4])])

    class Refusing(InProcessBuilder):
        def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
            return [BuildResult(None, ErrorInfo("build_error", "no compiler"), 0.0) for _ in requests]

    refusing = Measurer(TARGET, Refusing(), InProcessRunner(), QUICK)
    with pytest.raises(RunError, match="add\\(60\\) has no reference, and its unscheduled function cannot be compiled.*no compiler"):
        refusing.measure(replace(add_task, reference=None), [(0, [4])])


def test_compare_records_its_timing_policy(add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    with measurer(log=log) as m:
        records = m.compare(add_task, [(0, [4]), (0, [5000]), (1, [8])], policy=NOISY, seed=3)
    assert [outcome(r)[2] for r in records] == [None, "build_error", None]
    assert [r.verified for r in records] == [True, False, True]
    assert records[0].policy["kind"] == "interleaved" and records[0].policy["repeats"] == 2 and records[0].seed == 3
    assert "foreign" in records[0].extra
    assert len(log.load().records) == 3


# ---- a run with faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "ScriptedRunner.run returned None"),
        ([0.5], "returned a list with a float, 0.5"),
        ([], "returned 0 results"),
    ],
)
def test_results_of_a_runner_are_checked(add_task: MeasureTask, result: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedRunner, "run", lambda self, requests: result)
    with measurer(ScriptedRunner([])) as m:
        for measure in (m.measure, m.compare):
            expected = "it returns a list with one RunResult for each of 1 requests, in their order"
            with pytest.raises(UserError, match=expected if measure == m.compare else f"{message}; {expected}"):
                measure(add_task, SOME[:1])


def test_results_of_a_builder_are_checked(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    with measurer() as m:
        monkeypatch.setattr(InProcessBuilder, "build", lambda self, requests: [])
        with pytest.raises(UserError, match="InProcessBuilder.build returned 0 results; it returns a list with one BuildResult for"):
            m.measure(add_task, SOME[:1])


def test_builders_and_runners_of_another_type_are_refused() -> None:
    class Bad(ScriptedRunner):
        def run(self) -> list[RunResult]:  # type: ignore[override]
            return []

    with pytest.raises(UserError, match="the builder object does not derive from tunesmith.measure.builder.Builder"):
        Measurer(TARGET, object(), InProcessRunner())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the runner Bad defines run\(self\), and is called as run\(self, requests\)"):
        measurer(Bad([]))


class FaultyBuilder(Builder):
    """Builds correct code, but faulty code for some rows."""

    def __init__(self, codes: dict[int, bytes]) -> None:
        self.inner = InProcessBuilder()
        self.codes = codes

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildResult]:
        results = self.inner.build(requests)
        return [
            replace(result, artifact=Artifact(self.codes[request.row[0]], ("add",), {})) if request.row[0] in self.codes else result
            for request, result in zip(requests, results, strict=True)
        ]

    def close(self) -> None:
        self.inner.close()


def code(params: Sequence[object], body: str, head: str = "") -> bytes:
    text = f"{head}\ndefine void @k(ptr %a, ptr %b, ptr %c) {{\nstart:\n{body}\n}}\n" + emit_entry("add", "k", params)  # type: ignore[arg-type]
    return compile_object(text, llvm_options(TARGET))


FAULTS: dict[str, Callable[[Sequence[object]], bytes]] = {
    "crash": lambda p: code(p, "  store volatile float 1.0, ptr null\n  ret void"),
    "timeout": lambda p: code(p, "  br label %loop\nloop:\n  %x = load volatile float, ptr %a\n  br label %loop"),
    "out_of_memory": lambda p: code(
        p, "  store volatile i8 1, ptr @arena\n  ret void", f"@arena = internal global [{64 << 30} x i8] zeroinitializer"
    ),
    "wrong_result": lambda p: code(p, "  store float 1.0, ptr %c\n  ret void"),
    "run_error": lambda p: code(p, "  call void @nowhere_to_be_found()\n  ret void", "declare void @nowhere_to_be_found()"),
}
"""The candidate with the wrong result is the fastest, and must not become the best."""


def test_search_survives_every_fault(long_add_task: MeasureTask, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    codes = {40 + i: make(long_add_task.params) for i, make in enumerate(FAULTS.values())}
    candidates: list[Candidate] = [(0, [4])]
    for tile in codes:
        candidates += [(0, [tile]), (1, [8])]
    with LocalRunner(2, timeout=3.0, memory_limit=4 << 30) as runner, measurer(runner, FaultyBuilder(codes), log=log) as m:
        records = m.measure(long_add_task, candidates)
        best = m.best(long_add_task)
    assert [outcome(r)[2] for r in records] == [None] + [k for fault in FAULTS for k in (fault, None)]
    assert all(r.verified == (r.error is None) for r in records[:1])
    assert not any(r.verified for r in records if r.error)
    assert best == min(r.seconds for r in records if r.verified)
    best_record = Database.from_log(log.path).best(long_add_task.digest, TARGET.to_json())
    assert best_record is not None and best_record.error is None and best_record.seconds == best
    assert len(log.load().records) == len(candidates)


# ---- passes that a context changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_builder", [InProcessBuilder, lambda: LocalBuilder(1)])
def test_a_pass_context_reaches_the_builders_and_the_records(
    add_task: MeasureTask, make_builder: Callable[[], Builder], tmp_path: Path
) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    lines: dict[str, list[object]] = {}
    with make_builder() as builder:
        for name, context in (("default", PassContext()), ("changed", PassContext(level=0))):
            with context, measurer(ScriptedRunner([1.0]), builder, log=log) as m:
                (record,) = m.measure(add_task, [(0, [20])])
            assert record.error is None
            lines[name] = [record.passes, record.extra["ir_lines"]]
    assert lines["default"][0] == {} and lines["changed"][0] == PassContext(level=0).changes(CPU)
    assert lines["default"][1] != lines["changed"][1]  # without unrolling and versions, the code is another one
    database = Database.from_log(log.path)
    assert len(database) == len(database.compiled_with(PassContext(level=0).changes(CPU))) == 1


def test_passes_of_graphs_do_not_change_records(add_task: MeasureTask) -> None:
    with PassContext(disabled=["convert_layout", "fuse_operators"]), measurer(ScriptedRunner([1.0])) as m:
        (record,) = m.measure(add_task, [(0, [4])])
    assert record.passes == {}


def test_an_instrument_that_leaves_out_passes_is_refused() -> None:
    class Skip(Instrument):
        def should_run(self, name: str, ir: Any) -> bool:
            return False

    with PassContext(instruments=[Skip()]), pytest.raises(UserError, match=r"the instrument Skip may leave out passes .*disabled=\["):
        measurer()
