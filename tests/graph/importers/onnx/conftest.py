"""Provide models of a few nodes, and their comparison, interpreted and compiled, with references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.ir import interpret
from tunesmith.graph.ir.verify import verify
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule

Arrays = Sequence[np.ndarray]
Agrees = Callable[..., CompiledModel]


def graph_model(nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Sequence[str], weights: Mapping[str, Any] | None = None) -> Any:
    """A model of nodes; inputs are names with (element type, shape)."""
    from onnx import helper, numpy_helper

    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def check(proto: Any, calls: Sequence[Arrays], reference: Callable[..., Arrays] | None = None) -> CompiledModel:
    """Compare the results of calls of one compiled model, and of the interpreter, with those of `reference`, by default ONNX's."""
    from onnx.reference import ReferenceEvaluator

    module = from_onnx(proto)
    verify(module["main"], module)
    model = compile_model(module, Target.detect(), untuned=default_schedule)
    names = [i.name for i in proto.graph.input]
    for arrays in calls:
        expected = reference(*arrays) if reference else ReferenceEvaluator(proto).run(None, dict(zip(names, arrays, strict=True)))
        compiled = model(*arrays)
        for made in (interpret.run(module["main"], list(arrays), module), compiled if isinstance(compiled, tuple) else (compiled,)):
            for a, e in zip(made, expected, strict=True):
                assert (a.shape, a.dtype) == (np.shape(e), np.asarray(e).dtype)
                np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    return model


@pytest.fixture(name="graph_model")
def graph_model_fixture() -> Callable[..., Any]:
    """`graph_model`."""
    return graph_model


@pytest.fixture
def agrees() -> Agrees:
    """`check`."""
    return check
