"""Import the products of mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.verify import verify

torch = pytest.importorskip("torch")


def test_products_of_groups() -> None:
    """The operator of mixtures of experts, which transformers defines; an empty group, and rows after the last one."""

    def grouped(x: Any, weights: Any, ends: Any) -> Any:
        out = torch.zeros(x.shape[0], weights.shape[2])
        for g, (start, end) in enumerate(zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)):
            out[start:end] = x[start:end] @ weights[g]
        return out

    from torch import library

    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        schema = "(Tensor x, Tensor w, Tensor e) -> Tensor"
        library.custom_op("transformers::grouped_mm_fallback", mutates_args=(), schema=schema)(grouped)
        made_fake = library.register_fake("transformers::grouped_mm_fallback")
        made_fake(lambda x, w, e: x.new_empty(x.shape[0], w.shape[2]))

    class Experts(torch.nn.Module):
        def forward(self, x: Any, weights: Any, ends: Any) -> Any:
            return torch.ops.transformers.grouped_mm_fallback(x, weights, ends)

    x, weights, ends = torch.randn(9, 4), torch.randn(4, 4, 5), torch.tensor([2, 2, 6, 8], dtype=torch.int32)
    func = from_torch(Experts(), (x, weights, ends))["main"]
    verify(func)
    (out,) = run(func, [x.numpy(), weights.numpy(), ends.numpy()])
    np.testing.assert_allclose(out, grouped(x, weights, ends).numpy(), rtol=1e-5, atol=1e-6)
    assert not out[8].any()
