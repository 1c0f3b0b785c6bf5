"""What every sampler must do, as tests: derive a class from `SamplerConformance` in a test file and say how a sampler is made.

    class TestMine(SamplerConformance):
        @pytest.fixture
        def make(self):
            return maker(Mine)

A sampler that does not learn sets `learns = False`; everything else is asked of it too.  Times are invented, so that nothing is
measured, and every search is a function of its seed: a suite that passes once passes always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
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
from tunesmith.support.seeds import stream
from tunesmith.testing.synthetic_pool import synthetic_pool, synthetic_seconds

Make = Callable[[Task, int], Sampler]
"""Makes a fresh sampler of a task and a seed."""
Named = list[tuple[str, Callable[[Schedule], None]]]

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
TASKS = ("usual", "joint", "small", "pool")
"""The tasks of `example_task`."""


def maker(sampler: str | type[Sampler], model: str = "xgb") -> Make:
    """Makes samplers as a search does: with those of `task`, `model` and `seed` that the constructor has."""
    return lambda task, seed: make_sampler(sampler, task, lambda: make_model(model, seed), seed)


@cache
def example_task(name: str) -> Task:
    """A task to sample.

    Args:
        name: `usual`, a product of matrices with thousands of rows in each of four sketches; `joint`, one sketch of a convolution,
            whose space has a joint constraint; `small`, 37 candidates in three sketches, one of which has no columns at all; `pool`,
            forty rows of each sketch of `usual`, and no others.
    """
    if name == "pool":
        return synthetic_pool(example_task("usual"), 40).task
    if name == "small":
        return Task("small", _sixty_rows(), TARGET, rules=(_small,))
    joint = name == "joint"
    w = workload("conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3)" if joint else "matmul(m=96,n=80,k=64)")
    return Task(w.text, w.func, TARGET, rules=(_first_of_contraction,) if joint else None)


def invented(space: Space, candidate: Candidate, failures: float = 0.05) -> Result:
    """What a candidate would measure: a formula of its sketch and row; see `synthetic_seconds`."""
    name, row = space.sketches[candidate.sketch].name, np.array([candidate.row], np.int64)
    seconds = float(synthetic_seconds(name, row, failures=failures)[0])
    return Result(candidate, seconds if math.isfinite(seconds) else None)


def search(sampler: Sampler, space: Space, rounds: int, n: int = 8, failures: float = 0.05) -> list[list[Candidate]]:
    """Ask and tell; the batches that were proposed."""
    batches = []
    for _ in range(rounds):
        batch = sampler.ask(n)
        batches.append(batch)
        sampler.tell([invented(space, c, failures) for c in batch])
    return batches


class SamplerConformance:
    """See the module's text; the tests say what each of them asks."""

    learns: ClassVar[bool] = True
    """Whether the second half of a search is better than chance."""
    searches: ClassVar[int] = 3
    """Searches that this is judged by."""
    tasks: ClassVar[Sequence[str]] = TASKS
    """Those of `TASKS` that the sampler can work on."""

    @pytest.fixture
    def make(self) -> Make:
        """Makes a fresh sampler of a task and a seed."""
        raise NotImplementedError("override the fixture `make`: it returns what makes a fresh sampler, such as maker(Mine)")

    @pytest.fixture(params=TASKS)
    def task(self, request: pytest.FixtureRequest) -> Task:
        """The task to work on."""
        if request.param not in self.tasks:
            pytest.skip(f"the sampler does not work on the task {request.param!r}")
        return example_task(str(request.param))

    def test_candidates_are_new_admissible_and_no_more_than_asked_for(self, make: Make, task: Task) -> None:
        """In every round, of Python's integers, so that they can be written into a record."""
        sampler, seen = make(task, 0), set[Candidate]()
        for n in (1, 7, 4):
            batch = sampler.ask(n)
            assert 0 < len(batch) <= n, f"asked for {n}, got {len(batch)}, of a space that is not used up"
            assert len(set(batch)) == len(batch) and not seen & set(batch), "a candidate came twice"
            seen |= set(batch)
            for c in batch:
                assert type(c.sketch) is int and all(type(x) is int for x in c.row), f"{c} does not consist of Python's integers"
                space = task.space.sketches[c.sketch].space
                assert len(c.row) == len(space.params) and space.admissible(np.array([c.row], np.int64)).all(), f"{c} is not admissible"
            sampler.tell([invented(task.space, c) for c in batch])

    def test_a_small_space_is_used_up(self, make: Make) -> None:
        """Every candidate comes once, and then nothing does, without an endless loop."""
        task = example_task("small")
        sampler = make(task, 1)
        proposed: list[Candidate] = []
        for _ in range(40):
            batch = sampler.ask(5)
            if not batch:
                break
            proposed += batch
            sampler.tell([invented(task.space, c) for c in batch])
        assert len(set(proposed)) == len(proposed) == task.space.size(), "not every candidate came once"
        assert sampler.ask(5) == []

    def test_what_was_told_is_not_proposed(self, make: Make, task: Task) -> None:
        """Results of an earlier run come before anything was asked for."""
        earlier = [Candidate(k, tuple(r)) for k, s in enumerate(task.space.sketches) for r in _some_rows(s.space, 6)]
        sampler = make(task, 2)
        sampler.tell([invented(task.space, c) for c in earlier])
        assert not {c for batch in search(sampler, task.space, 2) for c in batch} & set(earlier)

    def test_equal_seeds_and_results_give_equal_proposals(self, make: Make, task: Task) -> None:
        """Whatever else is drawn from numpy's global stream, which is left alone."""
        first = search(make(task, 5), task.space, 3)
        np.random.random(3)
        state = str(np.random.get_state())
        assert search(make(task, 5), task.space, 3) == first
        assert str(np.random.get_state()) == state

    @pytest.mark.parametrize("failures", [0.5, 1.0])
    def test_failures_are_accepted(self, make: Make, task: Task, failures: float) -> None:
        """Half of the candidates, or all of them."""
        sampler = make(task, 3)
        batches = search(sampler, task.space, 3, 4, failures)
        assert all(0 < len(batch) <= 4 for batch in batches)
        assert len({c for batch in batches for c in batch}) == sum(map(len, batches))

    def test_learners_do_better_than_chance(self, make: Make) -> None:
        """Of searches of 192, the second halves: how many random candidates are faster than what is proposed.

        By chance that share is 1/2 on average, with a deviation of 0.017 for the 288 independent proposals of three searches; 0.4 is six
        deviations below.
        """
        if not self.learns:
            return
        task = example_task("usual")
        chance = np.sort(np.concatenate([_some_seconds(task.space, k, 1000) for k in range(len(task.space.sketches))]))
        shares = []
        for seed in range(self.searches):
            batches = search(make(task, seed), task.space, 12, 16)
            seconds = [invented(task.space, c, failures=0.0).seconds for batch in batches[6:] for c in batch]
            shares.append(np.searchsorted(chance, np.array(seconds)) / len(chance))
        assert np.concatenate(shares).mean() < 0.4


def _sixty_rows() -> PrimFunc:
    """Sixteen sums in each of sixty rows."""
    a = placeholder((60, 16), name="A")
    return create_prim_func([a, compute((60, 16), lambda i, j: a[i, j] + 1.0, name="B")], name="small")


def _small(func: PrimFunc, target: Target) -> Named:
    """Three structures: nothing to choose, one choice, and two that are tied to each other."""

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
    """At most n rows, and no more than half of a small space."""
    rows = np.unique(space.sample(n, stream(0, "conformance", "earlier")), axis=0)
    return [[int(x) for x in r] for r in rows[: min(n, space.size() // 2)]]


def _some_seconds(space: Space, k: int, n: int) -> npt.NDArray[np.float64]:
    """Invented times of n random candidates of a sketch."""
    sketch = space.sketches[k]
    rows = sketch.space.sample(n, stream(0, "conformance", "chance", k))
    return synthetic_seconds(sketch.name, rows, failures=0.0)
