"""Test registered target kinds and tags: attributes of the base kind, identity, and refusals."""

from __future__ import annotations

import pickle

import pytest

from tunesmith.ir.target import attributes as target_attributes
from tunesmith.ir.target import defaults as target_defaults
from tunesmith.ir.target import target
from tunesmith.ir.target.attributes import TARGET_KINDS, TARGET_TAGS, TargetKind, attributes_of
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import TargetError
from tunesmith.support.registry import Registry


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate registries with a kind and a tag."""
    kinds: Registry[TargetKind] = Registry(TARGET_KINDS.kind)
    kinds.register("sim", TargetKind("llvm", {"num_cores": 3}))
    kinds.register("card", TargetKind("cuda", {"model": "h200"}))
    kinds.register("odd", TargetKind("vulkan"))
    kinds.register("many", TargetKind("llvm", {"num_cores": "many"}))
    kinds.register("colour", TargetKind("llvm", {"colour": 1}))
    tags: Registry[dict[str, int | float | str]] = Registry(TARGET_TAGS.kind)
    tags.register("lab/box", {"kind": "sim", "mcpu": "x86-64-v3", "l2_bytes": 12345})
    for module in (target, target_attributes, target_defaults):
        for name, registry in (("TARGET_KINDS", kinds), ("TARGET_TAGS", tags)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, registry)


def test_a_kind_has_the_attributes_of_its_base() -> None:
    t = Target("sim -mcpu=x86-64-v3")
    assert (t.kind, t.base, t.is_cpu, t.num_cores, t.vector_bits) == ("sim", "llvm", True, 3, 256)
    assert attributes_of("sim") == attributes_of("llvm")
    assert Target("sim -mcpu=x86-64-v3 -num-cores=5").num_cores == 5
    card = Target("card")
    assert card.is_gpu and card.base == "cuda" and card.arch == Target("nvidia/h200").arch
    assert Target("llvm").base == "llvm"


def test_it_is_another_target() -> None:
    t, like = Target("sim -mcpu=x86-64-v3"), Target("llvm -mcpu=x86-64-v3 -num-cores=3")
    assert t != like and t.key != like.key
    assert Target(str(t)) == t and Target.from_json(t.to_json()) == t and pickle.loads(pickle.dumps(t)) == t
    assert t.with_attributes(num_cores=9).kind == "sim"
    assert Target.detect("sim").mcpu == Target.detect().mcpu


def test_tags() -> None:
    t = Target("lab/box -num-cores=7")
    assert (t.kind, t.mcpu, t.num_cores, t.l2_bytes) == ("sim", "x86-64-v3", 7, 12345)
    assert Target.from_tag("lab/box").num_cores == 3 and Target({"tag": "lab/box"}) == Target("lab/box")


def test_refusals() -> None:
    with pytest.raises(
        TargetError,
        match=r"unknown target kind or tag 'sin'. Did you mean 'sim'\? Known kinds: llvm, .* card, colour, many, odd, sim",
    ):
        Target("sin")
    with pytest.raises(TargetError, match=r"unknown target kind 'sin'. Known kinds: llvm, .*sim"):
        Target({"kind": "sin"})
    with pytest.raises(TargetError, match=r"unknown tag 'lab/bax'. Known tags: .*lab/box. Did you mean 'lab/box'"):
        Target.from_tag("lab/bax")
    with pytest.raises(TargetError, match="the target kind 'odd' is based on 'vulkan', which is not one of llvm, c, cuda, opencl"):
        Target("odd")


def test_defaults_of_a_kind_are_checked() -> None:
    with pytest.raises(TargetError, match="defaults of the target kind .many.: attribute .* expected a whole number, got 'many'"):
        Target("many -mcpu=x86-64-v3 -num-cores=1")
    with pytest.raises(TargetError, match="defaults of the target kind 'colour': unknown attribute 'colour'. llvm targets have: mcpu"):
        Target("colour -mcpu=x86-64-v3 -num-cores=1")
