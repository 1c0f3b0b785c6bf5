"""Test the contract of samplers, and that a search is a function of seed and measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.costmodel.models.xgb_model import XGBModel
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler, EvolutionSettings
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
SMALL = EvolutionSettings(draft=1024, keep=128, generations=2, parents=16)


def task() -> Task:
    w = workload("matmul(m=96,n=80,k=64)")
    return Task(w.text, w.func, TARGET, w.reference, w.flops)


def recorded(c: Candidate) -> float | None:
    """A reproducible measurement: seconds derived from the candidate; 5 % of the candidates fail."""
    h = hashlib.blake2b(repr((c.sketch, c.row)).encode(), digest_size=4).digest()
    noise = int.from_bytes(h, "little") / 2**32
    return None if noise < 0.05 else (1.0 + 0.1 * noise) * 1e-5 * (1 + abs(c.row[2] - 6)) * (1 + c.sketch)


def search(sampler: Sampler, rounds: int, n: int) -> list[list[Candidate]]:
    batches = []
    for _ in range(rounds):
        batch = sampler.ask(n)
        batches.append(batch)
        sampler.tell([Result(c, recorded(c)) for c in batch])
    return batches


MAKE: dict[str, Callable[[int], Sampler]] = {
    "random": lambda seed: RandomSampler(task(), seed),
    "evolutionary": lambda seed: EvolutionarySampler(task(), XGBModel(seed=seed), seed, SMALL),
}


@pytest.mark.parametrize("name", sorted(MAKE))
def test_candidates_are_new_and_admissible_and_at_most_n(name: str) -> None:
    sampler = MAKE[name](0)
    space = task().space
    seen: set[Candidate] = set()
    for batch in search(sampler, 3, 10):
        assert 0 < len(batch) <= 10
        assert len(set(batch)) == len(batch)
        assert not seen & set(batch)
        seen |= set(batch)
        for c in batch:
            assert space.sketches[c.sketch].space.admissible(np.array([c.row]))[0]


@pytest.mark.parametrize("name", sorted(MAKE))
def test_same_seed_and_measurements_give_the_same_search(name: str) -> None:
    first, second, other = search(MAKE[name](5), 3, 8), search(MAKE[name](5), 3, 8), search(MAKE[name](6), 3, 8)
    assert first == second
    assert first != other


def test_reported_candidates_are_not_proposed() -> None:
    done = search(MAKE["evolutionary"](1), 2, 8)
    again = MAKE["evolutionary"](1)
    again.tell([Result(c, recorded(c)) for batch in done for c in batch])
    assert not {c for batch in done for c in batch} & set(again.ask(8))


def test_evolution_learns_from_measurements() -> None:
    """On a cost function unrelated to the analytic model, later rounds are better than random candidates."""
    sampler = MAKE["evolutionary"](2)
    batches = search(sampler, 6, 16)
    random = [recorded(c) for batch in search(MAKE["random"](2), 6, 16) for c in batch]
    last = [s for c in batches[-1] if (s := recorded(c)) is not None]
    typical = sorted(s for s in random if s is not None)
    assert sorted(last)[len(last) // 2] < typical[len(typical) // 2]
