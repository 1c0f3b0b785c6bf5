"""Compare trials per second of local processes and Ray actors: `python experiments/ray_throughput/run.py [--workers N] [WORKLOAD]`.

Both sides stay open, have equal numbers of builders and one runner, and measure the same random candidates, new ones each round; the order
alternates.  The ratio of a round compares adjacent times, so that a varying load has little effect.  The goal for the median is 0.9 with
two workers on one machine.  Builds alone are timed too, because they exchange most of the messages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time

from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.ray.ray_builder import RayBuilder
from tunesmith.measure.ray.ray_cluster import RayCluster
from tunesmith.measure.ray.ray_runner import RayRunner
from tunesmith.measure.runner import Runner
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.task import Task


class Side:
    """Builders and a runner of one kind, with their trials per second in each round."""

    def __init__(self, name: str, target: Target, builder: Builder, runner: Runner, stack: contextlib.ExitStack) -> None:
        self.name = name
        self._target = json.dumps(target.to_json(facts=True))
        self._builder = stack.enter_context(builder)
        stack.enter_context(runner)
        self._measurer = stack.enter_context(Measurer(target, builder, runner))
        self.rates: list[float] = []
        self.build_rates: list[float] = []

    def round(self, task: Task, candidates: list[tuple[int, tuple[int, ...]]]) -> None:
        """Measure the candidates, then build them again without running them."""
        start = time.perf_counter()
        self._measurer.measure(task.measured, candidates)
        middle = time.perf_counter()
        self._builder.build([task.measured.request(c, self._target) for c in candidates])
        self.rates.append(len(candidates) / (middle - start))
        self.build_rates.append(len(candidates) / (time.perf_counter() - middle))


def main() -> None:
    """Print a line per round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="matmul(m=256,n=256,k=256)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=32, help="trials per round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    target, w = Target("llvm"), workload(given.workload)
    task = Task(w.text, w.func, target, w.reference, w.flops)
    sampler = RandomSampler(task, 0)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(RayCluster(given.workers))
        sides = [
            Side("local", target, LocalBuilder(given.workers), LocalRunner(target.num_cores), stack),
            Side("ray", target, RayBuilder(cluster, given.workers), RayRunner(cluster, target, 1), stack),
        ]
        for k in range(-1, given.rounds):  # round -1 starts processes and fills caches
            candidates = [(c.sketch, c.row) for c in sampler.ask(given.trials)]
            for side in sides if k % 2 else sides[::-1]:
                side.round(task, candidates)
            local, ray = sides
            if k < 0:
                local.rates, local.build_rates, ray.rates, ray.build_rates = [], [], [], []
                continue
            both = "; ".join(f"{s.name} {s.rates[-1]:.1f} trials/s, {s.build_rates[-1]:.1f} builds/s" for s in sides)
            print(f"round {k}: {both}; ratio of trials {ray.rates[-1] / local.rates[-1]:.3f}", flush=True)
        ratios = [b / a for a, b in zip(local.rates, ray.rates, strict=True)]
        builds = [b / a for a, b in zip(local.build_rates, ray.build_rates, strict=True)]
    print(
        f"{given.workload}, {given.workers} workers, {given.rounds} rounds of {given.trials}: ray / local = "
        f"{statistics.median(ratios):.3f} (trials), {statistics.median(builds):.3f} (builds)"
    )


if __name__ == "__main__":
    main()
