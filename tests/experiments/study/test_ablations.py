"""Ablations disable one component and change nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.costmodel.models.registry import make_model
from tunesmith.driver.workloads import find_subject
from tunesmith.experiments.study.ablations import divisors_only, without_draft_model, without_racing
from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.race import race
from tunesmith.schedule.schedule import replay
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.registry import make_sampler
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def test_divisors_only_keeps_exactly_the_configurations_whose_tiles_divide() -> None:
    subject = find_subject("matmul(m=48,n=64,k=32)")
    full = {s.name: s for s in subject.task(TARGET).space.sketches}
    perfect = subject.task(TARGET, divisors_only()).space.sketches
    assert perfect and {s.name for s in perfect} <= set(full)
    for sketch in perfect:
        whole = full[sketch.name]
        assert [p.name for p in sketch.params] == [p.name for p in whole.params]
        assert sketch.space.size() < whole.space.size()
        rows = whole.space.sample(2000, stream(0, "test", sketch.name))
        names = [p.name for p in sketch.params]
        divides = np.ones(len(rows), bool)
        for axis, extent in (("i", 48), ("j", 64)):
            tile = np.prod([rows[:, n] for n, name in enumerate(names) if name.rstrip("0123456789") == axis], axis=0)
            divides &= extent % tile == 0
        assert 0 < divides.sum() < len(rows), names
        assert (sketch.space.admissible(rows) == divides).all()


def test_a_sketch_with_divisors_replays_to_the_same_program() -> None:
    subject = find_subject("matmul(m=48,n=64,k=32)")
    sketch = subject.task(TARGET, divisors_only()).space.sketches[0]
    row = tuple(int(x) for x in sketch.space.sample(1, stream(0, "test"))[0])
    assert structural.equal(replay(sketch.trace_of(row), subject.func).func, sketch.concretize(row))


def test_divisors_only_falls_back_if_no_sketch_has_a_configuration() -> None:
    subject = find_subject("relu(shape=63)")
    found = [s.name for s in subject.task(TARGET, divisors_only()).space.sketches]
    assert found == ["fallback", "fallback serial"]
    assert "fallback" not in [s.name for s in subject.task(TARGET).space.sketches]
    even = find_subject("relu(shape=64)")
    assert "fallback" not in [s.name for s in even.task(TARGET, divisors_only()).space.sketches]


def test_without_draft_model_the_order_is_random_and_depends_on_the_seed_only() -> None:
    task = find_subject("matmul(m=48,n=64,k=32)").task(TARGET)

    def spread(kind: type[EvolutionarySampler] | type, seed: int) -> list[float]:
        sampler = make_sampler(kind, task, lambda: make_model("random"), seed)
        proposals = EvolutionarySampler(task, make_model("random")).generator
        return [float(proposals.estimate(c.sketch, np.array([c.row]))[0]) for c in sampler.ask(16)]

    blind = without_draft_model(EvolutionarySampler)
    assert issubclass(blind, EvolutionarySampler) and blind.__name__ == "EvolutionarySamplerWithoutDraftModel"
    informed, chance = spread(EvolutionarySampler, 1), spread(blind, 1)
    assert np.median(informed) < np.median(chance)
    assert chance == spread(blind, 1) and chance != spread(blind, 2)


def test_a_sampler_without_drafts_is_refused() -> None:
    task = find_subject("relu(shape=64)").task(TARGET)
    with pytest.raises(UserError, match="RandomSampler has no draft model"):
        make_sampler(without_draft_model(RandomSampler), task, lambda: make_model("random"), 0)


def test_without_racing_no_candidate_is_stopped_and_the_policy_is_plain_data() -> None:
    policy = without_racing(MeasurePolicy(RacePolicy(min_repeat_ms=0.0, repeats=3, quiet_fraction=1e9), verify="always"))
    assert policy.verify == "always" and math.isfinite(float(str(policy.to_json()["give_up"])))
    calls: list[int] = []
    slow = race(lambda: calls.append(len(calls)), policy.race, best=1e-12)
    assert not slow.gave_up and len(slow.seconds) == 3
