"""Test torch nodes with failing converters (reported with the node) and tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import library, nn  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import TORCH_OPERATORS, from_torch  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402


def test_failing_converter_is_reported_with_its_node() -> None:
    TORCH_OPERATORS.register("tunesmith_test.breaks.default", lambda call, x, dims: dims[5])

    @library.custom_op("tunesmith_test::breaks", mutates_args=())
    def breaks(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        return x + 1

    breaks.register_fake(lambda x, dims: torch.empty_like(x))

    class Breaks(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.tunesmith_test.breaks(x, [1, 2])

    with pytest.raises(
        ModelImportError, match=r"breaks.default: its converter does not accept these arguments \(IndexError.*\n.*node breaks"
    ) as e:
        from_torch(Breaks(), (torch.ones(3),))
    assert isinstance(e.value.__cause__, IndexError)


class Calls(nn.Module):
    """A function wrapped in a module."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Any) -> Any:
        return self.f(*args)


def test_tensors_without_elements_are_dropped() -> None:
    a, b = torch.arange(12.0).reshape(3, 4), torch.ones(2, 4)
    for f in (
        lambda a, b: torch.cat([a[:0], b]),
        lambda a, b: torch.cat([b * 2, (a[2:2] + 1).relu(), a]),
        lambda a, b: torch.cat([a[3:], b]),
    ):
        got = tunesmith.compile(from_torch(Calls(f), (a, b)))(a.numpy(), b.numpy())
        np.testing.assert_array_equal(got, f(a, b).numpy())
    with pytest.raises(ModelImportError, match="a result has no elements"):
        from_torch(Calls(lambda a: (a[:0], a + 1)), (a,))
    with pytest.raises(ModelImportError, match=r"aten.sum.default.*extent 0"):
        from_torch(Calls(lambda a: a[:0].sum()), (a,))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_bools(name: str) -> None:
    x = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def f(x: Any) -> Any:
        best = getattr(x, name)(1)
        return getattr(x, name)(), getattr(x, f"a{name}")(0), best.values, best.indices, getattr(x, f"a{name}")((0, 1), keepdim=True)

    got = tunesmith.compile(from_torch(Calls(f), (x,)))(x.numpy())
    for mine, torchs in zip(got, f(x), strict=True):
        np.testing.assert_array_equal(mine, torchs.numpy(), strict=True)
