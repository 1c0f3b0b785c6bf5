"""Run the conformance check on the registered search rules, and check that it detects rules that break the contract."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import SEARCH_RULES, Rule
from tunesmith.search.space.sketch import Sketch
from tunesmith.testing.rule_conformance import check_rule

CPU = Target("llvm -mcpu=znver5 -num-cores=2")
GPU = Target("nvidia/l4")
APPLIES = {
    "contraction": "matmul(m=12,n=20,k=24)",
    "fallback": "gelu(shape=6x40)",
    "pointwise": "relu(shape=300)",
    "reductions": "sum(shape=5x70,axis=1)",
    "rows": "softmax(m=6,n=40)",
}
"""A workload for each rule, whose name has the prefix `gpu_` for GPUs."""
RELU = workload("relu(shape=6x40)").func
Named = list[tuple[str, Callable[[Schedule], None]]]


@pytest.mark.parametrize("prefix", ["", "gpu_"])
@pytest.mark.parametrize("name", APPLIES)
def test_registered_rules(name: str, prefix: str) -> None:
    check_rule(SEARCH_RULES.get(prefix + name), workload(APPLIES[name]).func, GPU if prefix else CPU)


def loops(s: Schedule) -> Any:
    return s.get_loops(s.get_block("Y"))


def tiled(s: Schedule) -> None:
    outer = loops(s)[0]
    s.split(outer, [None, *s.sample_tile(outer, 2, "i", domains=[(1, 2, 3)])])


def parallel(s: Schedule) -> None:
    s.parallel(loops(s)[0])


def refused(s: Schedule) -> None:
    s.split(loops(s)[0], [2, 2])


def correct(func: PrimFunc, target: Target) -> Named:
    return [("tiled", tiled), ("parallel", parallel), ("refused", refused)]


def nothing(func: PrimFunc, target: Target) -> Named:
    return []


def bare(func: PrimFunc, target: Target) -> Named:
    return [tiled]  # type: ignore[list-item]


def lazy(func: PrimFunc, target: Target) -> Named:
    return (pair for pair in correct(func, target))  # type: ignore[return-value]


def one_name(func: PrimFunc, target: Target) -> Named:
    return [("tiled", tiled), ("tiled", parallel)]


def same_sketch(func: PrimFunc, target: Target) -> Named:
    return [("tiled", tiled), ("tiled again", lambda s: tiled(s))]


def numbered(func: PrimFunc, target: Target) -> Named:
    return [(f"tiled {next(CALLS)}", tiled)]


def stateful(func: PrimFunc, target: Target) -> Named:
    """The schedule takes other steps in each call."""
    calls: list[int] = []

    def schedule(s: Schedule) -> None:
        calls.append(0)
        s.parallel(loops(s)[len(calls) % 2])

    return [("stateful", schedule)]


def renames(func: PrimFunc, target: Target) -> Named:
    object.__setattr__(func, "name", func.name + "_")
    return [("tiled", tiled)]


def impossible(func: PrimFunc, target: Target) -> Named:
    return [("refused", refused)]


CALLS = count()


def test_a_correct_rule_passes() -> None:
    assert [s.name for s in check_rule(correct, RELU, CPU)] == ["tiled", "parallel"]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (nothing, "the rule gives no schedule for relu"),
        (bare, "a rule returns pairs of a name and a function of the schedule, got <function tiled"),
        (lazy, "a rule returns a list of pairs, got a generator"),
        (one_name, "several schedules have the name tiled"),
        (same_sketch, "the sketches 'tiled' and 'tiled again' have the same steps"),
        (numbered, r"gives the schedules \['tiled \d+'\] for relu, and \['tiled \d+'\] when it is called again"),
        (stateful, "the schedule 'stateful' takes other steps when it is run again"),
        (renames, "modified the function"),
        (impossible, "every schedule of the rule is refused for relu"),
    ],
)
def test_broken_rules_are_detected(broken: Rule, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_rule(broken, workload("relu(shape=6x40)").func, CPU)


def test_wrong_programs_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sketch, "concretize", lambda sketch, row: workload("gelu(shape=6x40)").func)
    with pytest.raises(AssertionError, match="the sketch 'tiled' with the row .*result 0"):
        check_rule(correct, RELU, CPU)
