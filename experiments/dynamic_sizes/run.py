"""Compare functions and models tuned once for a range of sizes with the same, tuned for each size.

    python experiments/dynamic_sizes/run.py matmul FOLDER --trials 48
    python experiments/dynamic_sizes/run.py encoder FOLDER --trials 16

Every size is tuned with the number of trials of one bucket of the range.  The calls are timed in turns, and the medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.ir.specialize import specialize
from tunesmith.ir.target.target import Target

SIZES = (1, 16, 64, 100, 128)
Call = Callable[[], object]


def interleaved(calls: dict[str, Call], seconds: float = 4.0) -> dict[str, float]:
    """Median microseconds of each call; the calls take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for name, call in calls.items():
            call()
            begin = time.perf_counter()
            for _ in range(4):
                call()
            samples[name].append((time.perf_counter() - begin) / 4)
    return {name: statistics.median(s) * 1e6 for name, s in samples.items()}


def matmul(folder: Path, trials: int, target: Target) -> None:
    n = te.var("n")
    a, b, k = te.placeholder((n, 768), name="A"), te.placeholder((768, 768), name="B"), te.reduce_axis(768, "k")
    c = te.compute((n, 768), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), "C")
    func = te.create_prim_func([a, b, c], "matmul")
    tunesmith.tune(func, target, folder / "range.jsonl", budget=trials, sizes="n=1..128")
    dynamic, untuned = tunesmith.compile(func, target, folder / "range.jsonl"), tunesmith.compile(func, target)
    y = np.random.rand(768, 768).astype("float32")
    for size in SIZES:
        static = specialize(func, {"n": size})
        tunesmith.tune(static, target, folder / "sizes.jsonl", budget=trials)
        fixed = tunesmith.compile(static, target, folder / "sizes.jsonl")
        x, out = np.random.rand(size, 768).astype("float32"), np.empty((size, 768), "float32")
        calls: dict[str, Call] = {
            "range": dynamic["matmul"].prepared(x, y, out, size),
            "size": fixed["matmul"].prepared(x, y, out),
            "untuned": untuned["matmul"].prepared(x, y, out, size),
        }
        show(size, interleaved(calls))


def encoder(folder: Path, trials: int, target: Target) -> None:
    import torch

    from tunesmith.testing.torch_models import BertLayer

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([BertLayer(256, 4, 1024) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x, None)
            return x

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


def show(size: int, times: dict[str, float]) -> None:
    cells = "  ".join(f"{name} {us:9.1f} us" for name, us in times.items())
    print(f"n = {size:4d}  {cells}  range / size {times['range'] / times['size']:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["matmul", "encoder"])
    parser.add_argument("folder", type=Path, help="Folder of the logs.")
    parser.add_argument("--trials", type=int, default=48)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    {"matmul": matmul, "encoder": encoder}[given.what](given.folder, given.trials, Target.detect())


if __name__ == "__main__":
    main()
