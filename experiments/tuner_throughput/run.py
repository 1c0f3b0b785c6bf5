"""Measure the candidates per second that a process drafts and scores: `python experiments/tuner_throughput/run.py [WORKLOAD...]`.

Drafted: configurations sampled from the tables, joint constraints checked, features computed, analytic model evaluated.
Scored: feature vectors of candidates through XGBoost, and features of their stores through the MLP if torch is installed, both trained on
512 candidates (with analytic times, which need no measurement).
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import suppress

import numpy as np

from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import find_model
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import MissingExtraError
from tunesmith.support.seeds import stream

WORKLOADS = (
    "matmul(m=1024,n=1024,k=1024)",
    "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "softmax(m=1024,n=1024)",
)
ROWS = 4096
ROUNDS = 9


def main(texts: list[str]) -> None:
    """Print a line per workload: medians over rounds, with all sketches in turn."""
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
        stores = programs[0].inputs(sketches[0].space.sample(ROWS, rng), "stores")
        rates = {"xgb": scored(find_model("xgb")(), vectors, seconds)}
        with suppress(MissingExtraError):
            rates["mlp"] = scored(find_model("mlp")(), stores, seconds)
        print(
            f"{text}: {len(sketches)} sketches in {made:.2f} s; drafted {statistics.median(drafted) / 1e6:.2f} M/s, "
            f"scored {', '.join([f'{name} {rate / 1e3:.0f} k/s' for name, rate in rates.items()])}",
            flush=True,
        )


def scored(model: CostModel, features: np.ndarray, seconds: np.ndarray) -> float:
    """Candidates per second scored by a trained model."""
    model.update(features[:512], seconds[:512], np.zeros(512, np.int64))
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        model.score(features)
        rates.append(len(features) / (time.perf_counter() - start))
    return statistics.median(rates)


if __name__ == "__main__":
    main(sys.argv[1:] or list(WORKLOADS))
