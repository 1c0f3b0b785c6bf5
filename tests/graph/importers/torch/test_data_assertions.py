"""Test assertions about data, and constants of unsupported types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402


class Asserting(nn.Module):
    def forward(self, x: Any, n: Any) -> Any:
        longest = n.max().item()
        torch._check(longest <= 7)
        torch._check(longest + 1 >= 0)
        torch._check((n > 0).all().item())
        return x * 2


def test_a_number_from_data_that_only_assertions_use_is_not_computed() -> None:
    mod = from_torch(Asserting(), (torch.ones(3), torch.tensor([2, 5])))
    (y,) = run(mod["main"], [np.ones(3, np.float32), np.array([2, 5])], mod)
    assert np.array_equal(y, np.full(3, 2.0)) and str(mod["main"]).count("return") == 1


class ComplexTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Any) -> Any:
        return (x * self.table.real).sum() + torch.linalg.vector_norm(x * self.table.abs())


def test_a_converter_is_not_called_with_an_unsupported_constant() -> None:
    with pytest.raises(ModelImportError) as error:
        from_torch(ComplexTable(), (torch.ones(3),))
    assert "tensor table: tensors of complex64 cannot be imported" in str(error.value) and "NoneType" not in str(error.value)
