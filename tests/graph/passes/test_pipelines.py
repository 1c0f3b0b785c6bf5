"""Test pipelines of module passes: order, instruments, edits, TIR passes among module passes, and the pipeline of the compiler."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import CallFunction, all_bindings
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.legalise import legalise
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import ModulePass, Pass, Pipeline, module_pass
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.simplify import simplify
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def module() -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (2, 4))
    b.exp(x)
    return IRModule({"main": b.finish(b.relu(b.matmul(x, b.constant(np.ones((4, 4), np.float32)))))})


def test_passes_run_in_order_under_instruments() -> None:
    seen: list[tuple[str, bool, bool]] = []
    given: list[Target] = []

    def note(mod: IRModule, target: Target) -> IRModule:
        given.append(target)
        return mod

    pipeline = Pipeline(module_pass(dead_code), ModulePass("note", note), module_pass(legalise))
    assert pipeline.names == ("dead_code", "note", "legalise")
    mods = [module()]

    class Watch(Instrument):
        def after(self, name: str, before: IRModule, after: IRModule, seconds: float) -> None:
            seen.append((name, before is mods[-1], after is before))
            assert seconds >= 0
            mods.append(after)

    with PassContext(instruments=[Watch()]):
        done = pipeline(mods[0], TARGET)
    assert seen == [("dead_code", True, False), ("note", True, True), ("legalise", True, False)] and done is mods[-1]
    assert given == [TARGET]
    assert "exp" in str(mods[0]["main"]) and list(done) == ["main", "op_matmul", "op_relu"]


def test_passes_of_functions_are_applied_to_each_of_them() -> None:
    for p, names in ((lower_blocks, ("lower_blocks",)), (Pipeline(simplify, lower_blocks), ("simplify", "lower_blocks"))):
        pipeline = Pipeline(module_pass(legalise), p)
        assert pipeline.names == ("legalise", *names)
        done = pipeline(module(), TARGET)
        assert len(done) == 4
        assert not any(isinstance(n, Block) for f in done.values() if isinstance(f, PrimFunc) for n in walk(f.body))
        assert isinstance(done["main"], GraphFunc)


def test_edits_give_new_pipelines() -> None:
    short = GRAPH.without("convert_layout", "fold_layouts")
    assert set(GRAPH.names) - set(short.names) == {"convert_layout", "fold_layouts"} and "convert_layout" in GRAPH.names
    longer = short.insert_after("dead_code", module_pass(dead_code), simplify)
    at = longer.names.index("dead_code")
    assert longer.names[at : at + 3] == ("dead_code", "dead_code", simplify.name) and len(longer.names) == len(short.names) + 2
    for edit in (lambda: GRAPH.without("fuse"), lambda: GRAPH.insert_after("fuse", simplify)):
        with pytest.raises(UserError, match="the pipeline has no pass 'fuse'; it has simplify_inference, .*fuse_operators, legalise"):
            edit()


def test_compiled_functions_contain_only_calls_and_views(capsys: pytest.CaptureFixture[str]) -> None:
    done = GRAPH(module(), TARGET)
    assert list(done) == ["main", "fused_matmul_relu"]
    operations = [b.operation for b in all_bindings(done["main"].body)]
    assert all(isinstance(o, CallFunction) or GRAPH_OPERATORS.get(o.operator).view for o in operations)
    assert capsys.readouterr().out == ""


def test_passes_with_wrong_results_are_reported() -> None:
    for made, text in ((None, "None"), (3, "a int"), (workload("relu(shape=4)").func, "a PrimFunc")):
        broken = ModulePass("mine", lambda mod, target, made=made: made)  # type: ignore[misc]
        with pytest.raises(UserError, match=f"the pass 'mine' returned {text}: a module pass must return the new IRModule"):
            Pipeline(module_pass(dead_code), broken, module_pass(dead_code))(module(), TARGET)
    functions = IRModule([workload("relu(shape=4)").func])
    forgetful = Pass("lower.mine", lambda func, target: None, "SCHEDULED", "SCHEDULED")  # type: ignore[arg-type,return-value]
    for pipeline in (Pipeline(forgetful), Pipeline(Pipeline(forgetful))):
        with pytest.raises(UserError, match=r"the pass 'lower.mine' returned None for relu: .*PrimFunc"):
            pipeline(functions, TARGET)
    with pytest.raises(UserError, match=r"the pass 'lower.mine' returned None for relu"):
        Pipeline(forgetful, lower_blocks)(functions["relu"], TARGET)


def test_invalid_passes_are_rejected() -> None:
    for wrong in (None, 3, lambda mod: mod):
        with pytest.raises(UserError, match="is not a pass: make one of a function with module_pass or function_pass"):
            Pipeline(wrong)  # type: ignore[arg-type]
