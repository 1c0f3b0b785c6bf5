"""instrument: the order of calls, errors that name the instrument, and passes that an instrument leaves out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.instrument import Instrument, InstrumentError, can_skip
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import Pipeline, function_pass, module_pass
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.workload import workload

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
FUNC = workload("relu(shape=8)").func


class Recorder(Instrument):
    """Lists all calls."""

    def __init__(self, label: str, calls: list[tuple[str, ...]]) -> None:
        self.label, self.calls = label, calls

    def enter(self) -> None:
        self.calls.append((self.label, "enter"))

    def exit(self) -> None:
        self.calls.append((self.label, "exit"))

    def before(self, name: str, ir: Any) -> None:
        self.calls.append((self.label, "before", name))

    def after(self, name: str, before: Any, after: Any, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((self.label, "after", name))

    def failed(self, name: str, before: Any, error: BaseException, seconds: float) -> None:
        self.calls.append((self.label, "failed", name, str(error)))


@function_pass(requires="SCHEDULED")
def fails(func: PrimFunc, target: Target) -> PrimFunc:
    raise ValueError("no")


@module_pass
def lowers(mod: IRModule) -> IRModule:
    return Pipeline(simplify)(mod, TARGET)


def test_calls_are_nested() -> None:
    calls: list[tuple[str, ...]] = []
    with PassContext(instruments=[Recorder("a", calls)]):
        with PassContext(instruments=[Recorder("b", calls)]):
            Pipeline(lowers)(IRModule([FUNC]), TARGET)
        Pipeline(lower_blocks)(FUNC, TARGET)
    Pipeline(lower_blocks)(FUNC, TARGET)
    inside = [(x, when, "simplify") for when in ("before", "after") for x in "ab"]
    outside = [[(x, when, "lowers") for x in "ab"] for when in ("before", "after")]
    expected = [("a", "enter"), ("b", "enter"), *outside[0], *inside, *outside[1], ("b", "exit")]
    assert calls == [*expected, ("a", "before", "lower_blocks"), ("a", "after", "lower_blocks"), ("a", "exit")]


def test_programs_are_those_of_the_passes() -> None:
    steps: list[tuple[str, Any, Any]] = []

    class Watch(Instrument):
        def after(self, name: str, before: Any, after: Any, seconds: float) -> None:
            steps.append((name, before, after))

    with PassContext(instruments=[Watch()]):
        done = CPU(FUNC, TARGET)
    assert [s[0] for s in steps] == list(CPU.names) and steps[0][1] is FUNC and steps[-1][2] is done
    assert all(a[2] is b[1] for a, b in pairwise(steps))


def test_a_failing_pass_is_shown_in_place_of_after() -> None:
    calls: list[tuple[str, ...]] = []
    with pytest.raises(ValueError, match="no"), PassContext(instruments=[Recorder("a", calls)]):
        Pipeline(simplify, fails, simplify)(FUNC, TARGET)
    assert calls[3:] == [("a", "before", "fails"), ("a", "failed", "fails", "no"), ("a", "exit")]


def failing(method: str) -> Instrument:
    def raises(self: Instrument, *args: object) -> None:
        raise KeyError("gone")

    return type("Broken", (Instrument,), {method: raises})()


@pytest.mark.parametrize(
    ("method", "where"),
    [("enter", "enter: "), ("exit", "exit: "), ("before", "before of the pass 'simplify'"), ("after", "after of the pass 'simplify'")],
)
def test_errors_name_the_instrument_and_the_pass(method: str, where: str) -> None:
    calls: list[tuple[str, ...]] = []
    with pytest.raises(InstrumentError, match=f"the instrument Broken failed in {where}.*KeyError: 'gone'"):
        with PassContext(instruments=[Recorder("a", calls), failing(method), Recorder("c", calls)]):
            Pipeline(simplify)(FUNC, TARGET)
    assert calls.count(("a", "enter")) == calls.count(("a", "exit")) == 1
    assert calls.count(("c", "enter")) == calls.count(("c", "exit")) == (method != "enter")
    assert PassContext.current() == PassContext(level=2)


def test_an_error_of_an_instrument_does_not_hide_that_of_the_pass() -> None:
    for method in ("failed", "exit"):
        with pytest.raises(ValueError, match="no") as caught:
            with PassContext(instruments=[failing(method)]):
                Pipeline(fails)(FUNC, TARGET)
        assert f"the instrument Broken failed in {method}" in "".join(caught.value.__notes__)


def test_an_instrument_leaves_out_optional_passes() -> None:
    asked: list[str] = []

    class Skip(Instrument):
        def should_run(self, name: str, ir: Any) -> bool:
            asked.append(name)
            return name != "simplify"

    calls: list[tuple[str, ...]] = []
    with PassContext(instruments=[Recorder("a", calls), Skip()]):
        CPU(FUNC, TARGET)
    assert asked == [p.name for p in CPU if not p.needed_by] and can_skip(Skip()) and not can_skip(Recorder("a", []))
    assert ("a", "after", "lower_blocks") in calls and not any("simplify" in c for c in calls)


def test_should_run_answers_true_or_false() -> None:
    class Forgets(Instrument):
        def should_run(self, name: str, ir: Any) -> bool:  # type: ignore[return]
            pass

    with pytest.raises(InstrumentError, match="the instrument Forgets returned None from should_run for the pass 'simplify': return True"):
        with PassContext(instruments=[Forgets()]):
            Pipeline(simplify)(FUNC, TARGET)


def test_graph_passes_are_observed_too() -> None:
    from tunesmith.graph.ir.builder import GraphBuilder

    b = GraphBuilder("main")
    mod = IRModule({"main": b.finish(b.relu(b.input("x", (4,))))})
    calls: list[tuple[str, ...]] = []
    with PassContext(instruments=[Recorder("a", calls)], disabled=["convert_layout"]):
        GRAPH(mod, TARGET)
    assert [c[2] for c in calls if c[1] == "after"] == [n for n in GRAPH.names if n != "convert_layout"]
