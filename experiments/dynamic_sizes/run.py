"""Compare functions and models tuned once for a range of sizes with the same, tuned for each size.

    python experiments/dynamic_sizes/run.py matmul FOLDER --trials 48
    python experiments/dynamic_sizes/run.py encoder FOLDER --trials 16
    python experiments/dynamic_sizes/run.py bert FOLDER --trials 16

Every size is tuned with the number of trials of one bucket of the range.  The calls are timed in turns, and the medians are printed.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.experiments.dynamic_sizes.compare import SIZES, Call, interleaved, show
from tunesmith.ir.specialize import specialize
from tunesmith.ir.target.target import Target


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
            "range": partial(dynamic["matmul"], x, y, out, size),
            "size": partial(fixed["matmul"], x, y, out),
            "untuned": partial(untuned["matmul"], x, y, out, size),
        }
        show(size, interleaved(calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["matmul", "encoder", "bert"])
    parser.add_argument("folder", type=Path, help="Folder of the logs.")
    parser.add_argument("--trials", type=int, default=48)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.what == "matmul":
        matmul(given.folder, given.trials, Target.detect())
    else:
        from tunesmith.experiments.dynamic_sizes import torch_encoder

        getattr(torch_encoder, given.what)(given.folder, given.trials, Target.detect())


if __name__ == "__main__":
    main()
