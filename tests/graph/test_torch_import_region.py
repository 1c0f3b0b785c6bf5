"""Nodes of a torch program: what a converter does not take is refused with the node, and empty parts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import library, nn  # noqa: E402

from tunesmith.graph.torch_import import TORCH_OPERATORS, from_torch  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402


def test_a_converter_that_breaks_is_reported_with_its_node() -> None:
    TORCH_OPERATORS.register("tunesmith_test.breaks.default", lambda call, x, dims: dims[5])

    @library.custom_op("tunesmith_test::breaks", mutates_args=())
    def breaks(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        return x + 1

    breaks.register_fake(lambda x, dims: torch.empty_like(x))

    class Breaks(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.tunesmith_test.breaks(x, [1, 2])

    with pytest.raises(
        ModelImportError, match=r"breaks.default: its converter does not take these arguments \(IndexError.*\n.*node breaks"
    ) as e:
        from_torch(Breaks(), (torch.ones(3),))
    assert isinstance(e.value.__cause__, IndexError)
