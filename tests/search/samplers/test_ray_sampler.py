"""Check that a sampler in a Ray actor gives the same proposals as in this process, also after the loss of the actor."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.ray.ray_cluster import ray
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler, EvolutionSettings
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.ray_sampler import RaySampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError, UserError
from tunesmith.testing.sampler_conformance import Make, SamplerConformance, example_task

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster

SMALL = EvolutionSettings(draft=256, keep=32, generations=1)


class Small(EvolutionarySampler):
    """An evolutionary sampler with small settings and a cost model."""

    def __init__(self, task: Task, model: RandomModel, seed: int) -> None:
        super().__init__(task, model, seed, SMALL)


class Deadly(RandomSampler):
    """Kills its process in `tell`."""

    def tell(self, results: Sequence[Result]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Failing(RandomSampler):
    """Raises an error in `tell`."""

    def tell(self, results: Sequence[Result]) -> None:
        raise KeyError("no such row")


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Pickle the classes of this module by value, because actors cannot import it."""
    module = sys.modules[__name__]
    ray.cloudpickle.register_pickle_by_value(module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)


def task_of(text: str = "matmul(m=48,n=32,k=16)") -> Task:
    w = workload(text)
    return Task(w.text, w.func, Target("llvm"), w.reference, w.flops)


def made_up(candidates: Sequence[Candidate]) -> list[Result]:
    """Seconds derived from the row; every fourth candidate fails."""
    return [Result(c, None if i % 4 == 3 else 1e-6 * (1 + sum(c.row))) for i, c in enumerate(candidates)]


def walk(sampler: Sampler, rounds: int) -> list[Candidate]:
    found = []
    for _ in range(rounds):
        candidates = sampler.ask(6)
        sampler.tell(made_up(candidates))
        found += candidates
    return found


def kill_actor(sampler: RaySampler) -> None:
    (actor,) = sampler._pool._actors
    assert actor.handshake is not None
    os.kill(actor.handshake.pid, signal.SIGKILL)


def test_proposals_are_equal_and_survive_lost_actors(ray_cluster: RayCluster) -> None:
    here = Small(task_of(), RandomModel(seed=3), 3)
    expected = walk(here, 3)
    there = RaySampler(ray_cluster, task_of(), Small, "random", 3)
    try:
        assert there.statistics() is None
        found = walk(there, 1)
        first = there.statistics()
        assert first is not None and first.drafted > 0 and first.draft_seconds > 0
        for _ in range(2):
            kill_actor(there)
            found += walk(there, 1)
        assert found == expected
        last, local = there.statistics(), here.statistics()
        assert last is not None and (last.drafted, last.scored) == (local.drafted, local.scored)
    finally:
        there.close()
        there.close()


def test_a_workload_of_the_fallback_rule_has_the_same_space_in_the_actor(ray_cluster: RayCluster) -> None:
    task = task_of("gelu(shape=30x50)")
    there = RaySampler(ray_cluster, task, "random", seed=1)
    assert there.ask(4) == RandomSampler(task, 1).ask(4) and there.statistics() is None
    there.close()


def test_errors_in_the_actor_are_reported(ray_cluster: RayCluster) -> None:
    for kind, message in (
        (Failing, r"the sampler failed in its Ray actor: KeyError: 'no such row'"),
        (Deadly, r"lost its Ray actor repeatedly in call 1 \('tell'\)"),
    ):
        there = RaySampler(ray_cluster, task_of(), kind)
        assert len(there.ask(2)) == 2
        with pytest.raises(RunError, match=message):
            there.tell([])
        there.close()
    with pytest.raises(UserError, match="Did you mean 'random'"):
        RaySampler(ray_cluster, task_of(), "rondom")


def test_a_different_space_is_rejected(ray_cluster: RayCluster) -> None:
    here = os.getpid()

    def process_dependent(func: PrimFunc, target: Target) -> list[tuple[str, object]]:
        return [("plain" if os.getpid() == here else "other", lambda schedule: None)]

    there = RaySampler(ray_cluster, replace(task_of(), rules=(process_dependent,)), "random")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="it derives another space from the workload"):
        there.ask(1)
    there.close()
    pool = RaySampler(ray_cluster, example_task("pool"), "random")
    with pytest.raises(RunError, match="tabular benchmarks cannot be sampled in an actor"):
        pool.ask(1)
    pool.close()


class TestOnRay(SamplerConformance):
    """The conformance suite on a sampler in an actor."""

    learns = False
    tasks = ("small",)

    @pytest.fixture
    def make(self, ray_cluster: RayCluster) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:
            yield lambda task, seed: stack.enter_context(contextlib.closing(RaySampler(ray_cluster, task, "random", seed=seed)))
