"""Backends: manifests are complete, their parts exist, and a target without one is refused; others register their own."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

import tunesmith
from tunesmith.codegen.backends import backend as module
from tunesmith.codegen.backends.backend import BACKENDS, Backend, backend_of, check_kind
from tunesmith.codegen.backends.c import C_BACKEND
from tunesmith.codegen.backends.cpu import CPU_BACKEND
from tunesmith.codegen.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target import attributes, defaults, keys, spec
from tunesmith.ir.target.attributes import KINDS, TARGET_KINDS, TargetKind
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.ops.workload import workload
from tunesmith.runtime.device.device import DEVICES
from tunesmith.search.space.rules_table import find_rules
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.registry import Registry

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


@pytest.mark.parametrize("kind", BACKENDS.names())
def test_all_parts_of_a_manifest_exist(kind: str) -> None:
    backend = BACKENDS.get(kind)
    assert backend.kind == kind
    for field in fields(Backend):
        value = getattr(backend, field.name)
        if isinstance(value, str) and value.startswith("tunesmith."):
            assert callable(backend.part(field.name))
    named = (*backend.rules, *backend.large_rules, *backend.fallback_rules)
    assert len(find_rules(named)) == len(named)
    assert not backend.device or backend.device in DEVICES
    assert all(name in BASELINES for pair in backend.baselines.items() for name in pair)


def test_every_kind_of_target_has_a_backend() -> None:
    assert set(BACKENDS.names()) == set(KINDS)


def test_a_kind_that_others_define_has_a_backend_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: Registry[TargetKind] = Registry(attributes.TARGET_KINDS.kind)
    for where in (attributes, defaults, keys, spec):
        monkeypatch.setattr(where, "TARGET_KINDS", kinds)
    for name in ("lab", "plain"):
        kinds.register(name, TargetKind(like="llvm"))
    registry: Registry[Backend] = Registry("backend")
    lab = replace(CPU_BACKEND, kind="lab", device="lab", needs_threads=True)
    for backend in (CPU_BACKEND, lab):
        registry.register(backend.kind, backend)
    monkeypatch.setattr(module, "BACKENDS", registry)
    assert backend_of(Target("lab")) is lab and backend_of(Target("plain")) is CPU_BACKEND


def without_generator(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    """Make C a kind without code generator, beside others that are not imported."""
    registry: Registry[Backend] = Registry("backend", others)
    registry.register("c", replace(CPU_BACKEND, kind="c", unavailable="there is no code generator for C. Give the target {llvm}"))
    monkeypatch.setattr(module, "BACKENDS", registry)


def test_a_kind_without_code_generator_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    without_generator(monkeypatch, llvm="tunesmith.codegen.backends.cpu:CPU_BACKEND")
    refusal = "targets of kind llvm, not c: there is no code generator for C. Give the target 'llvm -mcpu=x86-64-v3 -num-cores=2'"
    target = Target("c -mcpu=x86-64-v3 -num-cores=2")
    for refused in (
        lambda: check_kind(target),
        lambda: tunesmith.build(workload("relu(shape=4)").func, target),
        lambda: tunesmith.compile(workload("relu(shape=4)").func, target),
        lambda: tunesmith.compile("relu(shape=4)", target),
    ):
        with pytest.raises(BuildError, match=refusal):
            refused()


def test_the_refusal_of_a_kind_imports_no_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    without_generator(monkeypatch, lab="no_such_package:BACKEND")
    with pytest.raises(BuildError, match="targets of kind lab, not c: there is no code generator for C"):
        check_kind(Target("c -mcpu=x86-64-v3 -num-cores=2"))
    with pytest.raises(BuildError, match="targets of kind c, lab, not llvm: give a target such as|targets of kind lab, c, not llvm: give"):
        backend_of(TARGET)


def test_c_proposes_no_instructions_that_c_has_not() -> None:
    assert set(CPU_BACKEND.rules) - set(C_BACKEND.rules) == {"dot_products", "tile_products"}


def test_advice_of_an_unavailable_backend_is_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Backend] = Registry("backend")
    registry.register("llvm", replace(CPU_BACKEND, unavailable="set {path} to 100%, or give {llvm}"))
    monkeypatch.setattr(module, "BACKENDS", registry)
    with pytest.raises(BuildError, match="set {path} to 100%, or give 'llvm -mcpu=x86-64-v3 -num-cores=2'"):
        check_kind(TARGET)


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"the backend 'lab' is the class Backend, not an instance of tunesmith.codegen.\S+.Backend"):
        BACKENDS.register("lab", Backend)  # type: ignore[arg-type]


def test_checked_bounds_are_built_by_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Backend] = Registry("backend")
    artifact = CPU_BACKEND.build(workload("relu(shape=8)").func, TARGET, "call")
    registry.register("llvm", replace(CPU_BACKEND, build_checked=lambda functions, target: artifact))
    monkeypatch.setattr(module, "BACKENDS", registry)
    assert build(workload("relu(shape=8)").func, TARGET, bounds_check=True) is artifact


def test_checked_bounds_need_a_backend_that_has_them() -> None:
    with pytest.raises(BuildError, match="bounds_check=True: the backend of opencl generates no checks"):
        build(workload("relu(shape=8)").func, Target("opencl -num-cores=2"), bounds_check=True)


def test_a_registered_backend_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Backend] = Registry("backend")
    seen: list[str] = []

    def spy(functions: PrimFunc, target: Target, packing: str) -> object:
        seen.append(functions.name)
        return CPU_BACKEND.build(functions, target, packing)

    registry.register("llvm", replace(CPU_BACKEND, build=spy))
    monkeypatch.setattr(module, "BACKENDS", registry)
    assert build(workload("relu(shape=8)").func, TARGET).functions == ("relu",) and seen == ["relu"]


def test_a_derived_kind_has_the_backend_of_its_base_or_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lab", "sim"):
        monkeypatch.setitem(TARGET_KINDS._values, name, TargetKind(like="llvm"))
        monkeypatch.setitem(TARGET_KINDS._sources, name, "this test")
    registry: Registry[Backend] = Registry("backend")
    registry.register("llvm", CPU_BACKEND)
    own = registry.register("sim", replace(CPU_BACKEND, kind="sim"))
    monkeypatch.setattr(module, "BACKENDS", registry)
    assert backend_of(Target("lab -mcpu=x86-64-v3 -num-cores=2")) is CPU_BACKEND
    assert backend_of(Target("sim -mcpu=x86-64-v3 -num-cores=2")) is own
