"""Test the comparison of quantised models: the file, and agreement of the systems that run it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import onnx

from tunesmith.experiments.models import onnxruntime_qdq as made
from tunesmith.experiments.models import run
from tunesmith.experiments.models.onnxruntime_qdq import calibration_batches, qdq_file, qdq_outputs
from tunesmith.experiments.models.run import largest_error
from tunesmith.experiments.models.torch_systems import float64_outputs
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.ir.interpret import run as interpret
from tunesmith.support.errors import RunError
from tunesmith.testing.torch_models import get


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert_base", "vit_b16", "gpt2_prefill"])
def test_an_imported_file_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    path = qdq_file(name, "small", tmp_path)
    _, inputs = get(name)
    expected = qdq_outputs(path, inputs)
    assert 1e-3 < largest_error(expected, float64_outputs(*get(name))) < 0.1
    got = interpret(from_onnx(path)["main"], [x.numpy() for x in inputs])
    assert largest_error(got, expected) < 1e-2  # a value between two bytes is rounded to either


def test_a_file_is_made_once_for_equal_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = qdq_file("resnet18", "small", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["resnet18_small_qdq.onnx"]
    before = path.stat()
    assert qdq_file("resnet18", "small", tmp_path) == path and path.stat().st_mtime_ns == before.st_mtime_ns
    monkeypatch.setattr(made, "get", lambda name, size: get(name, size, seed=1))
    assert qdq_file("resnet18", "small", tmp_path).stat().st_mtime_ns > before.st_mtime_ns


def test_weights_are_rounded_by_channel_and_calibration_inputs_differ(tmp_path: Path) -> None:
    proto = onnx.load(qdq_file("resnet18", "small", tmp_path))
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    kernels = [n for n in proto.graph.node if n.op_type == "DequantizeLinear" and arrays.get(n.input[0], np.zeros(0)).ndim == 4]
    assert kernels and all(arrays[n.input[1]].shape == arrays[n.input[0]].shape[:1] for n in kernels)
    assert {arrays[n.input[0]].dtype for n in kernels} == {np.dtype(np.int8)}
    batches = calibration_batches("resnet18", "small")
    assert len({batch[0].tobytes() for batch in [*batches, [get("resnet18")[1][0].numpy()]]}) == len(batches) + 1


def test_a_model_that_cannot_be_quantised_is_skipped_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("unsupported operator\nand a long trace")

    monkeypatch.setattr(made, "_quantize", refuse)
    with pytest.raises(RunError, match="^onnxruntime does not quantise resnet18: ValueError: unsupported operator$"):
        qdq_file("resnet18", "small", tmp_path)
    monkeypatch.setattr(made, "export_onnx", refuse)
    with pytest.raises(RunError, match="^torch does not export resnet18 to ONNX: ValueError: unsupported operator$"):
        qdq_file("resnet18", "small", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_systems_run_one_file_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    log, found = tmp_path / "log.jsonl", tmp_path / "found.json"
    words = ["vit_b16", "--size", "small", "--precision", "int8", "--against", "onnxruntime_int8,openvino_int8"]
    monkeypatch.setattr("sys.argv", ["run.py", *words, "--log", str(log), "--rounds", "1", "--threads", "1", "--json", str(found)])
    run.main()
    printed, columns = capsys.readouterr().out, json.loads(found.read_text())["vit_b16"]
    assert (tmp_path / "vit_b16_small_qdq.onnx").exists() and "/ ours =" in printed
    assert {"ours", "onnxruntime_int8"} <= set(columns["seconds"])
    assert set(columns["precision"].values()) == {"int8"}
    assert columns["qdq_error"]["ours"] < 1e-2 and columns["qdq_error"]["onnxruntime_int8"] < 1e-2
