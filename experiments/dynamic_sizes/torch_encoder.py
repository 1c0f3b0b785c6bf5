"""Compare an encoder of dynamic length, tuned once for a range of lengths, with the encoder tuned for each length."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tunesmith
from tunesmith.experiments.dynamic_sizes.compare import SIZES, interleaved, show
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.ir.target.target import Target
from tunesmith.testing.torch_models import BertLayer


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([BertLayer(256, 4, 1024) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x, None)
        return x


def encoder(folder: Path, trials: int, target: Target) -> None:
    torch.manual_seed(0)
    net = Encoder().eval()
    dynamic = ({1: torch.export.Dim("n", max=128)},)
    with torch.no_grad():
        mod = tunesmith.from_torch(net, (torch.randn(1, 10, 256),), dynamic_shapes=dynamic)
    tunesmith.tune(mod, target, folder / "range.jsonl", budget=trials, sizes="n=1..128")
    made, untuned = tunesmith.compile(mod, target, folder / "range.jsonl"), tunesmith.compile(mod, target)
    for size in SIZES:
        static = bind_sizes(mod, {"n": size})
        tunesmith.tune(static, target, folder / "sizes.jsonl", budget=trials)
        fixed = tunesmith.compile(static, target, folder / "sizes.jsonl")
        x: Any = torch.randn(1, size, 256)
        with torch.no_grad():
            np.testing.assert_allclose(made(x), net(x), atol=1e-4)
            calls: dict[str, Any] = {"range": made, "size": fixed, "untuned": untuned, "torch": net}
            show(size, interleaved({name: partial(call, x) for name, call in calls.items()}))
