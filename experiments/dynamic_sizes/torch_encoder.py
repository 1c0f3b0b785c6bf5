"""Compare encoders of dynamic length, tuned once for a range of lengths, with the same encoders tuned for each length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tunesmith
from tunesmith.experiments.dynamic_sizes.compare import SIZES, interleaved, show
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.ir.target.target import Target
from tunesmith.testing.torch_attention_models import BertLayer
from tunesmith.testing.torch_models import get

LONGEST = 128
EXAMPLE = 10
"""Length of the inputs for the export."""
Inputs = tuple[Any, ...]


class Encoder(torch.nn.Module):
    """Two layers of width 256, without embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([BertLayer(256, 4, 1024) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x, None)
        return x


def encoder(folder: Path, trials: int, target: Target) -> None:
    """The small encoder."""
    torch.manual_seed(0)
    _compare(Encoder().eval(), lambda n: (torch.randn(1, n, 256),), folder, trials, target)


def bert(folder: Path, trials: int, target: Target) -> None:
    """BERT base: twelve layers of width 768, from token numbers to hidden states."""
    net, _ = get("bert_base", size="full")

    def inputs(n: int) -> Inputs:
        ids = torch.randint(0, 1000, (1, n))
        return ids, torch.zeros_like(ids), torch.ones_like(ids)

    _compare(net, inputs, folder, trials, target)


def _compare(net: Any, inputs: Callable[[int], Inputs], folder: Path, trials: int, target: Target) -> None:
    """Tune for the range, then for each size, and time both with torch, after a comparison of their outputs."""
    example = inputs(EXAMPLE)
    length = torch.export.Dim("n", max=LONGEST)
    with torch.no_grad():
        mod = tunesmith.from_torch(net, example, dynamic_shapes=tuple([{1: length} for _ in example]))
    tunesmith.tune(mod, target, folder / "range.jsonl", budget=trials, sizes=f"n=1..{LONGEST}")
    made, untuned = tunesmith.compile(mod, target, folder / "range.jsonl"), tunesmith.compile(mod, target)
    for size in SIZES:
        static = bind_sizes(mod, {"n": size})
        tunesmith.tune(static, target, folder / "sizes.jsonl", budget=trials)
        fixed = tunesmith.compile(static, target, folder / "sizes.jsonl")
        x = inputs(size)
        with torch.no_grad():
            for ours, theirs in zip(_tuple(made(*x)), _tuple(net(*x)), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-4)
            calls: dict[str, Any] = {"range": made, "size": fixed, "untuned": untuned, "torch": net}
            show(size, interleaved({name: partial(call, *x) for name, call in calls.items()}))


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)
