"""Test which candidates of similar workloads a search tries, and how many of a batch they are."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.search.transfer import ENOUGH, Transfer
from tunesmith.search.tuner import FIRST, Tuning
from tunesmith.support.seeds import stream

TARGET = Target("llvm")


def task(text: str) -> Task:
    w = workload(text)
    return Task(w.text, w.func, TARGET, w.reference, w.flops)


@pytest.fixture(scope="module")
def here() -> Task:
    return task("matmul(m=64,n=64,k=64)")


def records(hand: ModuleType, of: Task, count: int = 12, unit: float = 1e-3) -> list[Record]:
    """Records of rows of the task's first sketch, the first the fastest."""
    sketch = of.space.sketches[0]
    rows = np.unique(sketch.space.sample(8 * count, stream(0, of.name)), axis=0)[:count]
    base: Record = hand.record_of(hand.matmul())
    common: dict[str, Any] = {"workload": of.digest, "target": TARGET.to_json(), "sketch": sketch.name}
    return [
        replace(base, **common, row=tuple(row.tolist()), trace=sketch.trace_of(tuple(row.tolist())).to_json(), samples=((i + 1) * unit,))
        for i, row in enumerate(rows)
    ]


def database(*groups: list[Record], tasks: tuple[Task, ...] = ()) -> Database:
    lines = [WorkloadLine(t.digest, t.name, t.measured.script) for t in tasks]
    return Database([r for group in groups for r in group], lines)


def test_fast_rows_of_another_shape_become_the_nearest_admissible_ones(hand: ModuleType, here: Task) -> None:
    other = task("matmul(m=64,n=128,k=64)")
    found = records(hand, other)
    made = Transfer(database(found), {other.digest: other.func}).candidates(here, 3, ())
    space = here.space.sketches[0].space
    expected = [Candidate(0, tuple(space.nearest(np.array([r.row]), stream(0, "any"))[0].tolist())) for r in found]
    assert made == list(dict.fromkeys(expected))[:3]
    assert all(space.admissible(np.array([c.row])).all() for c in made)


def test_seen_candidates_and_copies_are_left_out(hand: ModuleType, here: Task) -> None:
    other = task("matmul(m=64,n=128,k=64)")
    transfer = Transfer(database(records(hand, other)), {other.digest: other.func})
    every = transfer.candidates(here, 100, ())
    assert len(set(every)) == len(every) > 3
    assert transfer.candidates(here, 100, set(every[:2])) == every[2:]


def test_workloads_take_turns_the_nearest_first(hand: ModuleType, here: Task) -> None:
    near, far = task("matmul(m=64,n=96,k=64)"), task("matmul(m=512,n=512,k=512)")
    both = database(records(hand, far), records(hand, near), tasks=(near, far))
    alone = [Transfer(database(records(hand, t)), {t.digest: t.func}).candidates(here, 1, ())[0] for t in (near, far)]
    assert Transfer(both, {}).candidates(here, 2, ()) == list(dict.fromkeys(alone)), "the log has the programs"


def test_what_is_not_similar_or_not_fast_is_left_out(hand: ModuleType, here: Task) -> None:
    other = task("matmul(m=64,n=128,k=64)")
    assert Transfer(database(), {}).candidates(here, 8, ()) == []
    few = records(hand, other, ENOUGH - 1)
    assert Transfer(database(few), {other.digest: other.func}).candidates(here, 8, ()) == [], "the best of few are only the first"
    found = records(hand, other)
    renamed = [replace(r, sketch="no such sketch") for r in found]
    elsewhere = [replace(r, target=Target("llvm -num-cores=7").to_json()) for r in found]
    own = records(hand, here)
    for group in (renamed, elsewhere, own):
        assert Transfer(database(group), {other.digest: other.func}).candidates(here, 8, ()) == []


def test_a_program_that_cannot_be_read_is_far_away(hand: ModuleType, here: Task) -> None:
    other, bad = task("matmul(m=64,n=128,k=64)"), task("matmul(m=64,n=80,k=64)")
    lines = [WorkloadLine(other.digest, "other", other.measured.script), WorkloadLine(bad.digest, "bad", "def f(: pass")]
    both = Database([*records(hand, bad), *records(hand, other)], lines)
    first = Transfer(database(records(hand, other)), {other.digest: other.func}).candidates(here, 1, ())
    assert Transfer(both, {}).candidates(here, 1, ()) == first


class Quiet:
    """A measurer that takes any candidate."""

    def __init__(self, hand: ModuleType, of: Task) -> None:
        self.hand, self.of = hand, of
        self.measured: list[Candidate] = []

    def note_best(self, task: object, seconds: float) -> None:
        pass

    def stream(self, task: object, candidates: list[tuple[int, tuple[int, ...]]], *, seed: int) -> list[Record]:
        base: Record = self.hand.record_of(self.hand.matmul())
        out = []
        for k, row in candidates:
            self.measured.append(Candidate(k, row))
            sketch = self.of.space.sketches[k]
            common: dict[str, Any] = {"workload": self.of.digest, "target": TARGET.to_json(), "sketch": sketch.name, "row": row}
            out.append(replace(base, **common, trace=sketch.trace_of(row).to_json(), samples=(1e-5,)))
        return out


@pytest.mark.parametrize("batch", [2, 8])
def test_half_of_the_first_trials_and_a_quarter_of_later_ones_are_transferred(hand: ModuleType, here: Task, batch: int) -> None:
    other = task("matmul(m=64,n=128,k=64)")
    known = database(records(hand, other, 40))
    transfer = Transfer(known, {other.digest: other.func})
    every = set(transfer.candidates(here, 100, ()))
    measurer = Quiet(hand, here)
    tuning = Tuning(here, RandomSampler(here, 0), measurer, 16, known, batch, transfer=transfer)  # type: ignore[arg-type]
    while tuning.step():
        pass
    assert len(measurer.measured) == len(set(measurer.measured)) == 16
    transferred = [c in every for c in measurer.measured]
    assert sum(transferred[:FIRST]) >= FIRST // 2 and sum(transferred[FIRST:]) >= (16 - FIRST) // 4
    assert not all(transferred)
