"""Expression graphs in torch: equality with numpy, exact derivatives against differences, rules of relaxed ones."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tunesmith.costmodel.analytic.model import AnalyticModel
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.formulas.expr_graph import OPERATIONS, Dag, Num, NumpyProgram
from tunesmith.costmodel.formulas.torch_program import SHARPNESS, TorchProgram
from tunesmith.ir.poly import Param
from tunesmith.support.errors import MissingExtraError
from tunesmith.support.seeds import stream
from tunesmith.testing.sampler_conformance import TARGET, example_task

A, B, C = (Param(n, range(1, 65)) for n in "abc")


def columns(dag: Dag) -> list[Num]:
    return [dag._atom(p, None) for p in dag.params]  # type: ignore[arg-type]


def gradient(program: TorchProgram, rows: np.ndarray) -> np.ndarray:
    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    program(x).sum().backward()
    assert x.grad is not None
    return x.grad.numpy()


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_has_the_values_of_numpy(op: str, relaxed: bool) -> None:
    dag = Dag([A, B, C])
    count = {"where": 3, "slog2": 1}.get(op, 2)
    roots = [dag.make(op, *columns(dag)[:count]), dag.make(op, *columns(dag)[:count]) * 3.0, dag.const(2.5)]
    rows = stream(0, "torch", op).integers(1, 9, size=(500, 3))
    found = TorchProgram(dag, roots, relaxed=relaxed)(torch.tensor(rows, dtype=torch.float64)).numpy()
    assert found.shape == (3, 500)
    np.testing.assert_allclose(found, NumpyProgram(dag, roots)(rows), rtol=1e-15)


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("name", ["usual", "joint"])
def test_costs_features_and_constraints_have_the_values_of_numpy(name: str, relaxed: bool) -> None:
    for sketch in example_task(name).space.sketches[:2]:
        rows = sketch.space.sample(100, stream(1, "torch"))
        model, features = AnalyticModel(sketch.timed, sketch.params, TARGET), FeatureProgram(sketch.timed, sketch.params)
        dag = Dag(sketch.params)
        graphs = [
            (model.analysis.dag, [model.cost.seconds, *model.cost.terms.values()]),
            (features.analysis.dag, [n for store in features._stores for n in store]),
            (dag, [dag.poly(c.expr) for c in sketch.constraints]),
        ]
        for graph, roots in graphs:
            found = TorchProgram(graph, roots, relaxed=relaxed)(torch.tensor(rows, dtype=torch.float64)).numpy()
            # log2 differs slightly between the libraries.
            np.testing.assert_allclose(found, NumpyProgram(graph, roots)(rows), rtol=1e-14)


def differences(value: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, step: float) -> np.ndarray:
    out = np.empty_like(rows)
    for j in range(rows.shape[1]):
        delta = np.zeros(rows.shape[1])
        delta[j] = step
        out[:, j] = (value(rows + delta) - value(rows - delta)) / (2 * step)
    return out


def test_exact_derivatives_equal_differences_where_values_are_smooth() -> None:
    sketch = example_task("usual").space.sketches[1]
    model = AnalyticModel(sketch.timed, sketch.params, TARGET)
    reference = NumpyProgram(model.analysis.dag, [model.cost.seconds])
    rng = stream(2, "torch")
    # Between whole numbers, where no floor, ceil or comparison of whole tiles has a step.
    rows = sketch.space.sample(200, rng) + rng.uniform(0.2, 0.4, (200, len(sketch.params)))

    def microseconds(at: np.ndarray) -> np.ndarray:
        return np.asarray(1e6 * reference(at)[0])

    fine, coarse = differences(microseconds, rows, 1e-6), differences(microseconds, rows, 1e-5)
    scale = np.abs(fine).max(axis=1, keepdims=True) + 1e-9
    smooth = np.abs(fine - coarse) < 1e-6 * scale
    assert smooth.mean() > 0.9
    found = 1e6 * gradient(TorchProgram(model.analysis.dag, [model.cost.seconds]), rows)
    assert (np.abs(found - fine)[smooth] < 1e-5 * np.broadcast_to(scale, fine.shape)[smooth]).all()


def test_relaxed_derivatives_are_exact_without_steps() -> None:
    dag = Dag([A, B, C])
    a, b, c = columns(dag)
    roots = [dag.slog2(a * b) / (c + 1.0) - a * 0.5]
    rows = stream(3, "torch").uniform(1, 60, (50, 3))
    exact, relaxed = (gradient(TorchProgram(dag, roots, relaxed=r), rows) for r in (False, True))
    np.testing.assert_array_equal(exact, relaxed)
    np.testing.assert_allclose(exact, differences(lambda x: NumpyProgram(dag, roots)(x)[0], rows, 1e-5), rtol=1e-6, atol=1e-8)


def test_relaxed_steps_have_smooth_derivatives() -> None:
    dag = Dag([A, B, C])
    a, b, _ = columns(dag)

    def of(root: Num, *row: float) -> list[float]:
        assert not gradient_is_useful(dag, root, row)
        return [float(x) for x in gradient(TorchProgram(dag, [root], relaxed=True), np.array([row]))[0]]

    assert of(dag.ceildiv(100.0, a), 7, 1, 1) == pytest.approx([-100 / 49, 0, 0])
    assert of(dag.make("floordiv", a, b), 50, 7, 1) == pytest.approx([1 / 7, -50 / 49, 0])
    above = of(a > b, 12, 10, 1)
    assert above[0] > 0 and above[0] == pytest.approx(-above[1]) and above[2] == 0
    assert above[0] < SHARPNESS / (4 * 23)


def gradient_is_useful(dag: Dag, root: Num, row: tuple[float, ...]) -> bool:
    """Whether an exact derivative is not zero."""
    x = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    value = TorchProgram(dag, [root])(x)
    if not value.requires_grad:
        return False
    value.sum().backward()
    return x.grad is not None and bool((x.grad != 0).any())


def test_relaxed_selects_and_extrema_share_derivatives() -> None:
    dag = Dag([A, B, C])
    a, b, c = columns(dag)
    row = np.array([[10.0, 12.0, 5.0]])
    loser, winner, _ = gradient(TorchProgram(dag, [dag.maximum(a, b)], relaxed=True), row)[0]
    assert 0 < loser < winner and loser + winner == pytest.approx(1)
    far = gradient(TorchProgram(dag, [dag.minimum(a, b)], relaxed=True), np.array([[1.0, 60.0, 1.0]]))[0]
    assert far[0] > 0.99 and 0 < far[1] < 0.01
    # Increasing a makes the condition larger, and the branch selected by it has the larger value.
    chosen = gradient(TorchProgram(dag, [dag.where(a > b, c * 100.0, c)], relaxed=True), row)[0]
    assert chosen[0] > 0 > chosen[1] and chosen[2] == 1


def test_without_torch_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"gradients needs the package `torch`.*pip install 'tunesmith\[torch\]'"):
        TorchProgram(Dag([A]), [])
