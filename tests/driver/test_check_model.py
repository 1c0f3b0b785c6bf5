"""Compare models before and after a search: what is compared, what is withdrawn, and that withdrawn records stay unused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.display.model_check import Withdrawn
from tunesmith.driver.compile_model import CompiledModel
from tunesmith.driver.model_check import check_model, check_models, choose_in_model
from tunesmith.driver.tune_options import Search
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.measure.policies import MeasurePolicy
from tunesmith.measure.records.database import Database
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

FEW = {"search": Search("random", seed=1, leaders=0), "budget": 2, "workers": 0, "progress": False}


def model(rows: int | Var = 8) -> IRModule:
    b = GraphBuilder("main")
    weights = stream(0, "weights").standard_normal((16, 32)).astype(np.float32)
    return IRModule({"main": b.finish(b.relu(b.matmul(b.input("x", (rows, 16)), b.constant(weights, "w"))))})


def test_a_model_is_compared_as_a_whole(tmp_path: Path) -> None:
    report = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW)
    (found,) = report.models
    assert found.before > 0 and found.after > 0 and found.changed == 1
    assert ("-> " in str(found)) == found.clean and "1 functions changed" in str(found) and "The model as a whole" in str(report)
    assert report.to_json()["models"] == [found.to_json()]


def test_the_comparison_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tunesmith.tune(model(), log=tmp_path / "log.jsonl", **{**FEW, "progress": True})
    shown = capsys.readouterr().err
    assert "compiling the model as a whole, with the records before and after the search" in shown
    assert "timing the model before and after the search" in shown


MODEL = """
import numpy as np
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule

def make():
    with open("{runs}", "a") as file:
        file.write("run\\n")
    b = GraphBuilder("main")
    weights = b.constant(np.random.rand(16, 32).astype("float32"), "w")
    return IRModule({{"main": b.finish(b.relu(b.matmul(b.input("x", (8, 16)), weights)))}})
"""


def test_a_model_that_a_text_names_is_compared_as_a_whole(tmp_path: Path) -> None:
    """Its file runs once: another run would make a model with other weights."""
    (tmp_path / "net.py").write_text(MODEL.format(runs=tmp_path / "runs.txt"))
    report = tunesmith.tune(f"{tmp_path / 'net.py'}:make", log=tmp_path / "log.jsonl", **FEW)
    assert [m.changed for m in report.models] == [1] and [t.workload for t in report.tasks] == ["make/fused_matmul_relu"]
    assert (tmp_path / "runs.txt").read_text() == "run\n"


def test_a_model_of_an_onnx_file_is_compared_as_a_whole(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    x, y = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy"]
    save(helper.make_model(helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])), tmp_path / "net.onnx")
    report = tunesmith.tune(str(tmp_path / "net.onnx"), log=None, **FEW)
    assert len(report.models) == 1 and [t.workload.partition("/")[0] for t in report.tasks] == ["net"]


def test_the_log_may_have_records_of_other_models(tmp_path: Path) -> None:
    """No warning about the records before the search, which are none of this model."""
    for rows in (4, 8):
        report = tunesmith.tune(model(rows), log=tmp_path / "log.jsonl", **FEW)
        assert len(report.models) == 1


def test_equal_schedules_are_not_compared(tmp_path: Path) -> None:
    tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW)
    again = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW)
    assert again.models == () and "models" not in again.to_json()


def test_the_comparison_can_be_left_out(tmp_path: Path) -> None:
    search = Search("random", seed=1, leaders=0, check_models=False)
    assert tunesmith.tune(model(), log=tmp_path / "log.jsonl", **{**FEW, "search": search}).models == ()


def test_only_models_with_constant_shapes_are_compared() -> None:
    assert check_model.can_check(model())
    assert not check_model.can_check(model(Var("n")))
    assert not check_model.can_check(IRModule({}))


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedule is chosen by its speed in the model: tests/driver/test_choose_in_model.py."""
    monkeypatch.setattr(check_model, "alternatives", lambda *given: {})


@pytest.fixture
def slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model and its only function look slower after the search; the second comparison finds them equal."""
    races = iter([(1.0, 2.0, True, True), (1.0, 1.0, False, True)])
    times = iter([{"fused_matmul_relu": 1e-5}, {"fused_matmul_relu": 2e-5}])

    def race(old: CompiledModel, new: CompiledModel, inputs: list[np.ndarray]) -> tuple[float, float, bool, bool]:
        assert [x.shape for x in inputs] == [(8, 16)]
        return next(races)

    monkeypatch.setattr(check_model, "_race", race)
    monkeypatch.setattr(check_model, "seconds_by_function", lambda m, inputs, repeats: next(times))


@pytest.mark.usefixtures("slower")
def test_a_record_that_made_the_model_slower_is_withdrawn(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(model(), log=log, **FEW)
    (found,) = report.models
    (withdrawn,) = found.withdrawn
    assert withdrawn.function == "fused_matmul_relu" and (found.before, found.after) == (1.0, 1.0)
    assert "withdrawn, because slower in the model: fused_matmul_relu (10 -> 20 us" in str(found)
    database = Database.from_log(log)
    (line,) = [r for r in database.records() if r.error is not None]
    assert line.error is not None and line.error.kind == "slower_in_model" and "take 20 us, and took 10 us before" in line.error.message
    used = [c.record for c in tunesmith.compile(model(), records=log).coverage if c.status == "used"]
    assert withdrawn.record not in used
    assert report.tasks[0].best is None or report.tasks[0].best.identity != withdrawn.record


def test_a_function_in_place_of_several_is_compared_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`one` computes what `a` and `b` did, 3 us; `c` is in both models."""
    for one, expected in ((2.9e-6, []), (4e-6, ["one"])):
        times = iter([{"a": 1e-6, "b": 2e-6, "c": 5e-6}, {"one": one, "c": 5e-6}])
        monkeypatch.setattr(check_model, "seconds_by_function", lambda m, inputs, repeats, times=times: next(times))
        nothing: Any = None
        found = check_model._slower_calls(nothing, nothing, [], {"one": "record 1", "c": "record 2"})
        assert [w.function for w in found] == expected and all((w.before, w.after) == (3e-6, 4e-6) for w in found)


def test_a_disturbed_comparison_withdraws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_model, "_race", lambda old, new, inputs: (1.0, 4.0, True, False))
    monkeypatch.setattr(check_model, "seconds_by_function", lambda m, inputs, repeats: pytest.fail("the calls are compared"))
    (found,) = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW).models
    assert not found.withdrawn and "not compared, because other load disturbed the samples, 1 functions changed" in str(found)


def test_a_search_without_new_trials_compares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW)
    monkeypatch.setattr(check_model, "compile_model", lambda *given, **options: pytest.fail("the model is compiled"))
    assert tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW).models == ()


def test_choices_that_are_withdrawn_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_model, "SHARE", 1e9)
    monkeypatch.setattr(check_model, "_race", lambda old, new, inputs: (1.0, 2.0, True, True))
    monkeypatch.setattr(check_model, "_is_faster", lambda other, new, inputs: True)
    monkeypatch.setattr(check_model, "fastest_calls", lambda new, make, ranked, inputs, limit_s: dict.fromkeys(ranked, 1))
    slower = [Withdrawn("fused_matmul_relu", "", 1e-6, 2e-6)]
    monkeypatch.setattr(
        check_model, "_slower_calls", lambda old, new, inputs, changed: [dataclasses.replace(w, record=changed[w.function]) for w in slower]
    )
    few = {**FEW, "budget": 3, "policy": MeasurePolicy(verify="always")}
    monkeypatch.setattr(choose_in_model, "TOLERATED", 1e9)
    monkeypatch.setattr(check_model, "alternatives", choose_in_model.alternatives)
    (found,) = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **few).models
    assert len(found.withdrawn) == 1 and found.chosen == 0
    slower.clear()
    (found,) = tunesmith.tune(model(), log=tmp_path / "other.jsonl", **few).models
    assert not found.withdrawn and found.chosen == 1 and "1 of them for their speed in the model" in str(found)


def test_a_slower_model_without_slower_calls_withdraws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_model, "_race", lambda old, new, inputs: (1.0, 2.0, True, True))
    monkeypatch.setattr(check_model, "seconds_by_function", lambda m, inputs, repeats: {"fused_matmul_relu": 1e-5})
    (found,) = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW).models
    assert not found.withdrawn and found.after == 2.0


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (BuildError("no code"), "the model could not be compared as a whole: no code"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "interrupted while the model was compared as a whole"),
    ],
)
def test_a_comparison_that_fails_keeps_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, note: str) -> None:
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(check_models, "check_model", fail)
    report = tunesmith.tune(model(), log=tmp_path / "log.jsonl", **FEW)
    assert report.ok and report.models == () and report.tasks[0].trials == 2
    assert any(note in n for n in report.notes)


def test_slower_in_most_pairs_and_by_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def set_input(self, n: int, x: np.ndarray) -> None:
            pass

        def run(self) -> None:
            pass

    class Timed:
        def __init__(self, seconds: list[float]) -> None:
            self.seconds, self.clean = tuple(seconds), True

    def verdict(new: list[float]) -> bool:
        monkeypatch.setattr(check_model, "interleaved", lambda calls, policy: {"old": Timed([1.0] * len(new)), "new": Timed(new)})
        return check_model._race(Fake(), Fake(), [])[2]  # type: ignore[arg-type]

    assert verdict([1.1] * 8)
    assert not verdict([1.01] * 8)
    assert not verdict([0.9, 0.9, 0.9, 1.1, 1.1, 1.1, 1.1, 1.1])
    assert not verdict([0.9] * 8)
