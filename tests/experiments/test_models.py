"""Test the comparison of models: precision and error of each system, and the systems that are skipped."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tunesmith.experiments.models import run
from tunesmith.experiments.models.files import Files
from tunesmith.experiments.models.run import Reference, Timed, checked, chosen_systems, columns, compared, line, timed
from tunesmith.experiments.models.torch_systems import float64_outputs
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.worker_pool import JobResult
from tunesmith.testing.torch_models import get

NEEDED = {"torch": "torch", "openvino": "openvino", "openvino_default": "openvino", "ncnn": "pnnx", "xla": "jaxonnxruntime"}


FILES = Files("", "f32")


def arguments(rounds: int, cold: bool = False) -> Namespace:
    return Namespace(size="small", batch=1, rounds=rounds, threads=1, cold=cold)


def reference(name: str) -> Reference:
    return Reference(float64_outputs(*get(name)))


@pytest.mark.parametrize("system", NEEDED)
def test_a_system_is_timed_with_its_precision_and_error(system: str) -> None:
    if importlib.util.find_spec(NEEDED[system]) is None:
        pytest.skip(f"{NEEDED[system]} is not installed")
    found = timed("resnet18", FILES, [system], reference("resnet18"), arguments(rounds=1))[system]
    assert found.precision == "f32" or system == "openvino_default"
    assert (0 < found.error < 1e-5) if found.precision == "f32" else (1e-5 < found.error < 8 * 2.0**-7)
    assert len(found.seconds) == 1 and found.median > 0


def test_cold_calls_are_timed_on_demand() -> None:
    found = timed("conv3x3_7x512", FILES, ["torch"], reference("conv3x3_7x512"), arguments(rounds=2, cold=True))["torch"]
    assert len(found.seconds) == len(found.cold_seconds) == 2 and min(found.cold_seconds) > 0
    assert ", cold " in line("torch", found) and columns({"torch": found})["cold_seconds"] == {"torch": found.cold_seconds}
    times = {"ours": Timed("f32", 0.0, [1.0], cold_seconds=[2.0]), "torch": Timed("f32", 0.0, [2.0], cold_seconds=[5.0])}
    assert compared(times) == "  torch / ours = 2.000 (f32), cold torch / ours = 2.500"


def test_a_model_with_integers_and_a_mask_has_a_float64_reference() -> None:
    found = timed("bert_base", FILES, ["torch"], reference("bert_base"), arguments(rounds=0))
    assert found["torch"].error < 1e-5


def test_a_system_without_a_layer_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pnnx") is None:
        pytest.skip("pnnx is not installed")
    assert timed("bert_base", FILES, ["ncnn"], reference("bert_base"), arguments(rounds=1)) == {}
    assert "ncnn: skipped: ncnn does not load the model that pnnx converted" in capsys.readouterr().out


class Pool:
    """Answers jobs as the process of a system would."""

    def __init__(self, outputs: list[np.ndarray], precision: str) -> None:
        self.answers = {"outputs": outputs, "precision": precision}

    def run(self, jobs: list[str]) -> list[JobResult]:
        return [JobResult(0, self.answers[jobs[0]], None, "", "", "", 0.0)]


def check(outputs: list[np.ndarray], precision: str, qdq: list[np.ndarray] | None = None, from_file: bool = True) -> Timed:
    pool: Any = Pool(outputs, precision)
    return checked(pool, Reference([np.array([[1.0, 4.0]])], qdq or ()), from_file)


def test_an_error_that_the_precision_does_not_explain_is_refused() -> None:
    assert check([np.array([1.0, 4.1])], "bf16") == Timed("bf16", pytest.approx(0.025))
    with pytest.raises(RunError, match=r"wrong result: the error is 2.5e-02 of the largest element, more than 1.0e-04 for f32"):
        check([np.array([1.0, 4.1])], "f32")
    with pytest.raises(RunError, match="the error is nan"):
        check([np.array([1.0, np.nan])], "f32")
    with pytest.raises(RunError, match=r"wrong result: the shapes are \[\(3,\)\], expected \[\(1, 2\)\]"):
        check([np.zeros(3)], "f32")


def test_the_error_of_a_quantised_model_is_compared_with_that_of_the_file() -> None:
    qdq = [np.array([[1.0, 4.1]])]
    found = check([np.array([1.0, 4.15])], "int8", qdq)
    assert (found.error, found.qdq_error) == (pytest.approx(0.0375), pytest.approx(0.05 / 4.1))
    assert line("ours", Timed("int8", 0.039, [1.0], 0.012)).endswith("error 3.9e-02, 1.2e-02 from the quantised model in float32")
    assert check([np.array([1.0, 3.85])], "int8", qdq, from_file=False).qdq_error == pytest.approx(0.25 / 4.1)
    assert check([np.array([1.0, 4.0])], "f32", qdq).qdq_error == pytest.approx(0.1 / 4.1)
    assert check([np.array([1.0, 4.25])], "int8+bf16", qdq).error == pytest.approx(0.0625)  # the rest of the model is in bfloat16
    with pytest.raises(RunError, match=r"wrong result: the error is 6.2e-02 of the largest element, more than 5.0e-02 for int8"):
        check([np.array([1.0, 4.25])], "int8", qdq)
    with pytest.raises(RunError, match=r"the difference from the quantised model in float32 is 6.1e-02 of the largest element, more than"):
        check([np.array([1.0, 3.85])], "int8", qdq)
    with pytest.raises(RunError, match="the error is nan"):
        check([np.array([1.0, np.nan])], "int8", qdq)


def test_the_ratio_compares_equal_precisions() -> None:
    times = {"ours": Timed("f32", 1e-6, [2.0]), "a": Timed("f32", 1e-6, [5.0, 3.0]), "b": Timed("bf16", 1e-3, [1.0])}
    assert compared(times) == "  a / ours = 2.000 (f32)"
    assert columns(times)["precision"] == {"ours": "f32", "a": "f32", "b": "bf16"}
    assert columns(times)["error"]["b"] == 1e-3 and columns(times)["seconds"]["a"] == [5.0, 3.0]
    assert "no ratio" in compared({"ours": times["ours"], "b": times["b"]}) and "no ratio" in compared({"a": times["a"]})


def test_an_unknown_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "resnet18", "--log", "none.jsonl", "--against", "torhc"])
    with pytest.raises(UserError, match="--against: unknown system torhc. Known systems: ours, ours_quantize, torch,"):
        run.main()


def test_quantised_systems_need_the_precision_int8_and_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--against: openvino_int8 runs quantised models: give --precision int8 or int8\+bf16"):
        chosen_systems("openvino,openvino_int8", "bf16")
    monkeypatch.setattr(run, "find_spec", lambda name: name if name == "onnx" else None)
    with pytest.raises(UserError, match="--precision int8: onnxruntime quantises the models, and onnxruntime is not installed"):
        chosen_systems(None, "int8")
    monkeypatch.setattr(run, "find_spec", lambda name: name)
    assert chosen_systems(None, "int8") == ["ours", "onnxruntime_int8", "openvino_int8", "openvino_int8_default"]
    assert chosen_systems("ours_quantize,torch", "int8+bf16") == ["ours", "ours_quantize", "torch"]
    assert chosen_systems(None, "bf16") == ["ours", *run.BASELINES]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "argument --rounds: it is a number of at least 1, not '0'"),
        (["--threads", "0"], "argument --threads: it is a number of at least 1, not '0'"),
        (["--batch", "x"], "argument --batch: it is a number of at least 1, not 'x'"),
        (["--precision", "int8", "--batch", "2"], "--batch: quantised models are compared with one input"),
    ],
)
def test_numbers_of_the_command_line(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "resnet18", "--log", "none.jsonl", *options])
    with pytest.raises(SystemExit):
        run.main()
    assert message in capsys.readouterr().err
