"""Test partitioning: chains moved to an external code generator, chains not moved, and no later changes to moved chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.emit.lowered_form import CallStep, lowered_form
from tunesmith.graph.ir import interpret, structural
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Operand
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.offload import external_codegen
from tunesmith.graph.offload.external_codegen import EXTERNAL_CODEGENS, ExternalCodegen, compile_external, external_functions, find_codegen
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.legalise import legalise, prim_func
from tunesmith.graph.passes.partition import partition
from tunesmith.graph.passes.pipelines import GRAPH, offloading
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pipelines import CPU
from tunesmith.support.errors import BuildError, RunError, UserError
from tunesmith.support.registry import Registry

TARGET = Target("llvm")
PATTERNS = (Pattern("dense", ("permute_dims?", "matmul", "add?", "relu|tanh?")),)


class Probe(ExternalCodegen):
    """Compile with tunesmith's own compiler; supports all chains of its patterns."""

    name = "probe"
    patterns = PATTERNS

    def supports(self, calls: Sequence[Binding]) -> bool:
        return True

    def compile(self, func: GraphFunc, target: Target) -> bytes:
        return build(prim_func(func.with_(attrs=())), target).data


def module(fill: Callable[[GraphBuilder], Any]) -> IRModule:
    b = GraphBuilder("main")
    made = fill(b)
    return IRModule({"main": b.finish(*made) if isinstance(made, tuple) else b.finish(made)})


def moved(mod: IRModule, codegen: ExternalCodegen | None = None, **options: Any) -> dict[str, list[str]]:
    """Name of each external function -> its operators, after a partition; checks that the result is well formed."""
    made = partition(mod, codegen or Probe(), **options)
    for f in made.values():
        if isinstance(f, GraphFunc):
            verify(f, made)
    return {
        name: [b.operation.operator for b in f.body.bindings if isinstance(b.operation, Call)]
        for name, f in external_functions(made).items()
    }


def layer(b: RegionBuilder, x: Operand, n: int = 4) -> Any:
    w, bias = np.ones((x.type.extents[1], n), "float32"), np.ones(n, "float32")
    return b.relu(b.add(b.matmul(x, b.constant(w, "w")), b.constant(bias, "bias")))


def test_a_chain_moves_as_a_whole_and_equal_chains_share_a_function() -> None:
    mod = module(lambda b: layer(b, layer(b, b.input("x", (4, 4)))))
    made = partition(mod, Probe())
    assert moved(mod) == {"probe_dense": ["matmul", "add", "relu"]}
    calls = [b.operation for b in made["main"].body.bindings]
    assert [c.function for c in calls if isinstance(c, CallFunction)] == ["probe_dense", "probe_dense"]
    func = made["probe_dense"]
    assert func.attrs == (("codegen", "probe"), ("constants", "1 2")) and func.codegen == "probe"
    x = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    before, after = [interpret.run(m["main"], [x], m)[0] for m in (mod, made)]
    assert np.array_equal(before, after)


def test_the_longest_chain_wins_and_optional_calls_may_be_missing() -> None:
    w = np.ones((4, 4), "float32")
    assert moved(module(lambda b: b.matmul(b.input("x", (4, 4)), b.constant(w)))) == {"probe_dense": ["matmul"]}
    assert moved(module(lambda b: b.tanh(b.matmul(b.input("x", (4, 4)), b.permute_dims(b.input("w", (4, 4))))))) == {
        "probe_dense": ["permute_dims", "matmul", "tanh"]
    }
    assert moved(module(lambda b: b.sigmoid(b.matmul(b.input("x", (4, 4)), b.constant(w))))) == {"probe_dense": ["matmul"]}


def test_values_with_other_uses_end_a_chain() -> None:
    def twice(b: GraphBuilder) -> Any:
        y = b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4)))
        return b.relu(y), b.sigmoid(y)

    assert moved(module(twice)) == {"probe_dense": ["matmul"]}

    def returned(b: GraphBuilder) -> Any:
        y = b.matmul(b.input("x", (4, 4)), b.input("w", (4, 4)))
        return b.relu(y), y

    assert moved(module(returned)) == {"probe_dense": ["matmul"]}


def test_check_and_supports_shorten_or_reject_a_chain() -> None:
    mod = module(lambda b: layer(b, b.input("x", (4, 4))))
    short = Pattern("short", PATTERNS[0].operators, check=lambda calls: len(calls) <= 2)
    assert moved(mod, patterns=[short]) == {"probe_short": ["matmul", "add"]}

    class Choosy(Probe):
        def supports(self, calls: Sequence[Binding]) -> bool:
            return calls[0].operation.args[0].type.dtype == "float64"

    made = partition(mod, Choosy())
    assert made["main"] is mod["main"] and not external_functions(made)


def test_regions_of_a_branch_are_searched() -> None:
    def fill(b: GraphBuilder) -> Any:
        x, c = b.input("x", (4, 4)), b.input("c", (), "bool")
        return b.branch(c, lambda r: layer(r, x), lambda r: r.neg(x))

    assert moved(module(fill)) == {"probe_dense": ["matmul", "add", "relu"]}


def test_dynamic_shapes_are_not_moved() -> None:
    assert moved(module(lambda b: b.matmul(b.input("x", (Var("n"), 4)), b.input("w", (4, 4))))) == {}


def test_moved_chains_are_not_rewritten() -> None:
    conv = Pattern("conv", ("conv2d", "relu?"))

    class Conv(Probe):
        patterns = (conv,)

    def fill(b: GraphBuilder) -> Any:
        y = b.relu(b.conv2d(b.input("x", (1, 3, 8, 8)), b.constant(np.ones((4, 3, 3, 3), "float32"), "w")))
        return b.relu(b.conv2d(y, b.input("w2", (4, 4, 1, 1))))

    mod = partition(module(fill), Conv())
    lowered = GRAPH(mod, TARGET)
    assert set(external_functions(lowered)) == {"probe_conv", "probe_conv_1"}
    assert all(structural.equal(lowered[n], mod[n]) for n in external_functions(mod))
    for once in (fuse_operators(mod), legalise(mod)):
        assert all(once[n] is mod[n] for n in external_functions(mod))
        assert not any(isinstance(f, PrimFunc) for f in once.values())
    again = partition(lowered, Conv())
    assert again["main"] is lowered["main"] and len(again) == len(lowered)
    steps = lowered_form(lowered).steps
    assert [s.function for s in steps if isinstance(s, CallStep)] == ["probe_conv", "probe_conv_1"]


def test_batches_of_rows_are_flattened_before_the_partition() -> None:
    def fill(b: GraphBuilder) -> Any:
        y = b.matmul(b.input("x", (2, 3, 4)), b.constant(np.ones((4, 5), "float32"), "w"))
        return b.add(y, b.constant(np.ones(5, "float32"), "bias"))

    lowered = offloading([Probe()])(module(fill), TARGET)
    assert [repr(f.params[0].type) for f in external_functions(lowered).values()] == ["float32[6, 4]"]
    assert [b.operation.operator for b in lowered["probe_dense"].body.bindings] == ["matmul", "add"]
    assert offloading([]) is GRAPH


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_a_mixed_model_runs(executor: str) -> None:
    rng = np.random.default_rng(1)

    def fill(b: GraphBuilder) -> Any:
        w = b.constant(rng.standard_normal((2, 3, 3, 3)).astype("float32"), "w")
        y = b.relu(b.conv2d(b.input("x", (2, 3, 6, 6)), w))
        return b.softmax(layer(b, b.reshape(y, shape=(2, 32)), 5))

    mod = module(fill)
    made = compile_model(mod, TARGET, executor=executor, untuned=default_schedule, offload=[Probe()])
    x = rng.standard_normal((2, 3, 6, 6)).astype("float32")
    assert np.allclose(made(x), interpret.run(mod["main"], [x])[0], rtol=1e-5, atol=1e-6)
    outside = [c for c in made.coverage if c.status == "external"]
    assert [c.function for c in outside] == ["probe_dense"] and "external codegen probe" in str(outside[0])
    assert any(c.status == "missing" for c in made.coverage) and len(made.executable.objects) == 1
    assert "probe_dense" in str(made.profile(x, repeats=1))


def test_models_with_another_lowering_pipeline() -> None:
    mod = module(lambda b: b.relu(b.input("x", (4, 4))))
    seen: list[str] = []

    def watch(func: PrimFunc, target: Target) -> PrimFunc:
        seen.append(func.name)
        return func

    lowering = CPU.insert_after("legalize_bool_storage", type(CPU.passes[0])("test.watch", watch, "FLAT", "FLAT"))
    compile_model(mod, TARGET, untuned=default_schedule, lowering=lowering)
    assert seen == ["op_relu"]
    with pytest.raises(UserError, match="the pipeline has no pass 'simplfy'; it has inject_prefetch, simplify"):
        CPU.insert_after("simplfy")


def test_invalid_names_and_patterns() -> None:
    mod = module(lambda b: layer(b, b.input("x", (4, 4))))
    with pytest.raises(UserError, match=r"unknown external codegen 'blass'. Did you mean 'blas'"):
        partition(mod, "blass")
    with pytest.raises(UserError, match=r"the pattern p \('matmull', 'add\?'\): unknown graph operator 'matmull'. Did you mean 'matmul'"):
        partition(mod, Probe(), [Pattern("p", ("matmull", "add?"))])
    with pytest.raises(UserError, match="must have a call that is not optional"):
        partition(mod, Probe(), [Pattern("p", ("add?",))])
    with pytest.raises(UserError, match="'a b' is not a valid pattern name"):
        partition(mod, Probe(), [Pattern("a b", ("add",))])
    odd = Probe()
    odd.name = "a-b"
    with pytest.raises(UserError, match="'a-b' is not a valid name of an external codegen"):
        partition(mod, odd)
    with pytest.raises(UserError, match="the pipeline has no pass 'fold_constants'"):
        offloading([Probe()], GRAPH.without("fold_constants"))


def test_invalid_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = partition(module(lambda b: layer(b, b.input("x", (4, 4)))), Probe())
    with pytest.raises(UserError, match="unknown external codegen 'probe'"):
        compile_external(mod, TARGET)

    class Other(Probe):
        def compile(self, func: GraphFunc, target: Target) -> bytes:
            return super().compile(func.with_(name="other"), target)

    with pytest.raises(BuildError, match="external codegen 'probe' for probe_dense does not define __tvm_ffi_probe_dense"):
        compile_external(mod, TARGET, [Other()])

    class Text(Probe):
        def compile(self, func: GraphFunc, target: Target) -> bytes:
            return b"no object"

    with pytest.raises(RunError, match="the object of the external codegen 'probe' for probe_dense is not a 64-bit"):
        compile_external(mod, TARGET, [Text()])
    monkeypatch.setattr(
        external_codegen, "EXTERNAL_CODEGENS", Registry("external codegen", {"dict": "builtins:dict"}, contract=EXTERNAL_CODEGENS.contract)
    )
    with pytest.raises(UserError, match="the external codegen 'dict' .* is the class dict, not a class derived from .*ExternalCodegen"):
        find_codegen("dict")


def test_ahead_of_time_libraries_need_one_object() -> None:
    mod = module(lambda b: layer(b, b.input("x", (4, 4))))
    with pytest.raises(BuildError, match="probe_dense would be called in another one: compile without offload"):
        compile_model(mod, TARGET, executor="aot", untuned=default_schedule, offload=[Probe()])
