"""Fuzz graph passes and the whole graph compiler: random graphs stay well formed and keep their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.calls import called_functions
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import ReadSize, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.common_subexpressions import common_subexpressions
from tunesmith.graph.passes.convert_layout import convert_layout
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.flatten_rows import flatten_rows
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_scale_axis import fold_scale_axis
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.legalise import legalise
from tunesmith.graph.passes.pipelines import GRAPH, GRAPH_PASSES
from tunesmith.graph.passes.propose_attention import propose_attention
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream
from tunesmith.testing.random_graphs import RandomGraph

PASSES: tuple[Callable[[IRModule], IRModule], ...] = (
    simplify_inference,
    fold_constants,
    fold_scale_axis,
    convert_layout,
    flatten_rows,
    common_subexpressions,
    dead_code,
    propose_attention,
    fuse_operators,
    legalise,
)
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def compare(results: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str) -> None:
    for i, (a, w) in enumerate(zip(results, expected, strict=True)):
        assert (a.shape, a.dtype) == (w.shape, w.dtype), f"{what}: result {i}"
        scale = max(1.0, float(np.abs(w).max(initial=0)))
        np.testing.assert_allclose(a, w, rtol=1e-4, atol=1e-4 * scale, err_msg=f"{what}: result {i}")


def check_module(mod: IRModule) -> None:
    for f in mod.values():
        if isinstance(f, GraphFunc):
            verify(f, mod)


def check_pass(g: RandomGraph, run_pass: Callable[[IRModule], IRModule], expected: Sequence[np.ndarray]) -> None:
    what = run_pass.__name__
    check_module(done := run_pass(g.module))
    compare(run(done["main"], g.arrays, done), expected, what)
    again = run_pass(done)
    assert all(again[name] is done[name] for name in done) and len(again) == len(done), f"{what} is not idempotent"


@pytest.mark.parametrize("seed", range(60))
def test_each_pass(seed: int) -> None:
    """The last seeds with `while` loops, sizes that are read, and recursion."""
    g = RandomGraph(seed, loops=seed >= 40)
    check_module(g.module)
    expected = run(g.module["main"], g.arrays, g.module)
    for p in PASSES:
        check_pass(g, p, expected)


@pytest.mark.parametrize("seed", range(60))
def test_whole_pipeline(seed: int) -> None:
    g = RandomGraph(seed, loops=seed >= 40)
    done = GRAPH(g.module, TARGET)
    check_module(done)
    compare(run(done["main"], g.arrays, done), run(g.module["main"], g.arrays, g.module), "pipeline")


@pytest.mark.parametrize("seed", range(6))
def test_compiled_models_agree_with_the_interpreter(seed: int) -> None:
    """Larger graphs with default schedules, small ones with schedules of the analytic model."""
    symbolic, plain = seed % 3 == 2, seed % 2 == 0
    g = RandomGraph(1000 + seed, 12 if plain else 3, symbolic, branches=symbolic)
    expected = run(g.module["main"], g.arrays, g.module)
    for executor in ("vm",) if symbolic else ("graph", "vm", "aot"):
        schedule = default_schedule if plain else analytic_schedule
        found = compile_model(g.module, TARGET, executor=executor, untuned=schedule)(*g.arrays)
        compare(found if isinstance(found, tuple) else (found,), expected, executor)


@pytest.mark.parametrize("seed", range(6))
def test_compiled_loops_agree_with_the_interpreter(seed: int) -> None:
    """Two calls, because memory is used again."""
    g = RandomGraph(3000 + seed, 12, loops=True)
    expected = run(g.module["main"], g.arrays, g.module)
    model = compile_model(g.module, TARGET, executor="vm", untuned=default_schedule)
    for _ in range(2):
        found = model(*g.arrays)
        compare(found if isinstance(found, tuple) else (found,), expected, "vm")


@pytest.mark.parametrize("seed", range(8))
def test_loops_ahead_of_time_agree_with_the_interpreter(seed: int) -> None:
    """Graphs that call functions which call themselves, or whose shapes depend on data, are refused."""
    g = RandomGraph(7000 + seed, 10, symbolic=False, loops=True)
    bindings = [b for f in dead_code(g.module).values() if isinstance(f, GraphFunc) for b in all_bindings(f.body)]
    dynamic = any(isinstance(b.operation, ReadSize) for b in bindings) or "halve" in called_functions(dead_code(g.module), "main")
    if dynamic:
        with pytest.raises(BuildError, match="this executor supports only"):
            compile_model(g.module, TARGET, executor="aot", untuned=default_schedule)
        return
    found = compile_model(g.module, TARGET, executor="aot", untuned=default_schedule)(*g.arrays)
    compare(found if isinstance(found, tuple) else (found,), run(g.module["main"], g.arrays, g.module), "aot")


@pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
@pytest.mark.parametrize("seed", range(12))
def test_models_on_devices_agree_with_the_interpreter(seed: int) -> None:
    """Branches and loops on the virtual machine, dynamic shapes on the host, and a random part of the functions on the host."""
    g = RandomGraph(2000 + seed, 12, symbolic=seed % 4 == 3, branches=seed % 2 == 1, loops=seed >= 8)
    if "halve" in called_functions(dead_code(g.module), "main"):
        with pytest.raises(BuildError, match="must not be recursive"):
            compile_model(g.module, Target("opencl"), untuned=default_schedule)
        return
    names: list[str] = []
    for _ in range(2):
        made = compile_model(g.module, Target("opencl"), untuned=default_schedule, place=dict.fromkeys(names, Target.detect()))
        found, place = made(*g.arrays), names
        names = [c.function for c in made.coverage if g.chance(0.3)]
        compare(found if isinstance(found, tuple) else (found,), run(g.module["main"], g.arrays, g.module), str(place))


# ---- optional passes that are disabled -------------------------------------------------------------------------------------

OPTIONAL_OF_GRAPHS = tuple(p.name for p in GRAPH_PASSES.values() if not p.needed_by)
OPTIONAL = (*OPTIONAL_OF_GRAPHS, *sorted({p.name for p in CPU if not p.needed_by}))


def some(names: Sequence[str], seed: int) -> list[str]:
    """A random subset; all of them for the first seed."""
    rng = stream(seed, "disabled passes")
    share = rng.random() if seed else 1.1
    return [name for name in names if rng.random() < share]


@pytest.mark.parametrize("seed", range(24))
def test_graphs_keep_their_results_without_any_optional_passes(seed: int) -> None:
    g = RandomGraph(500 + seed)
    disabled = some(OPTIONAL_OF_GRAPHS, seed)
    with PassContext(disabled=disabled):
        done = GRAPH(g.module, TARGET)
    check_module(done)
    compare(run(done["main"], g.arrays, done), run(g.module["main"], g.arrays, g.module), f"without {disabled}")


@pytest.mark.parametrize("seed", range(9))
def test_compiled_models_keep_their_results_without_any_optional_passes(seed: int) -> None:
    symbolic = seed % 3 == 2
    g = RandomGraph(2000 + seed, 12, symbolic, branches=symbolic)
    disabled = some(OPTIONAL, seed)
    with PassContext(disabled=disabled):
        found = compile_model(g.module, TARGET, untuned=default_schedule)(*g.arrays)
    compare(found if isinstance(found, tuple) else (found,), run(g.module["main"], g.arrays, g.module), f"without {disabled}")
