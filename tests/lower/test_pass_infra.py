"""pass_infra: pipelines are values, which edits copy, of passes of functions and of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.pass_infra import ModulePass, Pass, Pipeline, function_pass, module_pass
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def relu() -> PrimFunc:
    return workload("relu(shape=8)").func


@function_pass(requires="SCHEDULED")
def note(func: PrimFunc, target: Target) -> PrimFunc:
    return func


@module_pass
def drop(mod: IRModule) -> IRModule:
    return IRModule(dict(list(mod.items())[:1]))


def test_composition() -> None:
    both = Pipeline(simplify, drop) + lower_blocks
    assert both.names == ("simplify", "drop", "lower_blocks") and both.stages == ("SCHEDULED", "SCHEDULED", "OPAQUE")
    assert (drop + Pipeline(simplify)).names == ("drop", "simplify")
    assert (GRAPH + CPU).passes == (*GRAPH, *CPU) and len(GRAPH + CPU) == len(GRAPH) + len(CPU)
    assert Pipeline() + CPU == CPU == Pipeline(CPU) and hash(Pipeline(CPU)) == hash(CPU)
    assert CPU != GRAPH and CPU != 3 and CPU.without("simplify") != CPU
    with pytest.raises(UserError, match="the pass 'flatten_buffers' needs stage OPAQUE, but the pipeline is at SCHEDULED there"):
        Pipeline(simplify) + flatten_buffers


def test_a_pipeline_reads_as_a_list() -> None:
    assert repr(Pipeline(simplify, note)) == str(Pipeline(simplify, note)) == "Pipeline(\n    simplify,\n    note,\n)"
    by_name = {p.name: p for p in CPU}
    assert "    version_loops{most=8},\n" in repr(Pipeline(lower_blocks, by_name["version_loops"].with_options(most=8)))
    assert repr(Pipeline()) == "Pipeline()"


def test_edits_at_every_occurrence_or_at_one() -> None:
    three = Pipeline(simplify, note, simplify, lower_blocks, simplify)
    assert three.without("simplify").names == ("note", "lower_blocks")
    assert three.without("simplify", "note").names == ("lower_blocks",)
    assert three.without("simplify", which=1).names == ("simplify", "note", "lower_blocks", "simplify")
    assert three.insert_before("simplify", note, which=0).names == ("note", *three.names)
    assert three.insert_after("simplify", note, which=-1).names == (*three.names, "note")
    assert three.insert_after("simplify", note).names.count("note") == 4
    assert three.replace("simplify", note, drop, which=2).names == ("simplify", "note", "simplify", "lower_blocks", "note", "drop")
    assert three.replace("note", Pipeline(simplify, simplify)).names.count("simplify") == 5
    assert three.names == ("simplify", "note", "simplify", "lower_blocks", "simplify")


def test_refused_edits() -> None:
    for edit in (
        lambda: CPU.without("simplfy"),
        lambda: CPU.insert_before("simplfy", note),
        lambda: CPU.insert_after("simplfy", note),
        lambda: CPU.replace("simplfy", note),
    ):
        with pytest.raises(UserError, match="the pipeline has no pass 'simplfy'; it has .* Did you mean 'simplify'"):
            edit()
    for which in (3, -4, True, "all"):
        with pytest.raises(UserError, match=r"the pipeline has the pass 'simplify' 3 time\(s\), numbered from 0"):
            CPU.without("simplify", which=which)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the pipeline has no pass 'simplify'; it has none"):
        Pipeline().without("simplify")
    with pytest.raises(UserError, match="needs stage OPAQUE, but the pipeline is at SCHEDULED"):
        CPU.without("lower_blocks")


def test_programs() -> None:
    mod = IRModule([relu(), workload("exp(shape=8)").func])
    done = Pipeline(drop, simplify, lower_blocks)(mod, TARGET)
    assert list(done) == ["relu"] and not any(isinstance(n, Block) for n in walk(done["relu"].body))
    assert Pipeline(note)(mod, TARGET) is mod and Pipeline()(mod, TARGET) is mod
    with pytest.raises(UserError, match="the pass 'drop' takes a module, and the pipeline got the function relu"):
        Pipeline(simplify, drop)(relu(), TARGET)
    wrong: Any
    for wrong in (None, "relu", [relu()]):
        with pytest.raises(UserError, match="a pipeline takes a PrimFunc or an IRModule, not"):
            CPU(wrong, TARGET)


@pytest.mark.parametrize("target", ["llvm", None, 5])
def test_pipelines_take_targets(target: Any) -> None:
    with pytest.raises(UserError, match="a pipeline takes a program and a Target, not "):
        Pipeline(simplify)(relu(), target)
    with pytest.raises(UserError, match="a pipeline takes a program and a Target, not "):
        GRAPH(IRModule([relu()]), target)


def test_named_objects_are_passes_of_modules() -> None:
    class Named:
        name = "first_only"

        def __call__(self, mod: IRModule, target: Target) -> IRModule:
            return drop(mod, target)

    made = Pipeline(Named(), simplify)
    assert made.names == ("first_only", "simplify") and isinstance(made.passes[0], ModulePass)
    assert list(made(IRModule([relu(), workload("exp(shape=8)").func]), TARGET)) == ["relu"]
    with pytest.raises(UserError, match="is not a pass"):
        Pipeline(Named)  # type: ignore[arg-type]


def test_levels_of_passes() -> None:
    assert note.level == 1 and not note.needed_by and lower_blocks.needed_by == "passes and code generators that need stage OPAQUE"
    third = function_pass(requires="FLAT", level=3)(note.run)
    assert third.level == 3 and third.with_options().level == 3
    assert module_pass(level=2, needed_by="all")(drop.run.__wrapped__).needed_by == "all"  # type: ignore[attr-defined]
    assert note.needed(by="the test").needed_by == "the test"
    for level in (0, 4, True, "1"):
        with pytest.raises(UserError, match="levels of passes are 1, 2, 3"):
            function_pass(requires="FLAT", level=level)(note.run)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="write a text, what does not work without it"):
        Pass("p", note.run, "FLAT", "FLAT", needed_by=True)  # type: ignore[arg-type]


BREAK: list[tuple[dict[str, Callable[[PrimFunc], object]], str]] = [
    ({"params": lambda f: f.params[::-1]}, r"changed the parameters of relu from \(X: float32\[8\], Y: .* by position"),
    ({"params": lambda f: f.params[:1]}, r"changed .* to \(X: float32\[8\]\): a pass keeps them in order"),
    ({"params": lambda f: (*f.params, f.params[0])}, "changed the parameters of relu"),
    ({"params": lambda f: [*f.params]}, "changed the parameters of relu"),
    ({"params": lambda f: (f.params[0].like(shape=(4,)), f.params[1])}, "changed the parameters of relu"),
    ({"params": lambda f: (f.params[0], f.params[1].like(dtype="float16"))}, "changed the parameters of relu"),
    ({"name": lambda f: "other"}, "renamed relu to 'other': a pass keeps the name"),
    ({"name": lambda f: 5}, "renamed relu to 5"),
    ({"body": lambda f: None}, "returned relu with None as its body: the body is a statement"),
    ({"body": lambda f: "x"}, "returned relu with a str as its body"),
]
"""Fields of a function that a pass replaces, and the message."""


@pytest.mark.parametrize(("changes", "message"), BREAK, ids=[m[:40] for _, m in BREAK])
@pytest.mark.parametrize("after", ["simplify", "flatten_buffers"])
def test_a_pass_keeps_what_callers_rely_on(changes: dict[str, Callable[[PrimFunc], object]], message: str, after: str) -> None:
    def broken(func: PrimFunc, target: Target) -> PrimFunc:
        return func.with_(**{key: made(func) for key, made in changes.items()})

    at = [*CPU.names].index(after)
    pipeline = Pipeline(*CPU.passes[: at + 1], function_pass(requires=CPU.stages[at])(broken))
    with pytest.raises(UserError, match=rf"the pass 'broken' {message}"):
        pipeline(relu(), TARGET)


def test_a_pass_may_give_a_parameter_another_shape_or_type() -> None:
    @function_pass(requires="SCHEDULED")
    def other(func: PrimFunc, target: Target) -> PrimFunc:
        return func.with_(params=tuple([p.like(shape=(2, 4), dtype="int32") for p in func.params]))

    assert [str(p) for p in Pipeline(other)(relu(), TARGET).params] == ["X: int32[2, 4]", "Y: int32[2, 4]"]


def test_exceptions_name_the_pass() -> None:
    @function_pass(requires="SCHEDULED")
    def divide(func: PrimFunc, target: Target) -> PrimFunc:
        raise ZeroDivisionError("mine")

    @module_pass
    def look_up(mod: IRModule) -> IRModule:
        raise KeyError("mine")

    for p, kind in ((divide, ZeroDivisionError), (look_up, KeyError)):
        with pytest.raises(kind) as error:
            Pipeline(p)(IRModule([relu()]), TARGET)
        assert error.value.__notes__ == [f"in the pass {p.name!r}"]
