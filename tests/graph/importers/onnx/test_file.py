"""Test reading ONNX files: truncated files, and weights in other files, which must be in the model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tunesmith.graph.importers.onnx import file as files  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.ir import interpret  # noqa: E402
from tunesmith.graph.ir.function import GraphFunc  # noqa: E402
from tunesmith.support.errors import MissingExtraError, ModelImportError  # noqa: E402


def model(nodes: Sequence[Any], weights: dict[str, np.ndarray] | None = None, functions: Sequence[Any] = ()) -> Any:
    """A model of y from x, a vector of 4 elements."""
    x, y = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(list(nodes), "tested", [x], [y], [numpy_helper.from_array(w, k) for k, w in (weights or {}).items()])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), [output], name=f"the_{operator}", **attributes)


def evaluated(path: Path) -> np.ndarray:
    """The result of the model for ones."""
    func = from_onnx(path)["main"]
    assert isinstance(func, GraphFunc)
    return interpret.run(func, [np.ones(4, np.float32)])[0]


ARANGE = np.arange(4, dtype=np.float32)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = model([node("Add", "x w")], {"w": ARANGE})
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(evaluated(path), ARANGE + 1)
    with pytest.raises(ModelImportError, match="whose folder is unknown"):
        from_onnx(path.read_bytes())
    content = proto.SerializeToString()
    with pytest.raises(ModelImportError, match=r"the bytes is not an ONNX model, or it is truncated \(\d+ bytes\)"):
        from_onnx(content[: len(content) // 2])
    with pytest.raises(ModelImportError, match="cannot read the ONNX file"):
        from_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelImportError, match="not an ONNX model"):
        from_onnx(b"")
    with pytest.raises(ModelImportError, match="got int"):
        from_onnx(3)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "link.bin", ""])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    proto = model([node("Add", "x w")], {"w": ARANGE})
    _external(proto.graph.initializer[0], location)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelImportError, match="outside the model's folder"):
        from_onnx(folder / "model.onnx")


def _external(tensor: Any, location: str) -> Any:
    """The tensor with its elements at `location`."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _model_with_nested_weights(location: str, place: str) -> Any:
    """y = x + w, where w is external and in a sub-graph, a function, or a sub-graph of a function."""
    w = _external(numpy_helper.from_array(ARANGE, "w"), location)
    value = [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
    in_graph = helper.make_graph([node("Add", "x w", "b")], "then", [], value, [w])
    constant = node("Constant", "", "w", value=w)
    in_attribute = helper.make_graph([constant, node("Add", "x w", "b")], "then", [], value)
    graph = in_attribute if "attribute" in place else in_graph
    truth = node("Constant", "", "c", value=numpy_helper.from_array(np.array(True)))
    branch = node("If", "c", then_branch=graph, else_branch=graph)
    if not place.startswith("function"):
        return model([truth, branch])
    inside = [constant, node("Add", "x w", "y")] if place == "function" else [truth, branch]
    function = helper.make_function("mine", "Shifted", ["x"], ["y"], inside, [helper.make_opsetid("", 20)])
    call = node("Shifted", "x", domain="mine")
    return model([call], functions=[function])


PLACES = ["sub-graph", "sub-graph, attribute", "function", "function, sub-graph", "function, sub-graph, attribute"]


@pytest.mark.parametrize("place", PLACES)
def test_weights_of_nested_graphs_are_read_from_the_folder_only(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (folder, tmp_path):
        (path / "weights.bin").write_bytes(ARANGE.tobytes())
    path = folder / "model.onnx"
    path.write_bytes(_model_with_nested_weights("weights.bin", place).SerializeToString())
    np.testing.assert_array_equal(evaluated(path), ARANGE + 1)
    path.write_bytes(_model_with_nested_weights("../weights.bin", place).SerializeToString())
    with pytest.raises(ModelImportError, match="the weights of 'w' are at '../weights.bin', outside the model's folder"):
        from_onnx(path)
    with pytest.raises(ModelImportError, match="whose folder is unknown"):
        from_onnx(path.read_bytes())


def test_defaults_of_functions_and_sparse_weights_are_checked(tmp_path: Path) -> None:
    weights = _external(numpy_helper.from_array(np.zeros(4, np.float32), "w"), "../weights.bin")
    plain = node("Relu", "x")
    with_default = model([plain])
    default = helper.make_function(
        "mine", "F", ["x"], ["y"], [plain], [helper.make_opsetid("", 20)], attribute_protos=[helper.make_attribute("t", weights)]
    )
    with_default.functions.append(default)
    sparse = model([plain])
    sparse.graph.sparse_initializer.add(values=weights, dims=[4])
    constant = node("Constant", "", "k", sparse_value=onnx.SparseTensorProto(values=weights, dims=[4]))
    in_attribute = model([constant, plain])
    for proto in (with_default, sparse, in_attribute):
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ModelImportError, match="outside the model's folder"):
            from_onnx(tmp_path / "model.onnx")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = model([node("Add", "x w")], {"w": ARANGE})
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelImportError, match="the weights of 'w' should be in .*weights.bin"):
        from_onnx(path)


def test_missing_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(files, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'tunesmith\[onnx\]'"):
        from_onnx(b"")
