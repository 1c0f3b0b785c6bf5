"""Measure imports, sketch generation, drafts, scores and compilation: `asv run`, `asv continuous main HEAD`, `asv publish`.

`time_` benchmarks are seconds; `track_` benchmarks return a number in `unit`.  Everything random has a fixed seed, and the target is a
named processor, so that the work is the same on every machine and commit; the code is compiled for it and not run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from tunesmith.codegen.llvm.build import build
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.models.registry import find_model
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

TARGET = "llvm -mcpu=x86-64-v3 -num-cores=2"
MATMUL = "matmul(m=1024,n=1024,k=1024)"
CONV2D = "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)"
WORKLOADS = [MATMUL, CONV2D]
ROWS = 4096
"""Configurations of a sketch in a batch."""
ROUNDS = 5
SKETCHES = 4
"""Sketches of a workload that candidates are drafted of."""


class Import:
    """Seconds of an import in a fresh interpreter, less those of an interpreter that imports nothing."""

    params = ("tunesmith", "tunesmith.cli.main")
    param_names = ("module",)
    unit = "s"
    timeout = 120

    def track_import(self, module: str) -> float:
        program = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
        return min(float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout) for _ in range(ROUNDS))


class Sketches:
    """Seconds to generate the search space of a workload: rules applied, tables of admissible rows built."""

    params = WORKLOADS
    param_names = ("workload",)

    def setup(self, text: str) -> None:
        self.func, self.target = workload(text).func, Target(TARGET)

    def time_generate(self, text: str) -> None:
        generate(self.func, self.target)


class Draft:
    """Candidates per second: configurations drawn, constraints checked, features computed, analytic cost evaluated."""

    params = WORKLOADS
    param_names = ("workload",)
    unit = "candidates/s"

    def setup(self, text: str) -> None:
        target = Target(TARGET)
        self.sketches = generate(workload(text).func, target).sketches[:SKETCHES]
        self.programs = [FeatureProgram(s.timed, s.params, s.constraints, target=target) for s in self.sketches]
        self.rng = stream(0, "benchmarks", text)
        for s, p in zip(self.sketches, self.programs, strict=True):
            p.scored(s.space.sample(64, self.rng))  # compiles the formulas

    def track_drafted(self, text: str) -> float:
        rates = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for s, p in zip(self.sketches, self.programs, strict=True):
                p.scored(s.space.sample(ROWS, self.rng))
            rates.append(ROWS * len(self.sketches) / (time.perf_counter() - start))
        return median(rates)


class Score:
    """Scores of feature vectors with the analytic model, in candidates per second."""

    params = WORKLOADS
    param_names = ("workload",)
    unit = "candidates/s"

    def setup(self, text: str) -> None:
        target = Target(TARGET)
        sketch = generate(workload(text).func, target).sketches[0]
        program = FeatureProgram(sketch.timed, sketch.params, sketch.constraints, target=target)
        self.features, _ = program.scored(sketch.space.sample(ROWS, stream(0, "benchmarks", text)))
        self.model = find_model("analytic")()

    def track_scored(self, text: str) -> float:
        rates = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            self.model.score(self.features)
            rates.append(len(self.features) / (time.perf_counter() - start))
        return median(rates)


class Compile:
    """Milliseconds to compile one candidate of the first sketch: lowering alone, and with LLVM."""

    params = WORKLOADS
    param_names = ("workload",)
    unit = "ms"

    def setup(self, text: str) -> None:
        self.target = Target(TARGET)
        sketch = generate(workload(text).func, self.target).sketches[0]
        rows = sketch.space.sample(ROUNDS, stream(0, "benchmarks", text))
        self.candidates = [sketch.concretize(tuple(row.tolist())) for row in rows]

    def track_lower(self, text: str) -> float:
        return median([self._milliseconds(lambda c: CPU(c, self.target), c) for c in self.candidates])

    def track_build(self, text: str) -> float:
        return median([self._milliseconds(lambda c: build(c, self.target), c) for c in self.candidates])

    @staticmethod
    def _milliseconds(run, candidate) -> float:
        start = time.perf_counter()
        run(candidate)
        return (time.perf_counter() - start) * 1e3
