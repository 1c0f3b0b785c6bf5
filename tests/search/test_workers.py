"""Check that a search does not depend on the number of build workers, because seeds belong to candidates, not to workers.

Candidates are built by 1, 2 and 4 workers; their times are a function of their object code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tunesmith.costmodel.models.xgb_model import XGBModel
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.runner import Runner, RunRequest, RunResult
from tunesmith.ops.workload import workload
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler, EvolutionSettings
from tunesmith.search.task import Task
from tunesmith.search.tuner import tune_task

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster


class RecordedRunner(Runner):
    """Derives the time of an object from its code, so it is equal in every run."""

    def run(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        out = []
        for r in requests:
            seconds = 1e-6 * (1 + int.from_bytes(hashlib.blake2b(r.code.data, digest_size=2).digest(), "little"))
            out.append(RunResult((seconds,), True, None, True, 0.0))
        return out

    def compare(self, requests: Sequence[RunRequest], policy: TimingPolicy) -> list[RunResult]:
        return self.run(requests)

    def close(self) -> None:
        return None


def search(make: Callable[[], Builder]) -> list[tuple[str, tuple[int, ...], float]]:
    w = workload("matmul(m=48,n=32,k=16)")
    target = Target("llvm")
    task = Task(w.text, w.func, target, w.reference, w.flops)
    sampler = EvolutionarySampler(task, XGBModel(seed=3), 3, EvolutionSettings(draft=512, keep=64, generations=2))
    found: list[tuple[str, tuple[int, ...], float]] = []
    with make() as builder, Measurer(target, builder, RecordedRunner()) as measurer:
        stream = measurer.stream

        def noted(*args: object, **kwargs: object) -> object:
            for record in stream(*args, **kwargs):  # type: ignore[arg-type]
                found.append((record.sketch, tuple(record.row), record.seconds))
                yield record

        measurer.stream = noted  # type: ignore[assignment, method-assign]
        tune_task(task, sampler, measurer, 24, batch=8, seed=3)
    return found


@cache
def with_one_worker() -> list[tuple[str, tuple[int, ...], float]]:
    return search(lambda: LocalBuilder(1))


def test_searches_with_one_two_and_four_workers_are_equal() -> None:
    one = with_one_worker()
    assert len(one) >= 24
    assert len({(sketch, row) for sketch, row, _ in one}) == len(one)
    assert search(lambda: LocalBuilder(2)) == one
    assert search(lambda: LocalBuilder(4)) == one


def test_searches_with_ray_builders_are_equal(ray_cluster: RayCluster) -> None:
    from tunesmith.measure.ray.ray_builder import RayBuilder

    assert search(lambda: RayBuilder(ray_cluster, 3)) == with_one_worker()
