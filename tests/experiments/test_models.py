"""Test the comparison of models: precision and error of each system, and the systems that are skipped."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tunesmith.experiments.models import run
from tunesmith.experiments.models.run import Timed, checked, columns, compared, timed
from tunesmith.experiments.models.torch_systems import float64_outputs
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.worker_pool import JobResult
from tunesmith.testing.torch_models import get

NEEDED = {"torch": "torch", "openvino": "openvino", "openvino_default": "openvino", "ncnn": "pnnx"}


def reference(name: str) -> list[np.ndarray]:
    return float64_outputs(*get(name))


@pytest.mark.parametrize("system", NEEDED)
def test_a_system_is_timed_with_its_precision_and_error(system: str) -> None:
    if importlib.util.find_spec(NEEDED[system]) is None:
        pytest.skip(f"{NEEDED[system]} is not installed")
    found = timed("resnet18", "small", "", [system], reference("resnet18"), 1, 1)[system]
    assert found.precision == "f32" or system == "openvino_default"
    assert (0 < found.error < 1e-5) if found.precision == "f32" else (1e-5 < found.error < 8 * 2.0**-7)
    assert len(found.seconds) == 1 and found.median > 0


def test_a_model_with_integers_and_a_mask_has_a_float64_reference() -> None:
    found = timed("bert_base", "small", "", ["torch"], reference("bert_base"), 0, 1)
    assert found["torch"].error < 1e-5


def test_a_system_without_a_layer_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pnnx") is None:
        pytest.skip("pnnx is not installed")
    assert timed("bert_base", "small", "", ["ncnn"], reference("bert_base"), 1, 1) == {}
    assert "ncnn: skipped: ncnn does not load the model that pnnx converted" in capsys.readouterr().out


class Pool:
    """Answers jobs as the process of a system would."""

    def __init__(self, outputs: list[np.ndarray], precision: str) -> None:
        self.answers = {"outputs": outputs, "precision": precision}

    def run(self, jobs: list[str]) -> list[JobResult]:
        return [JobResult(0, self.answers[jobs[0]], None, "", "", "", 0.0)]


def check(outputs: list[np.ndarray], precision: str) -> Timed:
    pool: Any = Pool(outputs, precision)
    return checked(pool, [np.array([[1.0, 4.0]])])


def test_an_error_that_the_precision_does_not_explain_is_refused() -> None:
    assert check([np.array([1.0, 4.1])], "bf16") == Timed("bf16", pytest.approx(0.025))
    with pytest.raises(RunError, match=r"wrong result: the error is 2.5e-02 of the largest element, more than 1.0e-04 for f32"):
        check([np.array([1.0, 4.1])], "f32")
    with pytest.raises(RunError, match="the error is nan"):
        check([np.array([1.0, np.nan])], "f32")
    with pytest.raises(RunError, match=r"wrong result: the shapes are \[\(3,\)\], expected \[\(1, 2\)\]"):
        check([np.zeros(3)], "f32")


def test_the_ratio_compares_equal_precisions() -> None:
    times = {"ours": Timed("f32", 1e-6, [2.0]), "a": Timed("f32", 1e-6, [5.0, 3.0]), "b": Timed("bf16", 1e-3, [1.0])}
    assert compared(times) == "  a / ours = 2.000 (f32)"
    assert columns(times)["precision"] == {"ours": "f32", "a": "f32", "b": "bf16"}
    assert columns(times)["error"]["b"] == 1e-3 and columns(times)["seconds"]["a"] == [5.0, 3.0]
    assert "no ratio" in compared({"ours": times["ours"], "b": times["b"]}) and "no ratio" in compared({"a": times["a"]})


def test_an_unknown_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "resnet18", "--log", "none.jsonl", "--against", "torhc"])
    with pytest.raises(UserError, match="--against: unknown system torhc. Known systems: ours, torch,"):
        run.main()
