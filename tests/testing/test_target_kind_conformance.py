"""Run the conformance suite on the built-in kinds of targets, and check that each of its tests detects a kind that breaks the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tunesmith.ir.target import attributes as target_attributes
from tunesmith.ir.target import defaults as target_defaults
from tunesmith.ir.target import keys, spec
from tunesmith.ir.target.attributes import KINDS, TARGET_KINDS, Attribute, TargetKind
from tunesmith.ir.target.target import Target
from tunesmith.support.registry import Registry
from tunesmith.testing.target_kind_conformance import TargetKindConformance

TEXTS = {
    "llvm": ["llvm", "llvm -mcpu=znver5 -num-cores=2 -mattr=-avx512f", "raspberry-pi/4b-aarch64", "riscv/sifive-u74"],
    "c": ["c -mcpu=x86-64-v3 -num-cores=2"],
    "cuda": ["nvidia/h200", "cuda -arch=sm_80 -shared-memory-per-block=49152"],
    "opencl": ["opencl", "opencl -num-cores=16 -warp-size=32"],
}
suite = TargetKindConformance()


class TestBuiltIn(TargetKindConformance):
    @pytest.fixture(params=[text for texts in TEXTS.values() for text in texts])
    def text(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def kind(self, text: str) -> str:
        return next(kind for kind, texts in TEXTS.items() if text in texts)


def test_all_built_in_kinds_are_tested() -> None:
    assert set(TEXTS) == set(KINDS)


GOOD = Attribute("tiles", int, doc="number of tiles", default=4)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[TargetKind], None]:
    """A function that registers the only kind besides the built-in ones, `mine`."""

    def add(kind: TargetKind) -> None:
        kinds: Registry[TargetKind] = Registry(TARGET_KINDS.kind)
        kinds.register("mine", kind)
        for module in (target_attributes, target_defaults, keys, spec):
            monkeypatch.setattr(module, "TARGET_KINDS", kinds)

    return add


def kind_of(*attributes: Attribute, **changes: Any) -> TargetKind:
    return replace(TargetKind("llvm", {"mcpu": "x86-64-v3", "num_cores": 2}, attributes, ("mine",)), **changes)


def test_a_good_kind_passes(register: Callable[[TargetKind], None]) -> None:
    register(kind_of(GOOD, Attribute("exact", bool, identity=True, doc="whether it is exact", default=True)))
    for name in dir(suite):
        if name.startswith("test_"):
            test = getattr(suite, name)
            test(**{p: "mine" for p in test.__func__.__code__.co_varnames[1 : test.__func__.__code__.co_argcount]})


@pytest.mark.parametrize(
    ("test", "kind", "message"),
    [
        (suite.test_attributes_are_described, kind_of(replace(GOOD, doc="")), "the attribute tiles has no meaning"),
        (suite.test_attributes_are_described, kind_of(replace(GOOD, name="tile_bytes")), "the unit of tile_bytes is '', expected 'bytes'"),
        (suite.test_there_is_a_backend, TargetKind("", {}, (GOOD,), ("mine",)), "code is generated for targets of kind"),
        (suite.test_host_libraries_and_keys, TargetKind("", {}, (GOOD,)), r"the keys of mine are \(\)"),
        (suite.test_aliases_are_no_attributes, kind_of(replace(GOOD, name="tiles"), GOOD), "two attributes of mine have one name"),
    ],
)
def test_bad_kinds_are_detected(test: Callable[..., None], kind: TargetKind, message: str, register: Callable[[TargetKind], None]) -> None:
    register(kind)
    names = test.__func__.__code__.co_varnames[1 : test.__func__.__code__.co_argcount]  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=message):
        test(**{name: "mine" for name in names})


@pytest.mark.parametrize(
    ("test", "broken", "message"),
    [
        (suite.test_kind_is_listed, ("kinds", classmethod(lambda cls: ())), "has no llvm"),
        (suite.test_text_round_trip, ("__str__", lambda self: "llvm -mcpu=haswell -num-cores=9"), "is parsed to another identity"),
        (suite.test_json_round_trip, ("__eq__", lambda self, other: self is other), "gives another target"),
        (suite.test_identity_has_no_facts, ("key", property(lambda self: str(self.to_json(facts=True)))), "the key depends on"),
        (suite.test_a_target_is_a_context, ("current", classmethod(lambda cls: None)), "the current target is None"),
        (suite.test_targets_are_immutable, ("__setattr__", lambda self, name, value: None), "DID NOT RAISE"),
        (suite.test_every_attribute_has_a_value, ("to_json", lambda self, facts: {}), "and None in the JSON data"),
        (suite.test_wrong_attributes_are_refused, ("with_attributes", lambda self, **_: self), "DID NOT RAISE"),
    ],
)
def test_broken_targets_are_detected(
    test: Callable[..., None], broken: tuple[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "llvm -mcpu=x86-64-v3 -num-cores=2"
    Target(text)
    names = test.__func__.__code__.co_varnames[1 : test.__func__.__code__.co_argcount]  # type: ignore[attr-defined]
    monkeypatch.setattr(Target, *broken)
    with pytest.raises(BaseException, match=message):
        test(**{name: {"kind": "llvm", "text": text}[name] for name in names})
