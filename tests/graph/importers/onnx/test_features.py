"""Test ONNX feature extraction and sampling beyond the node tests: results without elements, attributes that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from tunesmith.driver.compile_model import compile_model  # noqa: E402
from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.ir.function import IRModule  # noqa: E402
from tunesmith.ir.target.target import Target  # noqa: E402
from tunesmith.lower.fallback.default_schedule import default_schedule  # noqa: E402


def imported(
    operator: str,
    inputs: dict[str, np.ndarray],
    constants: dict[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    domain: str = "",
    **attributes: Any,
) -> IRModule:
    """A model of one node, whose operands are inputs and then constants."""
    constants = constants or {}
    made = helper.make_node(operator, [*inputs, *constants], list(outputs), name="odd", domain=domain, **attributes)
    types = {k: helper.np_dtype_to_tensor_dtype(x.dtype) for k, x in inputs.items()}
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info(k, types[k], x.shape) for k, x in inputs.items()],
        [helper.make_tensor_value_info(o, 1, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 5)]
    return from_onnx(helper.make_model(graph, opset_imports=opsets))


def result(operator: str, inputs: dict[str, np.ndarray], *args: Any, **options: Any) -> np.ndarray:
    return run(imported(operator, inputs, *args, **options)["main"], list(inputs.values()))[0]


ROWS = np.float32([[0.5, 2, 1], [3, np.nan, 1]])
TREE: dict[str, Any] = {
    "nodes_featureids": [0, 1, 2],
    "nodes_modes": np.uint8([1, 2, 6]),
    "nodes_splits": np.float32([1, 1.5, 0]),
    "nodes_truenodeids": [1, 0, 2],
    "nodes_trueleafs": [0, 1, 1],
    "nodes_falsenodeids": [2, 1, 3],
    "nodes_falseleafs": [0, 1, 1],
    "leaf_weights": np.float32([1, 10, 100, 1000]),
    "leaf_targetids": [0, 1, 0, 1],
    "membership_values": np.float32([4, 1, np.nan]),
    "tree_roots": [0],
    "n_targets": 2,
}


def tree(x: np.ndarray, **changed: Any) -> np.ndarray:
    given = {k: numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in {**TREE, **changed}.items()}
    return result("TreeEnsemble", {"x": x}, domain="ai.onnx.ml", **given)


def test_decision_trees() -> None:
    """x0 < 1: is x1 >= 1.5 (leaf 0), or not (leaf 1); otherwise: is x2 4 or 1 (leaf 2), or not (leaf 3)."""
    x = np.float32([[0, 2, 0], [0, 1, 0], [1, 0, 4], [5, 9, 1], [5, 0, 2]])
    assert tree(x).tolist() == [[1, 0], [0, 10], [100, 0], [100, 0], [0, 1000]]
    missing = np.float32([[np.nan, 2, 0]])
    assert tree(missing).tolist() == [[0, 1000]]
    assert tree(missing, nodes_missing_value_tracks_true=[1, 0, 0]).tolist() == [[1, 0]]
    assert tree(x[:1], aggregate_function=0).tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_truenodeids": [1, 0, 1], "nodes_trueleafs": [0, 1, 0]}, "the node 1 is reached twice, so the nodes are not trees"),
        ({"nodes_trueleafs": [0, 0, 1]}, "the node 0 is reached twice"),
        ({"nodes_truenodeids": [7, 0, 2]}, "do not match its inputs.*IndexError"),
        ({"nodes_modes": np.uint8([1, 9, 6])}, "the mode 9 of a node"),
        ({"aggregate_function": 3}, "an aggregate other than the sum and the average"),
    ],
)
def test_trees_that_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OnnxImportError, match=message):
        tree(ROWS, **changed)


NGRAMS: dict[str, Any] = {
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7],
    "ngram_counts": [0, 3],
    "ngram_indexes": [4, 0, 1, 2, 3],
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
    "mode": "TF",
}


def test_n_grams() -> None:
    tokens = np.int64([[4, 5, 6, 5, 7], [2, 2, 6, 3, 7]])
    counts = result("TfIdfVectorizer", {"x": tokens}, **NGRAMS)
    assert counts.tolist() == [[0, 2, 1, 1, 0], [1, 0, 0, 1, 2]]
    assert result("TfIdfVectorizer", {"x": tokens[1]}, **NGRAMS).tolist() == counts[1].tolist()
    weights = {"weights": [0.5, 1.0, 2.0, 4.0, 8.0]}
    assert result("TfIdfVectorizer", {"x": tokens}, **{**NGRAMS, "mode": "IDF"}, **weights).tolist() == [[0, 2, 4, 8, 0], [1, 0, 0, 8, 0.5]]
    assert result("TfIdfVectorizer", {"x": tokens[1]}, **{**NGRAMS, "mode": "TFIDF"}, **weights).tolist() == [1, 0, 0, 8, 1]


def test_inverse_transform_of_any_length() -> None:
    signal = np.random.default_rng(1).standard_normal((2, 7, 3)).astype(np.float32)
    spectrum = np.fft.rfft(signal, axis=1)
    x = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    for length in (7, 6, 4):
        constants = {"n": np.int64(length), "axis": np.int64(1)}
        made = result("DFT", {"x": x}, constants, inverse=1, onesided=1)
        np.testing.assert_allclose(made[..., 0], np.fft.irfft(spectrum, length, axis=1), rtol=1e-4, atol=1e-5)


MEL = {"bins": np.int64(8), "n": np.int64(16), "rate": np.int64(8192), "low": np.float32(0), "high": np.float32(4096)}
IMAGE = np.zeros((1, 2, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("operator", "inputs", "constants", "attributes", "message"),
    [
        ("TfIdfVectorizer", {"x": np.int64([1])}, {}, {**NGRAMS, "pool_strings": ["a"]}, "n-grams of strings"),
        ("TfIdfVectorizer", {"x": np.int64([1])}, {}, {**NGRAMS, "mode": "BM25"}, "the mode 'BM25'"),
        ("MelWeightMatrix", {}, {**MEL, "bins": np.int64(0)}, {}, "numbers must be positive"),
        ("MelWeightMatrix", {}, {**MEL, "high": np.float32(9000)}, {}, "an upper edge of 9000.0 Hz beyond half the sampling rate"),
        ("DFT", {"x": ROWS[..., None]}, {}, {"inverse": 1, "onesided": 1}, "it must be 2, complex"),
        ("ImageDecoder", {"x": np.uint8([1])}, {}, {}, "it decodes files of images"),
        ("RandomUniformLike", {"x": ROWS}, {}, {}, "it draws random numbers"),
        ("NonMaxSuppression", {"x": ROWS}, {}, {}, "input 1 is missing"),
        ("RoiAlign", {"x": IMAGE, "r": IMAGE[0, 0, :, [0, 1, 2, 0]].T, "b": np.int64([0, 0, 0])}, {}, {}, "sampling_ratio 0, with which"),
        ("DeformConv", {"x": IMAGE[..., 0], "w": IMAGE[..., 0], "o": IMAGE[..., 0]}, {}, {}, "over 1 dimensions"),
        ("BitCast", {"x": ROWS}, {}, {"to": 7}, "the types must be numbers of one width"),
    ],
)
def test_refusals(
    operator: str, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OnnxImportError, match=message):
        imported(operator, inputs, constants, **attributes)


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_results_without_elements(executor: str) -> None:
    module = imported("Split", {"x": ROWS[:, :2]}, {"sizes": np.int64([0, 2])}, ["empty", "rest"], axis=1)
    made = compile_model(module, Target.detect(), executor=executor, untuned=default_schedule)(ROWS[:, :2].copy())
    assert made[0].shape == (2, 0)
    np.testing.assert_array_equal(made[1], ROWS[:, :2])
