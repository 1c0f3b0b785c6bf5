"""Test registered target kinds and tags: attributes of the base kind and their own, identity, and refusals."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tunesmith.ir.target import attributes as target_attributes
from tunesmith.ir.target import defaults as target_defaults
from tunesmith.ir.target import keys, spec, target
from tunesmith.ir.target.attributes import ATTRIBUTES, RESERVED, TARGET_KINDS, TARGET_TAGS, Attribute, TargetKind, Value, attributes_of
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import TargetError, UserError
from tunesmith.support.registry import Registry

ACCELERATOR = (
    Attribute("scratchpad_bytes", int, identity=True, doc="on-chip memory of a core", unit="bytes", default=65536),
    Attribute("dma_gbs", float, doc="rate of copies to the scratchpad", unit="GB/s", default=12.5),
    Attribute("sparse", bool, identity=True, doc="whether products skip zeros", default=False),
    Attribute("firmware", str, identity=True, doc="version of the firmware"),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate registries with a kind and a tag."""
    kinds: Registry[TargetKind] = Registry(TARGET_KINDS.kind)
    kinds.register("sim", TargetKind("llvm", {"num_cores": 3}))
    kinds.register("card", TargetKind("cuda", {"model": "h200"}))
    kinds.register("odd", TargetKind("vulkan"))
    kinds.register("many", TargetKind("llvm", {"num_cores": "many"}))
    kinds.register("colour", TargetKind("llvm", {"colour": 1}))
    kinds.register("box", TargetKind("llvm", {"mcpu": "x86-64-v3", "num_cores": 3}, (Attribute("slot", int, doc="slot"),)))
    kinds.register("npu", TargetKind("llvm", {"mcpu": "cortex-a72", "num_cores": 2}, ACCELERATOR, ("npu",)))
    kinds.register("alone", TargetKind("", {}, (ATTRIBUTES["num_cores"], *ACCELERATOR), ("alone", "accelerator")))
    for name in ("num_cores", "max_num_threads", "keys", "has_key", "Upper"):
        kinds.register(f"with_{name}", TargetKind("cuda", {"model": "h200"}, (Attribute(name, int),)))
    kinds.register("wrong", TargetKind("cuda", {"model": "h200"}, (Attribute("tiles", int, default=0),)))
    tags: Registry[dict[str, Value]] = Registry(TARGET_TAGS.kind)
    tags.register("lab/box", {"kind": "sim", "mcpu": "x86-64-v3", "l2_bytes": 12345})
    for module in (target, target_attributes, target_defaults, keys, spec):
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
        match=r"unknown target kind or tag 'sin'. Did you mean 'sim'\? Known kinds: llvm, .* box, card, colour, many, npu, odd, sim",
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


# ---- own attributes --------------------------------------------------------------------------------------------------------


def test_a_kind_has_attributes_of_its_own() -> None:
    t = Target("npu -firmware=1.2 -sparse=true -dma-gbs=20")
    assert (t.scratchpad_bytes, t.dma_gbs, t.sparse, t.firmware, t.num_cores) == (65536, 20.0, True, "1.2", 2)
    assert t.base == "llvm" and t.is_cpu and t.keys == ("npu", "arm_cpu", "cpu")
    assert str(t) == "npu -mcpu=cortex-a72 -num-cores=2 -scratchpad-bytes=65536 -sparse=true -firmware=1.2"
    assert t.to_json()["scratchpad_bytes"] == 65536 and "dma_gbs" not in t.to_json()
    assert t.key != Target("npu -firmware=1.3 -sparse=true").key and t.key == Target("npu -firmware=1.2 -sparse=1").key
    for again in (Target(t), Target(t.to_json(facts=True)), pickle.loads(pickle.dumps(t))):
        assert again == t and hash(again) == hash(t)
    assert Target(str(t)).key == t.key
    assert not hasattr(Target("npu -firmware=1"), "colour") and not hasattr(Target("llvm"), "sparse")


def test_an_attribute_without_a_default_is_always_in_the_text() -> None:
    assert str(Target("box -slot=3")) == "box -mcpu=x86-64-v3 -num-cores=3 -slot=3" and "slot" not in Target("box -slot=3").to_json()


def test_own_attributes_survive_another_processor() -> None:
    t = Target("npu -firmware=1.2 -scratchpad-bytes=4096 -l2-bytes=5").with_attributes(mcpu="cortex-a76", mtriple="aarch64-linux-gnu")
    assert (t.scratchpad_bytes, t.firmware, t.num_cores) == (4096, "1.2", 2) and t.l2_bytes != 5


def test_a_kind_without_a_base_has_only_its_attributes() -> None:
    t = Target("alone -num-cores=3 -firmware='a b'")
    assert (t.base, t.is_cpu, t.is_gpu, t.keys, t.num_cores) == ("alone", False, False, ("alone", "accelerator"), 3)
    assert str(t) == "alone -num-cores=3 -scratchpad-bytes=65536 -sparse=false -firmware='a b'" and Target(str(t)) == t
    assert t.host == Target("llvm") and t.has_key("accelerator")
    with pytest.raises(TargetError, match=r"not to alone. alone has: num_cores, scratchpad_bytes, dma_gbs, sparse, firmware"):
        Target("alone -mcpu=x")
    with pytest.raises(TargetError, match="targets of kind alone must give num_cores .threads of a parallel loop.*, firmware .version"):
        Target("alone")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("npu", r"targets of kind npu must give firmware \(version of the firmware\)"),
        ("npu -firmware=1 -dma-gbs=fast", r"attribute 'dma_gbs' \(rate of copies to the scratchpad, GB/s\): expected a number, got 'fast'"),
        ("npu -firmware=1 -sparse=maybe", r"attribute 'sparse' \(whether products skip zeros\): expected true or false, got 'maybe'"),
        (
            "npu -firmware=1 -scratchpad=1",
            "unknown attribute 'scratchpad'. npu targets have: mcpu, .*firmware. Did you mean 'scratchpad_bytes'",
        ),
        ("llvm -sparse=true", "unknown attribute 'sparse'. llvm targets have"),
        ("with_num_cores", "the target kind 'with_num_cores' declares the attribute 'num_cores': names are .* differ from those of cuda"),
        ("with_max_num_threads", "declares the attribute 'max_num_threads'"),
        ("with_keys", "declares the attribute 'keys'"),
        ("with_has_key", "declares the attribute 'has_key'"),
        ("with_Upper", "declares the attribute 'Upper': names are lower-case"),
        ("wrong", "the default of the attribute 'tiles' of the target kind 'wrong': expected at least 1, got 0"),
    ],
)
def test_refusals_of_own_attributes(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Target(text)


def test_names_of_the_properties_of_targets_are_reserved() -> None:
    assert {name for name in dir(Target) if not name.startswith("_")} - ATTRIBUTES.keys() <= set(RESERVED)


def test_tags_are_checked_when_they_are_registered() -> None:
    tags = target_attributes.TagRegistry(TARGET_TAGS.kind, contract=TARGET_TAGS.contract)
    given = tags.register("lab/pi", "llvm -mcpu=cortex-a76 -num-cores=2")
    assert given == {"kind": "llvm", "mcpu": "cortex-a76", "num_cores": "2"} and tags.get("lab/pi") == given
    tags.register("lab/card", {"kind": "cuda", "model": "h200", "host": "llvm"})
    for name, value, message in (
        ("nvidia/h200", "cuda -model=h200", "target tag 'nvidia/h200': this is the name of a built-in tag. Choose another name."),
        ("llvm", "llvm", "this is the name of a built-in target kind"),
        ("lab/a", "llwm -mcpu=native", "target tag 'lab/a': unknown target kind 'llwm'.* Did you mean 'llvm'"),
        ("lab/a", {"mcpu": "native"}, "unknown target kind None"),
        ("lab/a", "llvm -mpu=native", "target tag 'lab/a': unknown attribute 'mpu'"),
        ("lab/a", "llvm native", "expected attributes like -num-cores=2, got 'native'"),
        ("lab/a", 3, "the target tag 'lab/a' is 3 .int., not an instance of"),
        ("lab/pi", "llvm", "registered twice"),
    ):
        with pytest.raises(UserError, match=message):
            tags.register(name, value)  # type: ignore[arg-type]


FIELDS: list[tuple[type, dict[str, Any], str]] = [
    (Attribute, {"name": 5, "type": int}, "its name is a text"),
    (Attribute, {"name": "x", "type": "int"}, "its type is bool, int, float or str"),
    (Attribute, {"name": "x", "type": complex}, "its type is bool, int, float or str"),
    (Attribute, {"name": "x", "type": int, "minimum": "q"}, "its minimum is a number"),
    (Attribute, {"name": "x", "type": str, "check": 3}, "its check is a function"),
    (Attribute, {"name": "x", "type": int, "default": [1]}, "its default is a bool, a number or a text"),
    (Attribute, {"name": "x", "type": int, "doc": 5}, "its doc and unit are texts"),
    (TargetKind, {"like": None}, "like is the name of a built-in kind, or empty, not None"),
    (TargetKind, {"defaults": [("num_cores", 2)]}, "defaults is a mapping"),
    (TargetKind, {"defaults": None}, "defaults is a mapping"),
    (TargetKind, {"attributes": None}, "attributes is a tuple of Attribute objects, not None"),
    (TargetKind, {"attributes": Attribute("x", int)}, "attributes is a tuple of Attribute objects"),
    (TargetKind, {"attributes": ("x",)}, "attributes is a tuple of Attribute objects"),
    (TargetKind, {"keys": "npu"}, "keys is a tuple of words"),
    (TargetKind, {"keys": (5,)}, "keys is a tuple of words"),
    (TargetKind, {"keys": ("a b",)}, "keys is a tuple of words"),
]


@pytest.mark.parametrize(("made", "fields", "message"), FIELDS)
def test_fields_of_kinds_and_attributes_are_checked(made: type, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        made(**fields)


def divided(text: str) -> str:
    return str(1 // 0)


@pytest.mark.parametrize(
    ("check", "message"), [(divided, "its check refuses '3': ZeroDivisionError"), (lambda text: [1], r"its check returned \[1\]")]
)
def test_a_check_that_fails_is_named(check: Any, message: str) -> None:
    target_attributes.TARGET_KINDS.register("checked", TargetKind("llvm", {}, (Attribute("x", str, check=check),)))
    with pytest.raises(TargetError, match=message):
        Target("checked -mcpu=znver5 -num-cores=2 -x=3")


@pytest.mark.parametrize("name", ["", "a b", 5, None, "-x", "{x", "a/b"])
def test_kinds_have_names(name: Any) -> None:
    with pytest.raises(UserError, match="is no name of a target kind"):
        TARGET_KINDS.register(name, TargetKind("llvm"))
    assert name not in Target.kinds()


def test_names_of_built_in_kinds_are_taken() -> None:
    with pytest.raises(UserError, match="the target kind 'llvm' cannot be registered: the name is built in"):
        TARGET_KINDS.register("llvm", TargetKind("c"))
    with pytest.raises(UserError, match="this is the name of a built-in target kind"):
        TARGET_TAGS.register("llvm", {"kind": "c"})
    names: list[Any] = [None, "t 6", ""]
    for name in names:
        with pytest.raises(UserError, match="is no name of a target tag"):
            TARGET_TAGS.register(name, {"kind": "c"})
