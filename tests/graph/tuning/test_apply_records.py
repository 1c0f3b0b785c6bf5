"""Test that records are applied deterministically and that functions without usable records are reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.tuning.apply_records import ApplyRecords, apply_record
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import Pipeline, module_pass
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import RecordError, ScheduleError, UserError


def test_the_best_record_is_applied_under_the_name_of_the_function(hand: ModuleType) -> None:
    func = hand.matmul()
    records = [hand.record_of(func, seconds=3e-5), hand.record_of(func, lambda s: hand.tiled(s, 8), seconds=2e-5)]
    applied = ApplyRecords(Database(records), hand.TARGET).apply(IRModule([func.with_(name="layer3")]))
    (found,) = applied.coverage
    assert (found.function, found.status, found.record, found.seconds) == ("layer3", "used", records[1].identity, 2e-5)
    assert found.digest == structural.digest(func)
    assert "2" in str(found) and records[1].identity in str(found)
    by_hand = Schedule(func)
    hand.tiled(by_hand, 8)
    assert applied.mod["layer3"].name == "layer3"
    assert structural.equal(applied.mod["layer3"], by_hand.func)
    assert list(ApplyRecords(Database(records), hand.TARGET)(IRModule([func]))) == ["matmul"]


def test_replay_is_deterministic(hand: ModuleType) -> None:
    func = hand.matmul()
    passes = [ApplyRecords(Database([hand.record_of(func)]), hand.TARGET, strict=True) for _ in range(2)]
    first, second = (build(p(IRModule([hand.matmul()])), hand.TARGET).data for p in passes)
    assert first == second


def test_a_scheduled_function_computes_the_same(hand: ModuleType) -> None:
    w = workload(hand.MATMUL)
    mod = ApplyRecords(Database([hand.record_of(w.func)]), hand.TARGET, strict=True)(IRModule([w.func]))
    a, b = w.random_inputs()
    c = np.full((24, 32), np.nan, np.float32)
    Module.from_object(build(mod, hand.TARGET).data)["matmul"](a, b, c)
    np.testing.assert_allclose(c, w.reference([a, b])[0], rtol=1e-5, atol=1e-6)


def test_functions_without_records_are_reported_and_get_the_default_schedule(hand: ModuleType) -> None:
    func = hand.matmul()
    applied = ApplyRecords(Database(), hand.TARGET).apply(IRModule([func]))
    (found,) = applied.coverage
    assert (found.status, found.record, found.seconds) == ("missing", "", None)
    assert "no record of this workload" in found.reason
    assert structural.equal(applied.mod["matmul"], default_schedule(func, hand.TARGET))
    untouched = ApplyRecords(Database(), hand.TARGET, untuned=lambda f, t: f)(IRModule([func]))
    assert untouched["matmul"] is func


def test_records_of_other_targets_or_workloads_are_not_used(hand: ModuleType) -> None:
    func = hand.matmul()
    other = Target("llvm -mcpu=x86-64-v3 -num-cores=7")
    database = Database([hand.record_of(func, target=other)])
    (found,) = ApplyRecords(database, hand.TARGET).apply(IRModule([func])).coverage
    assert found.status == "missing"
    assert "for other targets" in found.reason and "x86-64-v3" in found.reason
    smaller = workload("matmul(m=24,n=32,k=8)").func
    assert ApplyRecords(database, other).apply(IRModule([smaller])).coverage[0].status == "missing"
    with pytest.raises(RecordError, match="belongs to the workload"):
        apply_record(hand.record_of(func), smaller)


def test_failed_and_unverified_records_are_not_used(hand: ModuleType) -> None:
    func = hand.matmul()
    failed = hand.record_of(func, samples=(), verified=False, error=ErrorInfo("crash", "died"))
    unverified = hand.record_of(func, verified=False, seconds=1e-6)
    (found,) = ApplyRecords(Database([failed, unverified]), hand.TARGET).apply(IRModule([func])).coverage
    assert found.status == "missing"
    assert "none of its 2 records is verified (1 failed, most of them with: died). Tune it further" in found.reason


def _trace(n: int) -> list[Any]:
    """Traces that differ."""
    return [["get_block", {"name": f"C{n}"}, ["b0"]]]


def test_if_every_candidate_failed_the_most_frequent_cause_is_reported(hand: ModuleType) -> None:
    func = hand.matmul()
    causes = ["build: too large\nat line 3", "crash", "build: too large\nat line 4"]
    failed = [hand.record_of(func, samples=(), verified=False, error=ErrorInfo("build", c), trace=_trace(n)) for n, c in enumerate(causes)]
    (found,) = ApplyRecords(Database(failed), hand.TARGET).apply(IRModule([func])).coverage
    want = "every candidate failed (3), most of them with: build: too large. Remove the cause before you tune it again"
    assert (found.status, found.reason) == ("missing", want)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        ([["get_block", {"name": "X"}, ["b0"]]], "no block 'X'"),
        ([["melt", {}, []]], "the primitive 'melt'"),
        ([["get_block", {"name": 3}, ["b0"]]], "block"),
        ([["get_block", {"name": "C"}, ["b0"]], ["split", {"loop": {"rv": "b0"}, "factors": [None, 2]}, ["l1"]]], "loop handle"),
        ([["get_block", {"name": "C"}, ["b0"]], ["get_loops", {"block": {"rv": "b0"}}, ["l0", "l1", "l2"]],
          ["split", {"loop": {"rv": "l0"}, "factors": 5}, ["l3", "l4"]]], "a list is needed"),
        ([["get_block", {"name": {"rv": []}}, ["b0"]]], "which no earlier step defined"),
        ([], "its trace has the decisions [], but its row is [16]"),
        ([["sample_categorical", {"candidates": [1, 2]}, ["v0"]]], "recorded parametrically"),
        ([{"kind": "split"}], "is not [kind, args, outputs"),
    ],
)  # fmt: skip
def test_inapplicable_records_are_rejected_and_reported(hand: ModuleType, trace: list[object], reason: str) -> None:
    func = hand.matmul()
    record = hand.record_of(func, trace=trace)
    applied = ApplyRecords(Database([record]), hand.TARGET).apply(IRModule([func]))
    (found,) = applied.coverage
    assert (found.status, found.record, found.seconds) == ("refused", record.identity, 1e-5)
    assert reason in found.reason and "Tune it again" in found.reason
    assert structural.equal(applied.mod["matmul"], default_schedule(func, hand.TARGET))


def test_strict_lists_every_function_without_a_record(hand: ModuleType) -> None:
    good, missing = hand.matmul(), workload("relu(shape=8x8)").func
    stale = workload("matmul(m=8,n=8,k=8)").func
    database = Database([hand.record_of(good), hand.record_of(stale, lambda s: hand.tiled(s, 8), trace=[["melt", {}, []]])])
    mod = IRModule({"a": good, "b": missing, "c": stale})
    with pytest.raises(RecordError) as error:
        ApplyRecords(database, hand.TARGET, strict=True)(mod)
    text = str(error.value)
    assert "2 of 3 functions" in text
    assert "b (" in text and "missing" in text and "c (" in text and "refused" in text
    assert "a (" not in text
    assert [c.status for c in ApplyRecords(database, hand.TARGET).apply(mod).coverage] == ["used", "missing", "refused"]


def test_functions_with_indirect_indices_can_be_tuned(hand: ModuleType) -> None:
    table, picked = te.placeholder((8,), name="T"), te.placeholder((4,), "int64", "I")
    rows = te.compute((4,), lambda i: te.lookup(picked[i], 8, lambda v: table[v]), "Z")
    gather = te.create_prim_func([table, picked, rows], "gather")
    called: list[str] = []

    def untuned(func: PrimFunc, target: Target) -> PrimFunc:
        called.append(func.name)
        return func

    coverage = ApplyRecords(Database(), hand.TARGET, untuned=untuned).apply(IRModule([gather])).coverage
    assert [c.status for c in coverage] == ["missing"] and called == ["gather"]


def test_dynamic_shapes_without_records_are_missing(hand: ModuleType) -> None:
    n = te.var("n")
    sized = te.placeholder((n,), name="X")
    doubled = te.create_prim_func([sized, te.compute((n,), lambda i: sized[i] * 2.0, "Y")], "doubled")
    (c,) = ApplyRecords(Database(), hand.TARGET).apply(IRModule([doubled])).coverage
    assert c.status == "missing" and "Tune it for some sizes, as in sizes='n=1..128'" in c.reason
    with pytest.raises(RecordError, match="1 of 1 functions have no usable record"):
        ApplyRecords(Database(), hand.TARGET, strict=True).apply(IRModule([doubled]))


def test_strict_raises_before_scheduling(hand: ModuleType) -> None:
    def untuned(func: PrimFunc, target: Target) -> PrimFunc:
        raise AssertionError("a rejected module must not be scheduled")

    with pytest.raises(RecordError, match="1 of 1 functions"):
        ApplyRecords(Database(), hand.TARGET, strict=True, untuned=untuned).apply(IRModule([hand.matmul()]))


def test_apply_record_raises_the_error_of_the_step(hand: ModuleType) -> None:
    func = hand.matmul()
    trace = [*hand.record_of(func).trace, ["vectorize", {"loop": {"rv": "l0"}}, []]]
    with pytest.raises(ScheduleError, match="vectorize refused"):
        apply_record(hand.record_of(func, trace=trace), func)


def test_inconsistent_records_are_rejected(hand: ModuleType) -> None:
    func = hand.matmul()
    good = hand.record_of(func, sketch="tile")
    for change in ({"trace": []}, {"row": (8,)}, {"row": ()}, {"trace": hand.record_of(func, lambda s: hand.tiled(s, 8)).trace}):
        record = replace(good, **change)
        assert record.identity != good.identity
        (found,) = ApplyRecords(Database([record]), hand.TARGET).apply(IRModule([func])).coverage
        assert found.status == "refused" and f"the record {record.identity} is inconsistent: its trace has the decisions" in found.reason
        with pytest.raises(RecordError, match="is inconsistent"):
            ApplyRecords(Database([record]), hand.TARGET, strict=True).apply(IRModule([func]))
    by_hand = replace(good, sketch="", row=())  # a schedule without a sketch needs no row
    assert ApplyRecords(Database([by_hand]), hand.TARGET).apply(IRModule([func])).coverage[0].status == "used"


def test_records_with_impossible_times_are_not_used(hand: ModuleType) -> None:
    func = workload("matmul(m=256,n=256,k=256)").func
    bogus = hand.record_of(func, lambda s: hand.tiled(s, 8), seconds=3e-9)
    (found,) = ApplyRecords(Database([bogus]), hand.TARGET).apply(IRModule([func])).coverage
    assert found.status == "missing" and "the time is impossible on the target" in found.reason
    right = hand.record_of(func)
    (found,) = ApplyRecords(Database([bogus, right]), hand.TARGET).apply(IRModule([func])).coverage
    assert (found.status, found.record) == ("used", right.identity)


class Names(Instrument):
    def __init__(self, found: list[str]) -> None:
        self.found = found

    def after(self, name: str, before: object, after: object, seconds: float) -> None:
        self.found.append(name)


def test_the_coverage_of_a_scheduled_function_is_checked(hand: ModuleType) -> None:
    made = ApplyRecords(Database([hand.record_of(hand.matmul())]), hand.TARGET)(IRModule([hand.matmul()]))
    kept = ApplyRecords(Database(), hand.TARGET).apply(made)
    assert kept.mod["matmul"] is made["matmul"] and kept.coverage[0].status == "used" and kept.coverage[0].seconds == 1e-5
    for text in ("no JSON", "3", '[{"other": 1}]'):
        broken = IRModule([hand.matmul().with_(attrs=(("coverage", text),))])
        with pytest.raises(RecordError, match="the attribute coverage of matmul is not what the pass apply_records wrote"):
            ApplyRecords(Database(), hand.TARGET).apply(broken)


def test_a_log_is_read_when_the_pass_runs(hand: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    passes = ApplyRecords(log, hand.TARGET)
    with pytest.raises(RecordError, match="log.jsonl"):
        passes(IRModule([hand.matmul()]))
    hand.write_log(log, hand.record_of(hand.matmul()))
    assert passes.apply(IRModule([hand.matmul()])).coverage[0].status == "used"


def test_apply_records_in_a_pipeline(hand: ModuleType) -> None:
    func = hand.matmul()
    database, mod = Database([hand.record_of(func)]), IRModule([func])
    named: list[str] = []
    for p in (ApplyRecords(database), ApplyRecords(database, hand.TARGET)):
        pipeline = Pipeline(module_pass(dead_code)).insert_after("dead_code", p, lower_blocks)
        assert pipeline.names == ("dead_code", "apply_records", lower_blocks.name)
        with PassContext(instruments=[Names(named)]):
            out = pipeline(mod, hand.TARGET)
        scheduled = ApplyRecords(database, hand.TARGET)(mod)
        assert structural.equal(out["matmul"], lower_blocks(scheduled["matmul"], hand.TARGET))
        assert structural.equal(p(mod, hand.TARGET)["matmul"], scheduled["matmul"])
        assert pipeline.without("apply_records").names == ("dead_code", lower_blocks.name)
    assert named.count("apply_records") == 2
    with pytest.raises(UserError, match=r"apply_records needs a target"):
        ApplyRecords(database)(mod)
    other = Target("llvm -mcpu=x86-64-v3 -num-cores=7")
    with pytest.raises(UserError, match="was created for .* and is called for .*num-cores=7"):
        Pipeline(ApplyRecords(database, hand.TARGET))(mod, other)
    with pytest.raises(UserError, match="returned NoneType for matmul"):
        ApplyRecords(Database(), untuned=lambda f, t: None)(mod, other)  # type: ignore[arg-type,return-value]
