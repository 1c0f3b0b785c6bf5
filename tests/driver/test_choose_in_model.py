"""Schedules are chosen by their speed in the model, among those that are fastest alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.model_check import check_model, choose_in_model
from tunesmith.driver.model_check.choose_in_model import FASTER, alternatives, fastest_calls, marked, selection
from tunesmith.driver.tune_options import Search
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.tuning.apply_records import Coverage
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.status import IN_MODEL
from tunesmith.support.seeds import stream

Make = Callable[..., Record]
TARGET = Target.detect()


def fake(calls: dict[str, float], digests: dict[str, str], records: dict[str, str] | None = None) -> Any:
    """A model whose functions have these digests and records, and take these microseconds."""
    coverage = [Coverage(f, d, "used", (records or {}).get(d, "")) for f, d in digests.items()]
    rows = [SimpleNamespace(function=f + "__packed", microseconds=us) for f, us in calls.items()]
    return SimpleNamespace(coverage=coverage, profile=lambda *inputs, repeats: rows)


@pytest.fixture
def make_record(hand: ModuleType) -> Make:
    """Records of one workload on one target."""
    record = hand.record_of(hand.matmul())
    return lambda **changes: dataclasses.replace(record, workload="w0", target=TARGET.to_json(), verified=True, clean=True, **changes)


def timed(make: Make, row: int, seconds: float) -> Record:
    return make(row=(row,), samples=(seconds,), timestamp=float(row))


def test_the_best_records_within_a_limit_are_tried(make_record: Make) -> None:
    records = [timed(make_record, n, 1.0 + 0.05 * n) for n in range(8)]
    database = Database(records)
    model = fake({}, {"f": "w0", "g": "other"}, {"w0": records[0].identity})
    found = alternatives(model, database, TARGET)
    assert {d: [r.row for r in each] for d, each in found.items()} == {"w0": [(0,), (1,), (2,), (3,)]}
    slow = Database([records[0], timed(make_record, 9, 1.3)])
    assert [len(x) for x in alternatives(model, slow, TARGET).values()] == [1]
    other = fake({}, {"f": "w0"}, {"w0": records[2].identity})  # the record in use comes first, whatever its time
    assert [r.row[0] for r in alternatives(other, database, TARGET)["w0"]] == [2, 0, 1, 3]
    unknown = fake({}, {"f": "w0"}, {"w0": "a record that is not among the best"})
    assert alternatives(unknown, database, TARGET) == {}


def variants(models: Sequence[Any]) -> Callable[[Any], Any]:
    """Makes the models one after the other."""
    made = iter(models)
    return lambda ranked: next(made)


def test_the_record_of_the_fastest_calls_is_chosen(make_record: Make) -> None:
    records = {d: [timed(make_record, n, 1.0) for n in range(3)] for d in "abcd"}
    records["d"] = records["d"][:1]
    digests = {"a": "a", "b": "b", "c1": "c", "c2": "c", "d": "d"}
    base, *others = [
        fake({"a": 10.0, "b": 10.0, "c1": 10.0, "c2": 10.0, "d": 5.0}, digests),
        fake({"a": 9.0, "b": 10.0 * FASTER + 0.1, "c1": 4.0, "c2": 20.0, "d": 1.0}, digests),
        fake({"a": 8.0, "b": 11.0, "c1": 12.0, "c2": 1.0, "d": 1.0}, digests),
    ]
    # b is hardly faster; the calls of c are added; d has one record
    assert fastest_calls(base, variants(others), records, [], 60.0) == {"a": 2, "c": 2}


def test_variants_have_the_nth_records(make_record: Make) -> None:
    records = {"a": [timed(make_record, n, 1.0) for n in range(3)], "b": [timed(make_record, 7, 1.0)]}
    asked = []

    def make(ranked: Any) -> Any:
        asked.append({digest: [r.row[0] for r in each] for digest, each in ranked.items()})
        return fake({"a": 10.0}, {"a": "a"})

    assert fastest_calls(fake({"a": 10.0}, {"a": "a"}), make, records, [], 60.0) == {}
    assert asked == [{"a": [1], "b": [7]}, {"a": [2], "b": [7]}]


def test_no_variant_begins_that_would_end_late(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 10 s."""
    now = [0.0]
    monkeypatch.setattr(choose_in_model.time, "perf_counter", lambda: now[0])
    records = {"a": [timed(make_record, n, 1.0) for n in range(4)]}

    def variants_in(limit_s: float) -> int:
        made = []

        def make(ranked: Any) -> Any:
            made.append(ranked)
            now[0] += 10.0
            return fake({}, {})

        fastest_calls(fake({}, {}), make, records, [], limit_s)
        return len(made)

    assert [variants_in(s) for s in (5.0, 19.0, 21.0, 29.0, 100.0)] == [1, 1, 2, 2, 3]


def test_a_function_that_one_of_the_models_does_not_call_keeps_its_record(make_record: Make) -> None:
    records = {"a": [timed(make_record, n, 1.0) for n in range(2)]}
    assert fastest_calls(fake({"a": 10.0}, {"a": "a"}), variants([fake({"whole": 1.0}, {"whole": "w"})]), records, [], 60.0) == {}


def test_a_function_that_these_inputs_do_not_call_keeps_its_record(make_record: Make) -> None:
    """As in the body of a loop that ends before its first run: the profile has a row of 0 microseconds."""
    records = {"a": [timed(make_record, n, 1.0) for n in range(2)]}
    assert fastest_calls(fake({"a": 0.0}, {"a": "a"}), variants([fake({"a": 0.0}, {"a": "a"})]), records, [], 60.0) == {}


def test_a_selection_has_the_first_record_of_each_function(make_record: Make) -> None:
    records = [timed(make_record, n, 1.0 + n) for n in range(2)]
    assert [r.row[0] for r in selection({"w0": records}, Database()).records()] == [0]
    copy = marked(records[1])
    assert copy.extra[IN_MODEL] is True and copy.samples == records[1].samples and copy.schedule == records[1].schedule
    assert copy.identity != records[1].identity


def model() -> IRModule:
    b = GraphBuilder("main")
    weights = stream(0, "weights").standard_normal((16, 32)).astype(np.float32)
    return IRModule({"main": b.finish(b.softmax(b.matmul(b.input("x", (64, 16)), b.constant(weights, "w"))))})


TUNED = {"search": Search(seed=1), "budget": 12, "workers": 0, "progress": False}


def second(base: Any, make: object, ranked: dict[str, list[Record]], inputs: object, limit_s: float) -> dict[str, int]:
    """The second record of each function."""
    return {digest: 1 for digest, records in ranked.items() if len(records) > 1}


@pytest.fixture(autouse=True)
def long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for a choice after the short searches of these tests."""
    monkeypatch.setattr(check_model, "SHARE", 1000.0)


def test_a_short_search_leaves_no_time_for_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_model, "SHARE", 1e-9)
    monkeypatch.setattr(check_model, "fastest_calls", lambda *given: pytest.fail("variants are compiled"))
    assert tunesmith.tune(model(), log=tmp_path / "log.jsonl", **TUNED).models[0].chosen == 0


def test_a_choice_that_makes_the_model_faster_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(check_model, "fastest_calls", second)
    monkeypatch.setattr(check_model, "_is_faster", lambda other, new, inputs: True)
    monkeypatch.setattr(check_model, "_race", lambda old, new, inputs: (1.0, 1.0, False, True))
    report = tunesmith.tune(model(), log=log, **TUNED)
    (found,) = report.models
    assert found.chosen >= 1 and f"{found.chosen} of them for their speed in the model" in str(found)
    database = Database.from_log(log)
    chosen = {r.workload: r for r in database.records() if r.extra.get(IN_MODEL) is True}
    assert len(chosen) == found.chosen
    for digest, record in chosen.items():
        assert database.best(digest, record.target) == record
        task = next(t for t in report.tasks if t.digest == digest)
        assert task.best is not None and task.best.identity == record.identity
    used = {c.record for c in tunesmith.compile(model(), records=log).coverage if c.status == "used"}
    assert {r.identity for r in chosen.values()} <= used
    again = tunesmith.tune(model(), log=log, **TUNED)  # the marked copies are no trials
    assert [(t.trials, t.resumed) for t in again.tasks] == [(t.trials, t.trials) for t in report.tasks]


def test_a_choice_that_is_not_surely_faster_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(check_model, "fastest_calls", second)
    monkeypatch.setattr(check_model, "_is_faster", lambda other, new, inputs: False)
    (found,) = tunesmith.tune(model(), log=log, **TUNED).models
    assert found.chosen == 0 and "for their speed" not in str(found)
    assert not any(IN_MODEL in r.extra for r in Database.from_log(log).records())


@pytest.mark.parametrize(
    ("times", "clean", "faster"),
    [
        ([1.02] * 9, True, True),
        ([1.02] * 9, False, False),
        ([1.005] * 9, True, False),
        ([1.1] * 5 + [0.9] * 4, True, False),
        ([1.1] * 6 + [0.9] * 3, True, True),
        ([0.9] * 9, True, False),
    ],
)
def test_faster_by_the_median_and_in_most_undisturbed_pairs(
    monkeypatch: pytest.MonkeyPatch, times: list[float], clean: bool, faster: bool
) -> None:
    monkeypatch.setattr(check_model, "_paired", lambda other, new, inputs, policy: ([(1.0, t) for t in times], clean))
    assert check_model._is_faster(SimpleNamespace(), SimpleNamespace(), []) == faster  # type: ignore[arg-type]


def test_the_choice_is_part_of_a_search(tmp_path: Path) -> None:
    """Nothing is replaced here: whatever is chosen, the model computes the same."""
    log = tmp_path / "log.jsonl"
    (found,) = tunesmith.tune(model(), log=log, **TUNED).models
    assert dataclasses.asdict(found)["chosen"] == found.chosen >= 0
    x = stream(0, "x").standard_normal((64, 16)).astype(np.float32)
    tuned, plain = tunesmith.compile(model(), records=log)(x), tunesmith.compile(model())(x)
    np.testing.assert_allclose(np.asarray(tuned), np.asarray(plain), rtol=1e-5, atol=1e-6)
