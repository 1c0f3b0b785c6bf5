"""Conformance tests for samplers: derive a class from `SamplerConformance` in a test file and define the sampler's factory.

    class TestMine(SamplerConformance):
        @pytest.fixture
        def make(self):
            return maker(Mine)

A sampler without learning sets `learns = False`; all other tests apply to it.  Times are synthetic, so nothing is measured, and every
search is a deterministic function of its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from tunesmith.costmodel.models.registry import make_model
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ops.tensor_expression import compute, create_prim_func, placeholder
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.samplers.registry import make_sampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.space.param_space import ParamSpace
from tunesmith.search.space.rules import contraction
from tunesmith.search.space.sketch import Space
from tunesmith.search.task import Task
from tunesmith.support.array_types import Float64Array
from tunesmith.support.seeds import stream
from tunesmith.testing.synthetic_pool import synthetic_pool, synthetic_seconds

Make = Callable[[Task, int], Sampler]
"""Factory of samplers for a task and a seed."""
Named = list[tuple[str, Callable[[Schedule], None]]]

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
TASKS = ("usual", "joint", "small", "pool")
"""Task names of `example_task`."""


def maker(sampler: str | type[Sampler], model: str = "xgb") -> Make:
    """A factory that creates samplers as a search does, with the arguments `task`, `model` and `seed` that the constructor has."""
    return lambda task, seed: make_sampler(sampler, task, lambda: make_model(model, seed), seed)


@cache
def example_task(name: str) -> Task:
    """A task for sampling.

    Args:
        name: `usual`, a matrix product with thousands of configurations in each of four sketches; `joint`, one sketch of a
            convolution with a joint constraint; `small`, 37 candidates in three sketches, one of them without parameters; `pool`,
            exactly forty configurations per sketch of `usual`.
    """
    if name == "pool":
        return synthetic_pool(example_task("usual"), 40).task
    if name == "small":
        return Task("small", _sixty_rows(), TARGET, rules=(_small,))
    joint = name == "joint"
    w = workload("conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3)" if joint else "matmul(m=96,n=80,k=64)")
    return Task(w.text, w.func, TARGET, rules=(_first_of_contraction,) if joint else None)


def invented(space: Space, candidate: Candidate, failures: float = 0.05) -> Result:
    """A synthetic result of a candidate, computed from its sketch and configuration; see `synthetic_seconds`."""
    name, row = space.sketches[candidate.sketch].name, np.array([candidate.row], np.int64)
    seconds = float(synthetic_seconds(name, row, failures=failures)[0])
    return Result(candidate, seconds if math.isfinite(seconds) else None)


def search(sampler: Sampler, space: Space, rounds: int, n: int = 8, failures: float = 0.05) -> list[list[Candidate]]:
    """Run an ask-and-tell loop; returns the proposed batches."""
    batches = []
    for _ in range(rounds):
        batch = sampler.ask(n)
        batches.append(list(batch))
        tell(sampler, [invented(space, c, failures) for c in batch])
    return batches


def tell(sampler: Sampler, results: list[Result]) -> None:
    """Report results; raises an AssertionError if the sampler modifies the list."""
    given = list(results)
    sampler.tell(results)
    assert results == given, f"tell modified the list of results: {len(given)} results were reported, and the list has {len(results)} now"


class SamplerConformance:
    """The tests; each docstring states a requirement."""

    learns: ClassVar[bool] = True
    """Whether the second half of a search must be better than chance."""
    searches: ClassVar[int] = 3
    """Number of searches for this test."""
    rounds: ClassVar[int] = 12
    """Number of batches of 16 candidates in each of these searches."""
    draws: ClassVar[bool] = True
    """Whether proposals are drawn at random, so that they depend on the seed."""
    tasks: ClassVar[Sequence[str]] = TASKS
    """The tasks of `TASKS` that the sampler supports."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of samplers for a task and a seed."""
        raise NotImplementedError("override the fixture `make` to return a factory of samplers, for example maker(Mine)")

    @pytest.fixture(params=TASKS)
    def task(self, request: pytest.FixtureRequest) -> Task:
        """The task."""
        if request.param not in self.tasks:
            pytest.skip(f"the sampler does not support the task {request.param!r}")
        return example_task(str(request.param))

    def test_candidates_are_new_admissible_and_no_more_than_asked_for(self, make: Make, task: Task) -> None:
        """As many as asked for, while there are new ones; values are Python ints, so that records can be written."""
        sampler, seen = make(task, 0), set[Candidate]()
        earlier: list[tuple[list[Candidate], list[Candidate]]] = []
        for n in (1, 7, 4):
            batch = sampler.ask(n)
            check_number(n, batch)
            assert len(set(batch)) == len(batch) and not seen & set(batch), "a candidate was proposed twice"
            assert all(kept == copy for kept, copy in earlier), "a later ask modified the list that an earlier one returned"
            earlier.append((batch, list(batch)))
            seen |= set(batch)
            for c in batch:
                assert type(c.sketch) is int and all(type(x) is int for x in c.row), f"{c} does not consist of Python's integers"
                space = task.space.sketches[c.sketch].space
                assert len(c.row) == len(space.params) and space.admissible(np.array([c.row], np.int64)).all(), f"{c} is not admissible"
            tell(sampler, [invented(task.space, c) for c in batch])

    def test_a_small_space_is_used_up(self, make: Make) -> None:
        """Every candidate is proposed once, then ask returns nothing and terminates."""
        task = example_task("small")
        sampler = make(task, 1)
        proposed: list[Candidate] = []
        for _ in range(40):
            batch = sampler.ask(5)
            if not batch:
                break
            proposed += batch
            tell(sampler, [invented(task.space, c) for c in batch])
        assert len(set(proposed)) == len(proposed) == task.space.size(), "not every candidate was proposed exactly once"
        assert sampler.ask(5) == [], "a candidate is proposed after the last one of the space"

    def test_what_was_told_is_not_proposed(self, make: Make, task: Task) -> None:
        """Results of an earlier run, passed before the first ask, are not proposed again."""
        earlier = [Candidate(k, tuple(r)) for k, s in enumerate(task.space.sketches) for r in _some_rows(s.space, 6)]
        sampler = make(task, 2)
        tell(sampler, [invented(task.space, c) for c in earlier])
        again = {c for batch in search(sampler, task.space, 2) for c in batch} & set(earlier)
        assert not again, f"{len(again)} candidates of an earlier run are proposed again"

    def test_equal_seeds_and_results_give_equal_proposals(self, make: Make, task: Task) -> None:
        """Independent of numpy's global random state, which is unchanged; another seed gives other proposals."""
        first = search(make(task, 5), task.space, 2)
        np.random.random(3)
        state = str(np.random.get_state())
        assert search(make(task, 5), task.space, 2) == first, "equal seeds and results give different proposals"
        assert str(np.random.get_state()) == state, "a search drew from numpy's global random state"
        if self.draws:
            assert search(make(task, 6), task.space, 2) != first, "the seeds 5 and 6 give the same proposals: the seed is ignored"

    @pytest.mark.parametrize("failures", [0.5, 1.0])
    def test_failures_are_accepted(self, make: Make, task: Task, failures: float) -> None:
        """Half or all of the candidates fail."""
        sampler = make(task, 3)
        batches = search(sampler, task.space, 3, 4, failures)
        for batch in batches:
            check_number(4, batch)
        assert len({c for batch in batches for c in batch}) == sum(map(len, batches)), "a candidate was proposed twice"

    def test_statistics_never_decrease(self, make: Make) -> None:
        """For samplers that count their work: counts are integers, and no number becomes smaller in a search."""
        task = example_task("small")
        sampler, counted = make(task, 4), [(0, 0, 0.0)]
        for n in (3, 5):
            tell(sampler, [invented(task.space, c) for c in sampler.ask(n)])
            found = sampler.statistics()
            if found is not None:
                assert type(found.drafted) is int and type(found.scored) is int, f"{found} does not count in Python's integers"
                counted.append((found.drafted, found.scored, found.draft_seconds))
        for before, after in pairwise(counted):
            assert all(x <= y for x, y in zip(before, after, strict=True)), f"the statistics {after} are less than {before}"

    def test_learners_do_better_than_chance(self, make: Make) -> None:
        """Fraction of random candidates that are faster than the proposals in the second half of the searches.

        By chance the mean fraction is 1/2, with a standard deviation of 0.017 for 288 independent proposals of three searches of twelve
        rounds; 0.4 is six deviations below.  For 64 proposals of one search of eight rounds it is 0.036, and 0.4 is almost three below.
        """
        if not self.learns:
            return
        task = example_task("usual")
        chance = np.sort(np.concatenate([_some_seconds(task.space, k, 1000) for k in range(len(task.space.sketches))]))
        shares = []
        for seed in range(self.searches):
            batches = search(make(task, seed), task.space, self.rounds, 16)
            seconds = [invented(task.space, c, failures=0.0).seconds for batch in batches[self.rounds // 2 :] for c in batch]
            shares.append(np.searchsorted(chance, np.array(seconds)) / len(chance))
        mean = float(np.concatenate(shares).mean())
        assert mean < 0.4, (
            f"{mean:.0%} of random candidates are faster than the proposals of a learner: by chance 50 %, required below 40 %"
        )


def check_number(n: int, batch: Sequence[Candidate]) -> None:
    """Raise an AssertionError unless a batch has the n candidates that were asked for."""
    assert len(batch) == n, f"asked for {n} candidates, got {len(batch)}, though the space is not exhausted"


def _sixty_rows() -> PrimFunc:
    """B = A + 1 on a 60 x 16 matrix."""
    a = placeholder((60, 16), name="A")
    return create_prim_func([a, compute((60, 16), lambda i, j: a[i, j] + 1.0, name="B")], name="small")


def _small(func: PrimFunc, target: Target) -> Named:
    """Three sketches: no parameter, one parameter, and two parameters with a joint constraint."""

    def plain(s: Schedule) -> None:
        s.parallel(s.get_loops(s.get_block("B"))[0])

    def once(s: Schedule) -> None:
        i = s.get_loops(s.get_block("B"))[0]
        s.split(i, [None, *s.sample_tile(i, 2, "tile", [(1, 2, 3, 4, 5, 6)], waste=1.0)])

    def twice(s: Schedule) -> None:
        i = s.get_loops(s.get_block("B"))[0]
        s.split(i, [None, *s.sample_perfect_tile(i, 3, 4, "tiles")])

    return [("plain", plain), ("once", once), ("twice", twice)]


def _first_of_contraction(func: PrimFunc, target: Target) -> Named:
    return contraction.sketches(func, target)[:1]


def _some_rows(space: ParamSpace, n: int) -> list[list[int]]:
    """At most n configurations, and at most half of a small space."""
    rows = np.unique(space.sample(n, stream(0, "conformance", "earlier")), axis=0)
    return [[int(x) for x in r] for r in rows[: min(n, space.size() // 2)]]


def _some_seconds(space: Space, k: int, n: int) -> Float64Array:
    """Synthetic times of n random candidates of a sketch."""
    sketch = space.sketches[k]
    rows = sketch.space.sample(n, stream(0, "conformance", "chance", k))
    return synthetic_seconds(sketch.name, rows, failures=0.0)
