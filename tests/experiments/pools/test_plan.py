"""Plans of pools: the documented mix, determinism by seed and task, and resumption without a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.driver.workloads import find_subject
from tunesmith.experiments.pools.plan import PoolDraw, PoolPlan
from tunesmith.ir.target.target import Target
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task

Known = dict[Candidate, tuple[float, str]]


@pytest.fixture(scope="module")
def task() -> Task:
    return find_subject("matmul(m=64,n=64,k=64)").task(Target("llvm"))


def seconds(c: Candidate) -> float:
    return math.inf if sum(c.row) % 7 == 0 else 1e-6 * (1 + c.sketch + sum(c.row))


def grow(task: Task, size: int, known: Known, seed: int = 0, batch: int = 7, stop: int | None = None) -> tuple[PoolPlan, list[str]]:
    """Measure a pool into `known`, at most `stop` candidates."""
    plan, parts = PoolPlan(task, size, seed, known), []
    while chosen := plan.next(batch):
        assert len({part for _, part in chosen}) == 1 and len(chosen) <= batch
        for c, part in chosen:
            if len(parts) == stop:
                return plan, parts
            assert c not in known
            known[c] = (seconds(c), part)
            plan.tell(c, seconds(c), part)
            parts.append(part)
    return plan, parts


def test_the_mix(task: Task) -> None:
    known: Known = {}
    plan, parts = grow(task, 64, known)
    assert [parts.count(p) for p in ("random", "ranked", "near-1", "near-2")] == [32, 16, 8, 8]
    assert list(known) == list(plan.chosen) and len(known) == 64
    for k, sketch in enumerate(task.space.sketches):
        rows = [c.row for c in known if c.sketch == k]
        assert rows and sketch.space.admissible(np.array(rows)).all()
    random = [c.sketch for c, (_, part) in known.items() if part == "random"]
    assert all(random.count(k) == 32 // len(task.space.sketches) for k in range(len(task.space.sketches)))


def test_the_ranked_part_has_lower_analytic_cost_than_the_random_one(task: Task) -> None:
    known: Known = {}
    grow(task, 64, known)
    draw = PoolDraw(task, 0)

    def middle(part: str) -> float:
        values = sorted(float(draw.proposals.estimate(c.sketch, np.array([c.row]))[0]) for c in known if known[c][1] == part)
        return values[len(values) // 2]

    assert middle("ranked") < middle("random")


def test_neighbours_are_near_the_fastest(task: Task) -> None:
    draw = PoolDraw(task, 0)
    known = {c: seconds(c) for c in [c for _, c in zip(range(40), draw.part("random", {}), strict=False)]}
    best = sorted((s, c) for c, s in known.items())[:8]
    near = [c for _, c in zip(range(20), draw.part("near-1", known), strict=False)]
    assert {c.sketch for c in near} <= {c.sketch for _, c in best}
    shared = [max(sum(a == b for a, b in zip(c.row, p.row, strict=True)) for _, p in best if p.sketch == c.sketch) for c in near]
    assert sum(n > 0 for n in shared) > len(near) / 2
    assert list(draw.part("near-1", dict.fromkeys(known, math.inf))) == [], "failures have no neighbours"


def test_equal_seeds_select_equal_candidates_for_any_batch(task: Task) -> None:
    one, two, other = {}, {}, {}  # type: ignore[var-annotated]
    grow(task, 40, one, batch=3)
    grow(task, 40, two, batch=32)
    grow(task, 40, other, seed=1)
    assert list(one) == list(two) and set(one) != set(other)


@pytest.mark.parametrize("stop", [5, 21, 33, 37, 39])
def test_a_resumed_run_ends_like_an_uninterrupted_one(task: Task, stop: int) -> None:
    whole: Known = {}
    grow(task, 40, whole)
    known: Known = {}
    grow(task, 40, known, stop=stop)
    assert len(known) == stop
    plan, parts = grow(task, 40, known, batch=4)
    assert len(parts) == 40 - stop and set(plan.chosen) == set(whole) == set(known)
    assert grow(task, 40, known)[1] == []


def test_a_larger_pool_keeps_the_existing_candidates(task: Task) -> None:
    known: Known = {}
    grow(task, 32, known)
    before = dict(known)
    plan, parts = grow(task, 64, known)
    assert set(before) <= set(plan.chosen) and len(plan.chosen) == 64 and len(parts) == 32


def test_candidates_measured_by_other_runs_are_not_measured_again(task: Task) -> None:
    first = {c: (seconds(c), "") for _, c in zip(range(10), PoolDraw(task, 0).part("random", {}), strict=False)}
    plan, parts = grow(task, 32, dict(first))
    assert len(parts) == 22 and set(first) <= set(plan.chosen)


def test_a_small_space_is_exhausted() -> None:
    tiny = find_subject("relu(shape=8)").task(Target("llvm"))
    plan, parts = grow(tiny, 500, {})
    assert len(parts) == len(plan.chosen) < 500 and plan.next(5) == []
    assert len(parts) <= tiny.space.size()
