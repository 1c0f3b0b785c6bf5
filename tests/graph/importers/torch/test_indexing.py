"""Test out-of-range and broadcast indices of imported torch models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.support.errors import RunError

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Indexed(torch.nn.Module):
    """Model that selects rows by indices with the torch function named by `which`."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which

    def forward(self, x: Any, i: Any) -> Any:
        wide = i[:, None].expand(4, 3)
        return {
            "index": lambda: x[i],
            "pairs": lambda: x[i, i - i],
            "take_along_dim": lambda: torch.take_along_dim(x, i[:, None], 0),
            "embedding": lambda: F.embedding(i, x),
            "one_hot": lambda: F.one_hot(i, 5),
            "scatter": lambda: x.scatter(0, wide, torch.ones(4, 3)),
            "index_add": lambda: x.index_add(0, i, torch.ones(4, 3)),
        }[self.which]()


@pytest.mark.parametrize("which", ["index", "pairs", "take_along_dim", "embedding", "one_hot", "scatter", "index_add"])
def test_indices_out_of_range_are_reported_with_bounds_check(which: str) -> None:
    """The bounds check reports the same indices as torch, including negative ones."""
    x, good = torch.arange(15, dtype=torch.float32).reshape(5, 3), torch.tensor([4, 0, 2, 2])
    model = Indexed(which)
    made = tunesmith.compile(from_torch(model, (x, good)), bounds_check=True)
    np.testing.assert_array_equal(made(x.numpy(), good.numpy()), model(x, good).numpy())
    for bad in (5, -6, -8):
        with pytest.raises(RunError, match="out of bounds"):
            made(x.numpy(), np.array([4, bad, 2, 2]))


def test_take_along_dim_broadcasts_and_flattens() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            return torch.take_along_dim(x, i), torch.take_along_dim(x[:1], i[:, None], -1), torch.take_along_dim(x, i[None, :3] // 4, -2)

    x, i = torch.arange(15, dtype=torch.float32).reshape(5, 3), torch.tensor([0, 1, 2, 2])
    made = tunesmith.compile(from_torch(Model(), (x, i)))
    for got, expected in zip(made(x.numpy(), i.numpy()), Model()(x, i), strict=True):
        np.testing.assert_array_equal(got, expected.numpy())
