"""Run a sample of the campaign in experiments/program_fuzz, and check that seeded defects are found and minimised."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.interpreter import interpret
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.primitives import split as split_module
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import UserError
from tunesmith.testing.primitive_samples import SAMPLES
from tunesmith.testing.program_fuzz import evaluate, numbers, worker
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.campaign import Campaign, table
from tunesmith.testing.program_fuzz.check import Finding
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate import generate
from tunesmith.testing.program_fuzz.generate_steps import FUZZED, random_step
from tunesmith.testing.program_fuzz.minimise import minimise
from tunesmith.testing.program_fuzz.numbers import Undecided
from tunesmith.testing.program_fuzz.render import render
from tunesmith.testing.program_fuzz.reproduction import describe
from tunesmith.testing.program_fuzz.steps import BlockRef, LoopRef, Replay, Step

SAMPLE = ((0, 16), (16, 32))
"""Seeds of each test; 6 schedules per seed."""


@pytest.mark.parametrize("seeds", SAMPLE)
def test_sample(seeds: tuple[int, int], tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, workers=1, keep=1, minimise_seconds=5.0)
    campaign.run(range(*seeds), lambda _: None)
    assert campaign.totals.programs == seeds[1] - seeds[0]
    if campaign.totals.failures:
        texts: list[str] = []
        campaign.reproduce(texts.append, kinds=3)
        pytest.fail("\n".join([*texts, table(campaign.totals)]), pytrace=False)
    assert campaign.totals.sequences > 3 * campaign.totals.programs


# ---- the direct evaluator ---------------------------------------------------------------------------------------------


def scan(extent: int = 6) -> p.Program:
    """C[v] = A[v] + (C[v - 1] if v > 0 else 0), where v + 1 < extent."""
    v: p.Index = p.Name("v")
    before = p.Load("C", (p.Arith("-", v, p.Num(1)),), "int8")
    old = p.Select(p.IndexCompare(">", v, p.Num(0)), before, p.Literal(0, "int8"), "ternary", "int8")
    store = p.Store("C", (v,), p.Binary("+", p.Load("A", (v,), "int8"), old, "int8"))
    axis = p.Axis("v", "S", p.Num(extent), p.Name("i"))
    guard = p.IndexCompare("<", p.Arith("+", p.Name("i"), p.Num(1)), p.Num(extent))
    block = p.Block("b", (axis,), (guard,), (), (store,))
    buffers = (p.Buffer("A", (p.Num(extent),), "int8", "input"), p.Buffer("C", (p.Num(extent),), "int8", "output"))
    return p.Program(buffers, (p.Loop("i", p.Num(extent), (block,)),))


def test_evaluator_runs_in_program_order_and_preserves_unwritten_elements() -> None:
    start = evaluate.start(scan(), (), 1).memory
    end = evaluate.run(scan(), (), 1).memory["C"].array()
    assert end[:5].tolist() == np.cumsum(start["A"].array()[:5]).tolist()
    assert end[5] == start["C"].array()[5]


def test_evaluator_discards_uninitialised_reads() -> None:
    made = scan()
    scratch = p.Program((made.buffers[0], p.Buffer("C", (p.Num(6),), "int8", "scratch")), made.body)
    evaluate.run(scratch, (), 1)
    (loop,) = scratch.body
    assert isinstance(loop, p.Loop)
    twice = p.Program(scratch.buffers, (p.Loop("j", p.Num(6), (_reader("j"),)), loop))
    with pytest.raises(Undecided, match="uninitialised"):
        evaluate.run(twice, (), 1)


def _reader(loop: str) -> p.Block:
    w = p.Name("w")
    store = p.Store("A", (w,), p.Load("C", (w,), "int8"))
    return p.Block("reader", (p.Axis("w", "S", p.Num(6), p.Name(loop)),), (), (), (store,))


@pytest.mark.parametrize(
    ("op", "a", "b", "dtype", "right"),
    [
        ("//", -7, 2, "int32", -4),
        ("%", -7, 2, "int32", 1),
        ("//", 5, 0, "int8", 0),
        ("%", 5, 0, "uint8", 0),
        ("//", -(2**31), -1, "int32", -(2**31)),
        ("+", 127, 1, "int8", -128),
        ("*", 200, 2, "uint8", 144),
        ("-", 0, 1, "uint64", 2**64 - 1),
    ],
)
def test_integers_wrap_around_and_division_rounds_to_minus_infinity(op: str, a: int, b: int, dtype: str, right: int) -> None:
    assert numbers.integer_operation(op, a, b, dtype) == right


def test_float_decisions_that_depend_on_summation_order_are_undecided() -> None:
    third = numbers.float_operation("/", (1.0, 0.0), (3.0, 0.0), "float32")
    assert third[1] > 0.0
    with pytest.raises(Undecided):
        numbers.compare_floats("<", third, third)
    assert numbers.float_operation("+", (3.0, 0.0), (4.0, 0.0), "float16") == (7.0, 0.0)
    with pytest.raises(Undecided):
        numbers.float_operation("*", (6e4, 0.0), (2.0, 0.0), "float16")


# ---- sensitivity of the fuzzer --------------------------------------------------------------------------------------------------


def test_programs_and_steps_are_reproducible_from_the_seed() -> None:
    first, again = generate(5), generate(5)
    assert first is not None and again is not None
    assert first.program == again.program
    assert worker.trial_of(5, 3) == worker.trial_of(5, 3)


def test_every_primitive_is_tried(capfd: pytest.CaptureFixture[str]) -> None:
    """Each registered primitive is applied or refused in some random walk."""
    tried: set[str] = set()
    for seed in range(40):
        trial = worker.trial_of(seed, 3)  # some programs have no unique result
        tried |= {s.primitive for s in trial.steps} if trial is not None else set()
    assert (
        {"split", "reorder", "vectorize", "parallel", "unroll", "cache_read"} <= tried <= {*PRIMITIVES, "search_rule", "default_schedule"}
    )


@pytest.mark.parametrize("name", sorted(FUZZED))
def test_the_entry_of_a_primitive_makes_steps_that_are_accepted(name: str) -> None:
    """On the program of its sample, or on its schedule up to the step of the primitive."""
    sample = SAMPLES[name]
    made = Schedule(sample.func, decisions=sample.decisions)
    sample.steps(made)
    kinds = [i.kind for i in made.trace.instructions]
    before = Trace(made.trace.instructions[: kinds.index(name)])
    for seed in range(200):
        s = replay(before, sample.func) if seed % 2 else Schedule(sample.func)
        try:
            Replay(s, Target("llvm -num-cores=1")).apply(random_step(Choices(seed, name), s, 0, [name]))
        except UserError:
            continue
        return
    pytest.fail(f"200 random steps of {name} were refused: let its entry in FUZZED choose likely arguments")


def reverse_and_sum() -> worker.Trial:
    """A trial with a split that needs its guard, and unrelated parts."""
    v = p.Name("w")
    more = p.Block("more", (p.Axis("w", "S", p.Num(3), p.Name("k")),), (), (), (p.Store("D", (v,), p.Literal(1, "int8")),))
    made = scan()
    program = p.Program((*made.buffers, p.Buffer("D", (p.Num(3),), "int8", "output")), (*made.body, p.Loop("k", p.Num(3), (more,))))
    steps = (
        Step("annotate", (("target", BlockRef("more")), ("key", "prefetch"), ("value", 4))),
        Step("split", (("loop", LoopRef("b", 0)), ("factors", (None, 4)))),
        Step("unroll", (("loop", LoopRef("more", 0)),)),
    )
    return worker.Trial(program, 1, steps, "llvm -mcpu=x86-64-v3 -num-cores=1")


def without_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch `split` to drop the block's guards."""
    original = split_module.split.function

    def careless(s: Any, loop: Any, factors: Any) -> Any:
        out = original(s, loop, factors)
        s.set_body(transform(s.func.body, {Block: lambda b, _: b.with_(predicate=())}))
        return out

    monkeypatch.setattr(split_module.split, "function", careless)


def test_a_seeded_defect_is_found_and_minimised(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert worker.check_trial(reverse_and_sum()) is None
    without_guards(monkeypatch)
    found = worker.check_trial(reverse_and_sum())
    assert found is not None and found.kind.startswith("interpret scheduled")
    small, again = minimise(reverse_and_sum(), found.kind, partial(worker.check_trial, kind=found.kind), 30.0)
    assert again is not None and again.kind == found.kind
    assert [s.primitive for s in small.steps] == ["split"]
    assert [b.name for b in p.blocks(small.program.body)] == ["b"]
    text = describe(small, again)
    assert "s.split(loop=s.get_loops(s.get_block('b'))[0], factors=[None, 4])" in text and render(small.program) in text


def test_a_wrong_interpreter_is_found(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    run = interpret.run

    def wrong(*args: Any, **kwargs: Any) -> Any:
        arrays = run(*args, **kwargs)
        arrays[1][0] += 1
        return arrays

    monkeypatch.setattr(interpret, "run", wrong)
    found = worker.check_trial(worker.Trial(scan(), 1, (), "llvm -mcpu=x86-64-v3 -num-cores=1"))
    assert found == Finding("interpret original: wrong result", found.detail if found else "")


def test_an_interrupted_campaign_resumes(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    lines = [Campaign.entry(worker.Outcome(seed, sequences=seed)) for seed in (4, 5)]
    journal.write_text("\n".join([*map(json.dumps, lines), '{"seed": 6, "torn']), encoding="utf-8")
    campaign = Campaign(tmp_path, workers=1, schedules=1, keep=0)
    assert campaign.done == {4, 5} and campaign.totals.sequences == 9
    campaign.run(range(4, 7), lambda _: None)
    assert "programs 3" in table(campaign.totals)
    written = journal.read_text(encoding="utf-8").splitlines()
    assert json.loads(written[-1])["seed"] == 6 and len(written) == 4


@pytest.mark.parametrize("seed", [69, 124])
def test_rules_take_intermediates_of_dynamic_sizes(seed: int) -> None:
    """A rule asked for values that a loop carries, without the ranges of the sizes."""
    trial = worker.trial_of(seed, 2)
    assert trial is not None and len(trial.steps) == 1
