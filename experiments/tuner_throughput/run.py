"""How many candidates a second one process drafts and scores: `python experiments/tuner_throughput/run.py [WORKLOAD...]`.

Drafted: rows drawn from the tables, joint constraints checked, features computed, analytic model evaluated.
Scored: feature vectors of candidates through XGBoost trained on 512 of them (on analytic times, which cost nothing to get).
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from tunesmith.costmodel.feature_program import FeatureProgram
from tunesmith.costmodel.xgb_model import XGBModel
from tunesmith.ir.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space_rules import generate
from tunesmith.support.seeds import stream

WORKLOADS = (
    "matmul(m=1024,n=1024,k=1024)",
    "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "softmax(m=1024,n=1024)",
)
ROWS = 4096
ROUNDS = 9


def main(texts: list[str]) -> None:
    """Print one line for each workload: medians over rounds, all sketches in turn."""
    target = Target("llvm")
    for text in texts:
        w = workload(text)
        start = time.perf_counter()
        sketches = generate(w.func, target).sketches
        made = time.perf_counter() - start
        programs = [FeatureProgram(s.timed, s.params, s.constraints, target=target) for s in sketches]
        rng = stream(0, "throughput", text)
        for s, p in zip(sketches, programs, strict=True):
            p.scored(s.space.sample(64, rng))  # compiles
        drafted: list[float] = []
        vectors = seconds = None
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for s, p in zip(sketches, programs, strict=True):
                vectors, seconds = p.scored(s.space.sample(ROWS, rng))
            drafted.append(ROWS * len(sketches) / (time.perf_counter() - start))
        assert vectors is not None and seconds is not None
        model = XGBModel()
        model.update(vectors[:512], seconds[:512], np.zeros(512, np.int64))
        scored: list[float] = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            model.score(vectors)
            scored.append(len(vectors) / (time.perf_counter() - start))
        print(
            f"{text}: {len(sketches)} sketches in {made:.2f} s; drafted {statistics.median(drafted) / 1e6:.2f} M/s, "
            f"scored {statistics.median(scored) / 1e3:.0f} k/s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(WORKLOADS))
