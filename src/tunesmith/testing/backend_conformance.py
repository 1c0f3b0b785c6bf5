"""Conformance tests for backends: derive a class from `BackendConformance` in a test file and define two fixtures.

    class TestMine(BackendConformance):
        @pytest.fixture
        def make(self):
            return lambda: MY_BACKEND

        @pytest.fixture
        def target(self):
            return Target("mine -num-cores=2")

Code is built if the backend generates any and `compiler_is_here`; it is run if `check_runs_here` accepts the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import Backend
from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Param, Var
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import nest, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.stages import STAGES, check_stage
from tunesmith.ops.workload import Workload, workload
from tunesmith.search.space.rules_table import find_rules, sketches_of
from tunesmith.support.errors import BuildError, RunError, TunesmithError
from tunesmith.testing.array_agreement import check_arrays, check_guards, guarded

Make = Callable[[], Backend]
"""Returns the manifest."""

WORKLOADS = ("matmul(m=12,n=20,k=24)", "softmax(m=6,n=40)", "relu(shape=300)", "sum(shape=5x70,axis=1)")
"""A contraction, a chain of reductions and elementwise blocks, an elementwise block that fills no vector, a reduction."""
PARTS = ("load", "evaluator", "calibrated", "analytic_cost")
"""The fields of a manifest that are paths."""
EVALUATOR = ("prepare", "run", "compare", "close", "corrupted")


@cache
def example_workload(text: str) -> Workload:
    """A workload of `WORKLOADS`."""
    return workload(text)


def example_functions(backend: Backend, target: Target) -> list[tuple[Workload, PrimFunc]]:
    """The workloads, each scheduled by the first sketch of the backend's rules; fails if no rule applies to one of them."""
    made = []
    for text in WORKLOADS:
        w = example_workload(text)
        found = _sketches(backend.rules, w, target) or _sketches(backend.fallback_rules, w, target)
        assert found, f"no rule of {', '.join((*backend.rules, *backend.fallback_rules))} applies to {text}"
        space = found[0].space
        row = tuple([int(x) for x in space.sample(1, np.random.default_rng(0))[0]])
        made.append((w, found[0].concretize(row)))
    return made


class BackendConformance:
    """The tests; each docstring states a requirement."""

    compiler_is_here: ClassVar[bool] = True
    """Whether the compiler that the backend calls is installed."""

    @pytest.fixture
    def make(self) -> Make:
        """A function that returns the manifest."""
        raise NotImplementedError("override the fixture `make` to return a function that returns the Backend")

    @pytest.fixture
    def target(self) -> Target:
        """A target of the backend's kind: this machine's, if there is such a device."""
        raise NotImplementedError("override the fixture `target` to return a Target of the backend's kind")

    @pytest.fixture
    def elsewhere(self) -> Target:
        """A target of the kind whose code cannot run on this machine."""
        pytest.skip("the fixture `elsewhere` is not defined: refusals of other machines are not tested")

    def test_manifest_is_complete(self, make: Make, target: Target) -> None:
        """The kind is the target's or its base; paths name callables; rules are registered; the evaluator has its methods."""
        backend = make()
        assert backend.kind in (target.kind, target.base), f"the manifest is for {backend.kind}, the target for {target.kind}"
        for name in PARTS:
            path = getattr(backend, name)
            try:
                part = backend.part(name)
            except TunesmithError as error:
                raise AssertionError(f"{name}: {path!r} cannot be resolved: {error}") from error
            assert callable(part), f"{name}: {path!r} is not callable"
        evaluator = backend.part("evaluator")()
        missing = [name for name in EVALUATOR if not hasattr(evaluator, name)]
        assert not missing, f"the evaluator {backend.evaluator} lacks {', '.join(missing)}"
        evaluator.close()
        evaluator.close()
        for rule in (*backend.rules, *backend.large_rules, *backend.fallback_rules):
            try:
                find_rules([rule])
            except TunesmithError as error:
                raise AssertionError(f"the manifest names the rule {rule!r}: {error}") from error
        assert isinstance(backend.pipeline, Pipeline), f"the pipeline is a {type(backend.pipeline).__name__}"

    def test_rules_give_candidates(self, make: Make, target: Target) -> None:
        """Every example has a sketch by `rules`, and another by the fallback rule, which applies to all functions."""
        backend = make()
        example_functions(backend, target)
        for text in WORKLOADS:
            found = _sketches(backend.fallback_rules[-1:], example_workload(text), target)
            assert found, f"the last fallback rule {backend.fallback_rules[-1]!r} does not apply to {text}"

    def test_pipeline_gives_verified_stages(self, make: Make, target: Target) -> None:
        """After each pass the program is valid and in the stage that the pipeline promises; the last stage is VECTOR or FLAT.

        Passes do not modify the function, and give equal programs when repeated.
        """
        backend = make()
        pipeline = backend.pipeline
        for w, scheduled in example_functions(backend, target):
            func, before = scheduled, script(scheduled)
            for p, stage in zip(pipeline.passes, pipeline.stages, strict=True):
                try:
                    func = Pipeline(p)(func, target)
                    check_stage(func, stage, p.name)
                    verify(func)
                except TunesmithError as error:
                    raise AssertionError(f"{w.text}, after the pass {p.name}: {error}") from error
            assert pipeline.stages[-1] in STAGES[2:], f"the pipeline ends in {pipeline.stages[-1]}: code needs FLAT or VECTOR"
            assert script(scheduled) == before, f"{w.text}: a pass modified the function it was given"
            found = structural.difference(pipeline(scheduled, target), pipeline(scheduled, target))
            assert found is None, f"{w.text}: the pipeline gives two programs for equal functions: {found}"

    def test_source_and_build_agree(self, make: Make, target: Target) -> None:
        """Both have all functions, in order, also for several at once; both are deterministic, and differ for other functions."""
        backend = self._compiling(make)
        functions = [f for _, f in example_functions(backend, target)]
        source, artifact = backend.source(functions, target), backend.build(functions, target, "call")
        names = tuple([f.name for f in functions])
        assert artifact.functions == names, f"the artifact has the functions {artifact.functions}, expected {names}"
        absent = [name for name in names if name not in source]
        assert not absent, f"the source does not name {', '.join(absent)}"
        assert artifact.target["kind"] == target.kind, f"the artifact is for {artifact.target['kind']}, the target is {target.kind}"
        found = Target.from_json(artifact.target)
        assert found.to_json() == target.to_json(), f"the artifact is for {found}, the target is {target}"
        assert backend.source(functions, target) == source, "equal functions have different sources"
        assert backend.build(functions, target, "call").data == artifact.data, "equal functions have different code"
        if backend.build_checked is not None:
            checked = backend.build_checked(functions, target).functions
            assert checked == names, f"the artifact with bounds checks has the functions {checked}, expected {names}"
        assert backend.source(functions[:1], target) != source, "the source does not depend on the functions"
        assert backend.build(functions[:1], target, "call").data != artifact.data, "the code does not depend on the functions"

    def test_loaded_functions_agree_with_the_interpreter(self, make: Make, target: Target) -> None:
        """The loaded module has the functions by name, computes what the interpreter computes, and does not change inputs."""
        backend = self._running(make, target)
        made = example_functions(backend, target)
        module = _loaded(backend, backend.build([f for _, f in made], target, "call"), [f for _, f in made])
        assert set(module.functions) == {f.name for _, f in made}, f"the module has the functions {module.functions}"
        for w, func in made:
            inputs = w.random_inputs()
            expected = run(w.func, inputs)[len(inputs) :]
            results, memories = zip(*[guarded(e, np.nan) for e in expected], strict=True)
            given = [a.copy() for a in inputs]
            module[func.name](*given, *results)
            check_arrays(results, expected, w.text, rtol=1e-4, atol=1e-5)
            for k, memory in enumerate(memories):
                check_guards(memory, np.nan, f"{w.text}, result {k}")
            for k, (a, b) in enumerate(zip(given, inputs, strict=True)):
                assert np.array_equal(a, b), f"{w.text}: the code changed its input {k}"

    def test_arguments_are_checked(self, make: Make, target: Target) -> None:
        """Loaded functions refuse missing arguments, other shapes and other dtypes with RunError."""
        backend = self._running(make, target)
        w, func = example_functions(backend, target)[0]
        called = _loaded(backend, backend.build([func], target, "call"), [func])[func.name]
        given = [*w.random_inputs(), *[np.zeros(s.shape, s.dtype) for s in w.outputs]]
        refused = {
            "an argument is missing": given[:-1],
            "an argument has another shape": [given[0][:-1].copy(), *given[1:]],
            "an argument has another dtype": [given[0].astype(np.float64), *given[1:]],
        }
        for what, arguments in refused.items():
            try:
                called(*arguments)
            except RunError as error:
                assert str(error), f"{what}: the RunError has no message"
                continue
            raise AssertionError(f"{what}, and no RunError is raised")

    def test_refusals_are_build_errors(self, make: Make, target: Target) -> None:
        """A function that cannot be compiled raises a BuildError that names it."""
        backend = self._compiling(make)
        for what, func in _refused().items():
            try:
                backend.build([func], target, "call")
            except BuildError as error:
                assert func.name in str(error), f"{what}: the BuildError does not name the function: {error}"
                continue
            except Exception as error:
                raise AssertionError(f"{what}: a BuildError is expected, got {type(error).__name__}: {error}") from error
            raise AssertionError(f"{what}: a BuildError is expected, got code")

    def test_other_machines_are_refused(self, make: Make, elsewhere: Target) -> None:
        """`check_runs_here` raises a BuildError that names the target, if its code cannot run on this machine."""
        try:
            make().check_runs_here(elsewhere)
        except BuildError as error:
            assert str(elsewhere) in str(error), f"the BuildError does not name the target {elsewhere}: {error}"
        else:
            raise AssertionError(f"check_runs_here accepts {elsewhere}, whose code cannot run here")

    def test_missing_code_generator_is_explained(self, make: Make, target: Target) -> None:
        """`unavailable` is empty, or a sentence that says what to do; its only placeholder is {llvm}."""
        backend = make()
        try:
            text = backend.unavailable.format(llvm=str(target).replace(target.kind, "llvm", 1))
        except (KeyError, IndexError, ValueError) as error:
            raise AssertionError(f"unavailable has a placeholder other than {{llvm}}: {error!r}") from error
        assert not text or len(text.split()) > 4, f"unavailable must say why there is no code, and what to do: {text!r}"

    def _compiling(self, make: Make) -> Backend:
        """The backend; skips the test if no code can be generated."""
        backend = make()
        if backend.unavailable:
            pytest.skip(f"no code is generated: {backend.unavailable}")
        if not self.compiler_is_here:
            pytest.skip("the compiler is not installed")
        return backend

    def _running(self, make: Make, target: Target) -> Backend:
        """The backend; skips the test if its code cannot run on this machine."""
        backend = self._compiling(make)
        try:
            backend.check_runs_here(target)
        except BuildError as error:
            pytest.skip(str(error))
        return backend


def _sketches(rules: Iterable[str], w: Workload, target: Target) -> list[Any]:
    return [s for rule in find_rules(rules) for s in sketches_of(rule, w.func, target)]


def _loaded(backend: Backend, artifact: Artifact, functions: Sequence[PrimFunc]) -> Any:
    return backend.part("load")(artifact, (), (), functions)


def _refused() -> dict[str, PrimFunc]:
    """Functions that no backend compiles, by the reason."""
    n, i, j = Param("n", range(1, 100)), Var("i"), Var("j")
    a, shared = Buffer("A", (n,)), Buffer("S", (8,), scope="shared")
    return {
        "a size is open": PrimFunc("open_size", (a,), (), nest([(i, 1)], store(a, (i,), const(1.0, "float32")))),
        "a parameter is in shared memory": PrimFunc(
            "shared_parameter", (shared,), (), nest([(j, 8)], store(shared, (j,), const(1.0, "float32")))
        ),
    }
