"""Tests of the sizes that imported torch programs accept: lower bounds, constant accesses, derived sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.support.errors import RunError  # noqa: E402


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class ApplyAll(Apply):
    def forward(self, x: Any, *more: Any) -> Any:
        return self.function(x, *more)


def written(x: Any) -> Any:
    y = x.clone()
    y[:, 1] = 5.0
    return y


def accepted(function: Callable[..., Any], sizes: Sequence[int], dim: Any = Dim.AUTO) -> list[int]:
    """The sizes of axis 1 that the imported function accepts; its results at these are those of torch."""
    model = Apply(function)
    func = from_torch(model, (torch.randn(3, 8),), ({1: dim},))["main"]
    found = []
    for n in sizes:
        x = torch.randn(3, n)
        try:
            (got,) = run(func, [x.numpy()])
        except RunError:
            continue
        np.testing.assert_allclose(got, model(x).numpy(), 1e-5, 1e-6)
        found.append(n)
    return found


REFLECT = {"mode": "reflect"}


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        pytest.param(lambda x: x[:, 1], [2, 3, 4, 5], id="element"),
        pytest.param(lambda x: x[:, -2], [2, 3, 4, 5], id="element from the end"),
        pytest.param(lambda x: torch.topk(x, 2, 1)[0], [2, 3, 4, 5], id="top 2"),
        pytest.param(lambda x: torch.topk(x, 3, 1)[0], [3, 4, 5], id="top 3"),
        pytest.param(lambda x: nn.functional.pad(x, (1, 1), **REFLECT), [2, 3, 4, 5], id="reflection of 1"),
        pytest.param(lambda x: nn.functional.pad(x, (3, 3), **REFLECT), [4, 5], id="reflection of 3"),
        pytest.param(lambda x: nn.functional.pad(x[None], (1, 0), mode="replicate"), [1, 2, 3, 4, 5], id="replication"),
        pytest.param(written, [2, 3, 4, 5], id="written element"),
        pytest.param(lambda x: torch.select_scatter(x, torch.zeros(3), 1, 4), [5], id="scattered slice"),
        pytest.param(lambda x: x[:, [0, 3]], [4, 5], id="constant indices"),
        pytest.param(lambda x: x[:, [0, -3]], [3, 4, 5], id="constant indices from the end"),
        pytest.param(lambda x: x[[0, 1], [0, 3]], [4, 5], id="constant index vectors"),
        pytest.param(lambda x: x.max(1)[0], [1, 2, 3, 4, 5], id="maximum of no elements"),
        pytest.param(lambda x: x.squeeze(1), [0, 2, 3, 4, 5], id="removed axis"),
        pytest.param(lambda x: torch.cat([x, x[:, :1]], 1), [1, 2, 3, 4, 5], id="clamped slice"),
        pytest.param(lambda x: x.relu() - x.sum(1, keepdim=True), [0, 1, 2, 3, 4, 5], id="no access"),
    ],
)
def test_sizes_are_those_for_which_constant_accesses_are_in_bounds(function: Callable[..., Any], sizes: list[int]) -> None:
    assert accepted(function, range(6)) == sizes


def test_a_compiled_model_refuses_a_size_below_a_constant_index() -> None:
    model = tunesmith.compile(from_torch(Apply(lambda x: x[:, 1]), (torch.randn(3, 8),), ({1: Dim("a", max=64)},)))
    assert model(torch.ones(3, 2)).shape == (3,)
    with pytest.raises(RunError, match="the program requires a > 1, and the inputs have a = 1"):
        model(torch.ones(3, 1))


@pytest.mark.parametrize("least", [0, 1, 2, 3])
def test_lower_bounds_of_the_user_are_enforced(least: int) -> None:
    assert accepted(lambda x: x * 2, range(5), Dim("a", min=least)) == list(range(least, 5))


@pytest.mark.parametrize(
    "shapes", [({0: Dim("n", min=2)}, ({0: Dim("m", min=1)},)), {"x": {0: Dim("n", min=2)}, "more": ({0: Dim("m", min=1)},)}]
)
def test_lower_bounds_of_variadic_arguments_are_enforced(shapes: Any) -> None:
    func = from_torch(ApplyAll(lambda x, y: x.sum() + y), (torch.ones(4), torch.ones(5)), shapes)["main"]
    assert [v.name for v in func.sizes] == ["n", "m"]
    assert run(func, [np.ones(2, np.float32), np.ones(1, np.float32)])[0].tolist() == [3.0]
    for n, m in ((1, 3), (3, 0)):
        with pytest.raises(RunError, match="violates the assumption"):
            run(func, [np.ones(n, np.float32), np.ones(m, np.float32)])


def test_two_sizes_that_are_too_small_together_are_refused() -> None:
    func = from_torch(Apply(lambda x: x.reshape(-1)[1]), (torch.ones(4, 3),), ({0: Dim.AUTO, 1: Dim.AUTO},))["main"]
    for shape in ((1, 2), (2, 1), (2, 2)):
        run(func, [np.ones(shape, np.float32)])
    for shape in ((1, 1), (0, 2), (2, 0)):
        with pytest.raises(RunError, match="violates the assumption"):
            run(func, [np.ones(shape, np.float32)])


def test_branches_are_replayed() -> None:
    def branches(x: Any) -> Any:
        return torch.cond(x.sum() > 4, lambda x: x[:, 1] + 1, lambda x: x[:, 0] - 1, (x,))

    assert accepted(branches, range(4)) == [2, 3]


@pytest.mark.parametrize(
    ("function", "dim", "sizes"),
    [
        (lambda x: x * 2, 2 * Dim("h"), [0, 2, 4, 6]),
        (lambda x: x.sum(1), 2 * Dim("h", min=2), [4, 6]),
        (lambda x: x[:, 1:] + 1, 2 * Dim("h") + 1, [1, 3, 5]),
    ],
)
def test_derived_input_sizes(function: Callable[..., Any], dim: Any, sizes: list[int]) -> None:
    model = Apply(function)
    example = torch.randn(3, 9 if sizes[0] % 2 else 8)
    func = from_torch(model, (example,), ({1: dim},))["main"]
    for n in range(7):
        x = torch.randn(3, n)
        if n in sizes:
            np.testing.assert_allclose(run(func, [x.numpy()])[0], model(x).numpy(), 1e-5, 1e-6)
        else:
            with pytest.raises(RunError, match="violates the assumption"):
                run(func, [x.numpy()])
