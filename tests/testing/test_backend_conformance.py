"""Run the conformance suite on backends, and check that each of its tests detects a backend that breaks the contract."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import Backend
from tunesmith.codegen.backends.c import C_BACKEND
from tunesmith.codegen.backends.cpu import CPU_BACKEND
from tunesmith.codegen.backends.cuda import CUDA_BACKEND
from tunesmith.codegen.backends.opencl import OPENCL_BACKEND
from tunesmith.codegen.device.host import detect_device
from tunesmith.driver.compiled_cpu import load_cpu
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import Pipeline, function_pass
from tunesmith.support.errors import BuildError, TunesmithError
from tunesmith.testing.backend_conformance import BackendConformance, Make

ARM = Target("llvm -mcpu=neoverse-n1 -num-cores=2")
HERE = Target("llvm")
suite = BackendConformance()


class TestCpu(BackendConformance):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: CPU_BACKEND

    @pytest.fixture
    def target(self) -> Target:
        return HERE

    @pytest.fixture
    def elsewhere(self) -> Target:
        return ARM


class TestC(BackendConformance):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: C_BACKEND

    @pytest.fixture
    def target(self) -> Target:
        return Target("c -mcpu=x86-64-v3 -num-cores=2")

    @pytest.fixture
    def elsewhere(self) -> Target:
        return Target(str(ARM).replace("llvm", "c", 1))


class TestOpenCL(BackendConformance):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: OPENCL_BACKEND

    @pytest.fixture
    def target(self) -> Target:
        try:
            return detect_device("opencl")
        except TunesmithError:
            return Target("opencl -num-cores=2")

    @pytest.fixture
    def elsewhere(self) -> Target:
        return Target("opencl -num-cores=2 -max-threads-per-block=1048576")


class TestCuda(BackendConformance):
    compiler_is_here: ClassVar[bool] = importlib.util.find_spec("cuda") is not None

    @pytest.fixture
    def make(self) -> Make:
        return lambda: CUDA_BACKEND

    @pytest.fixture
    def target(self) -> Target:
        try:
            return detect_device("cuda")
        except TunesmithError:
            return Target("cuda -arch=sm_90")

    @pytest.fixture
    def elsewhere(self) -> Target:
        return Target("cuda -arch=sm_70")


@function_pass(requires="SCHEDULED", provides="FLAT")
def promises_too_much(func: PrimFunc, target: Target) -> PrimFunc:
    """Leave the function as it is, with blocks."""
    return func


COUNTED: list[int] = []


@function_pass(requires="FLAT")
def counts(func: PrimFunc, target: Target) -> PrimFunc:
    """Make the outermost serial loops one longer each time: not deterministic."""
    COUNTED.append(0)
    return with_body(func, transform(func.body, {For: lambda n, recurse: n.with_(extent=n.extent + len(COUNTED))}))


@function_pass(requires="SCHEDULED")
def modifies(func: PrimFunc, target: Target) -> PrimFunc:
    """Rename the function in place."""
    object.__setattr__(func, "name", func.name + "_")
    return func


def no_error(functions: Any, target: Target, packing: str) -> Artifact:
    """Build anything."""
    return Artifact(b"code", tuple([f.name for f in functions]), target.to_json())


def terse(*_: Any) -> Artifact:
    """Refuse everything, without a name."""
    raise BuildError("no")


def crashing(functions: Any, target: Target, packing: str) -> Artifact:
    """Raise an internal exception."""
    raise KeyError("n")


def rename(functions: Any, target: Target, packing: str) -> Artifact:
    """Artifacts with other names."""
    return replace(CPU_BACKEND.build(functions, target, packing), functions=("f",))


def numbered(functions: Any, target: Target, packing: str) -> Artifact:
    """Artifacts with a number."""
    COUNTED.append(0)
    return replace(CPU_BACKEND.build(functions, target, packing), data=b"%d" % len(COUNTED))


def foreign(functions: Any, target: Target, packing: str) -> Artifact:
    """Artifacts for another kind."""
    return replace(CPU_BACKEND.build(functions, target, packing), target={"kind": "other"})


def narrow(functions: Any, target: Target, packing: str) -> Artifact:
    """Artifacts for narrower vectors."""
    return CPU_BACKEND.build(functions, target.with_attributes(vector_bits=128, num_cores=1), packing)


class Results:
    """Functions of a module that do something else than compute."""

    def __init__(self, module: Any, call: Callable[..., None]) -> None:
        self.functions, self.module, self.call = module.functions, module, call

    def __getitem__(self, name: str) -> Callable[..., None]:
        return lambda *arrays: self.call(self.module[name], *arrays)


def _negates(function: Callable[..., None], *arrays: np.ndarray) -> None:
    function(*arrays)
    np.negative(arrays[-1], out=arrays[-1])


def _in_place(function: Callable[..., None], *arrays: np.ndarray) -> None:
    function(*arrays)
    arrays[0][...] = 0


def loads_negated(*parts: Any) -> Results:
    """Load functions with the wrong sign."""
    return Results(load_cpu(*parts), _negates)


def loads_in_place(*parts: Any) -> Results:
    """Load functions that overwrite their first argument."""
    return Results(load_cpu(*parts), _in_place)


def _beyond(function: Callable[..., None], *arrays: np.ndarray) -> None:
    function(*arrays)
    np.lib.stride_tricks.as_strided(arrays[-1].reshape(-1), (arrays[-1].size + 1,))[-1] = 0


def loads_beyond(*parts: Any) -> Results:
    """Load functions that write one element too many."""
    return Results(load_cpu(*parts), _beyond)


def loads_unchecked(*parts: Any) -> Results:
    """Load functions that accept anything."""
    return Results(load_cpu(*parts), lambda function, *arrays: None)


class Half:
    """An evaluator without comparisons."""

    corrupted = False

    def prepare(self, setup: object) -> None: ...
    def run(self, request: object) -> None: ...


BROKEN: list[tuple[Callable[..., None], dict[str, Any], str]] = [
    (suite.test_manifest_is_complete, {"kind": "other"}, "the manifest is for other, the target for llvm"),
    (suite.test_manifest_is_complete, {"load": "tunesmith.nowhere:load"}, "load: 'tunesmith.nowhere:load' cannot be resolved"),
    (suite.test_manifest_is_complete, {"calibrated": "tunesmith.lower.stages:STAGES"}, "calibrated: .* is not callable"),
    (suite.test_manifest_is_complete, {"evaluator": "Half"}, "lacks compare, close"),
    (
        suite.test_manifest_is_complete,
        {"large_rules": ("no_such_rule",)},
        "the manifest names the rule 'no_such_rule': unknown search rule",
    ),
    (suite.test_rules_give_candidates, {"rules": ("rows",), "fallback_rules": ("rows",)}, "no rule of rows, rows applies"),
    (suite.test_rules_give_candidates, {"fallback_rules": ("contraction",)}, "the last fallback rule 'contraction' does not"),
    (
        suite.test_pipeline_gives_verified_stages,
        {"pipeline": Pipeline(promises_too_much, *CPU_BACKEND.pipeline.passes)},
        "after the pass promises_too_much: .* in stage FLAT, which does not allow the block",
    ),
    (
        suite.test_pipeline_gives_verified_stages,
        {"pipeline": Pipeline(*CPU_BACKEND.pipeline.passes[:3])},
        "the pipeline ends in SCHEDULED: code needs FLAT or VECTOR",
    ),
    (
        suite.test_pipeline_gives_verified_stages,
        {"pipeline": CPU_BACKEND.pipeline.insert_after("flatten_buffers", counts)},
        "after the pass|the pipeline gives two programs for equal functions",
    ),
    (
        suite.test_pipeline_gives_verified_stages,
        {"pipeline": Pipeline(modifies, *CPU_BACKEND.pipeline.passes)},
        "a pass modified the function",
    ),
    (suite.test_source_and_build_agree, {"build": rename}, r"the artifact has the functions \('f',\), expected"),
    (suite.test_source_and_build_agree, {"build": numbered}, "equal functions have different code"),
    (suite.test_source_and_build_agree, {"build": foreign}, "the artifact is for other, the target is llvm"),
    (suite.test_source_and_build_agree, {"build": no_error}, "the code does not depend on the functions"),
    (suite.test_source_and_build_agree, {"source": lambda functions, target: ""}, "the source does not name"),
    (suite.test_loaded_functions_agree_with_the_interpreter, {"load": "loads_negated"}, "matmul.*, result 0: .* elements differ"),
    (suite.test_loaded_functions_agree_with_the_interpreter, {"load": "loads_in_place"}, "the code changed its input 0"),
    (suite.test_source_and_build_agree, {"build": narrow}, "the artifact is for llvm .*, the target is llvm"),
    (suite.test_loaded_functions_agree_with_the_interpreter, {"load": "loads_beyond"}, "elements behind the array were written"),
    (suite.test_arguments_are_checked, {"load": "loads_unchecked"}, "an argument is missing, and no RunError is raised"),
    (suite.test_refusals_are_build_errors, {"build": no_error}, "a size is open: a BuildError is expected, got code"),
    (suite.test_refusals_are_build_errors, {"build": terse}, "the BuildError does not name the function: no"),
    (suite.test_refusals_are_build_errors, {"build": crashing}, "a BuildError is expected, got KeyError"),
    (suite.test_missing_code_generator_is_explained, {"unavailable": "no"}, "must say why there is no code, and what to do"),
    (suite.test_missing_code_generator_is_explained, {"unavailable": "take {cuda}"}, r"has a placeholder other than \{llvm\}"),
]


@pytest.mark.parametrize(("test", "changes", "message"), BROKEN)
def test_broken_backends_are_detected(
    test: Callable[..., None], changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backend, "part", _part)
    with pytest.raises(AssertionError, match=message):
        test(lambda: replace(CPU_BACKEND, **changes), HERE)


PART = Backend.part


def _part(backend: Backend, name: str) -> Any:
    """As `Backend.part`, and for a name without a module the object of this file."""
    path = getattr(backend, name)
    return PART(backend, name) if ":" in path else globals()[path]


@pytest.mark.parametrize(
    ("check", "message"),
    [(lambda target: None, "check_runs_here accepts llvm -mcpu=neoverse-n1"), (lambda target: terse(), "does not name the target")],
)
def test_wrong_checks_of_machines_are_detected(check: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        suite.test_other_machines_are_refused(lambda: replace(CPU_BACKEND, check_runs_here=check), ARM)
