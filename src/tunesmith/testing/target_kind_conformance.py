"""Conformance tests for kinds of targets: derive a class from `TargetKindConformance` in a test file and define two fixtures.

    class TestMine(TargetKindConformance):
        @pytest.fixture
        def kind(self):
            return "mine"

        @pytest.fixture(params=["mine -num-cores=2", "mine -num-cores=4 -scratchpad-bytes=4096"])
        def text(self, request):
            return request.param

The kind is registered, by the entry point of a package or by the test file.
"""

from __future__ import annotations

import json
import pickle

import pytest

from tunesmith.codegen.backends.backend import Backend, backend_of
from tunesmith.ir.target.attributes import ALIASES, KINDS, Attribute, Value, attributes_of, own_attributes
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import TargetError

WORDS = ("no_such_attribute", "no such attribute")


class TargetKindConformance:
    """The tests; each docstring states a requirement."""

    @pytest.fixture
    def kind(self) -> str:
        """The name of the kind."""
        raise NotImplementedError("override the fixture `kind` to return the name of a registered kind")

    @pytest.fixture
    def text(self) -> str:
        """The text of a target of the kind, that needs no device; a parametrized fixture gives several."""
        raise NotImplementedError("override the fixture `text` to return the text of a target")

    def test_kind_is_listed(self, kind: str, text: str) -> None:
        """The kind is among `Target.kinds()`, and the text is a target of it; its base is a built-in kind or the kind itself."""
        target = Target(text)
        assert kind in Target.kinds(), f"Target.kinds() has no {kind}"
        assert target.kind == kind, f"{text!r} is a target of kind {target.kind}, expected {kind}"
        assert target.base in (*KINDS, kind), f"the base of {kind} is {target.base}, which is no built-in kind"

    def test_attributes_are_described(self, kind: str) -> None:
        """Every attribute has a meaning; names of sizes and rates end with their unit, and the unit is stated."""
        for a in attributes_of(kind):
            assert a.doc, f"the attribute {a.name} has no meaning: give it a doc"
            unit = {"bytes": "bytes", "us": "microseconds", "ghz": "GHz", "gbs": "GB/s"}.get(a.name.rpartition("_")[2])
            assert unit in (None, a.unit), f"the unit of {a.name} is {a.unit!r}, expected {unit!r}"

    def test_every_attribute_has_a_value(self, text: str) -> None:
        """A target has a value of its type for each attribute of the kind, as a Python attribute, and in its JSON unless it is empty."""
        target = Target(text)
        data = target.to_json(facts=True)
        for a in attributes_of(target.kind):
            value = getattr(target, a.name)
            assert type(value) is a.type, f"{a.name} is {value!r}, expected a value of type {a.type.__name__}"
            assert data.get(a.name, "") == value, f"{a.name} is {value!r}, and {data.get(a.name)!r} in the JSON data"

    def test_text_round_trip(self, text: str) -> None:
        """The text of a target is parsed to the same identity, and is its own text."""
        target = Target(text)
        again = Target(str(target))
        assert again.key == target.key, f"{target} is parsed to another identity: {again.key}, expected {target.key}"
        assert str(again) == str(target), f"the text of {target} is {again} after parsing"

    def test_json_round_trip(self, text: str) -> None:
        """JSON data, pickled data and copies are equal to the target; the identity alone keeps the key."""
        target = Target(text)
        facts, identity = (json.loads(json.dumps(target.to_json(facts=f))) for f in (True, False))
        for what, again in {
            "JSON data": Target.from_json(facts),
            "JSON text": Target(json.dumps(facts)),
            "pickled data": pickle.loads(pickle.dumps(target)),
            "a copy": Target(target),
        }.items():
            assert again == target and hash(again) == hash(target), f"{what} of {target} gives another target: {again}"
        assert Target.from_json(identity).key == target.key, f"the identity of {target} gives another key"

    def test_identity_has_no_facts(self, text: str) -> None:
        """A change of a fact changes no key; a change of an attribute of the identity that only this kind has changes it."""
        target = Target(text)
        for a in attributes_of(target.kind):
            if a.identity and a not in own_attributes(target.kind):
                continue
            changed = _changed(a, getattr(target, a.name))
            if changed is not None:
                other = target.with_attributes(**{a.name: changed})
                assert getattr(other, a.name) == changed, f"with_attributes({a.name}={changed!r}) gives {getattr(other, a.name)!r}"
                assert (other.key == target.key) != a.identity, f"the key {'ignores' if a.identity else 'depends on'} {a.name}"

    def test_host_libraries_and_keys(self, kind: str, text: str) -> None:
        """Keys are words without repetitions, and given ones come first; the host is a CPU; none of them is in the key."""
        target = Target(text)
        assert target.keys and len(set(target.keys)) == len(target.keys), f"the keys of {target} are {target.keys}"
        assert target.host.is_cpu, f"the host of {target} is {target.host}, which is no CPU"
        more = Target(f"{target} -keys=word -libs=blas")
        assert more.keys == ("word", *target.keys) and more.libs == ("blas",) and more.key == target.key
        assert Target.from_json(more.to_json(facts=True)) == more, "JSON data loses keys or libraries"

    def test_a_target_is_a_context(self, text: str) -> None:
        """It is the current target inside of a `with` statement."""
        before, target = Target.current(), Target(text)
        with target:
            assert Target.current() is target, f"inside of `with {target}`, the current target is {Target.current()}"
        assert Target.current() is before

    def test_wrong_attributes_are_refused(self, kind: str, text: str) -> None:
        """A TargetError names an unknown attribute and all known ones, and the meaning of an attribute with a wrong value."""
        with pytest.raises(TargetError) as refused:
            Target(f"{text} -no-such-attribute=1")
        named = [name for name in (kind, *[a.name for a in attributes_of(kind)]) if name not in str(refused.value)]
        assert not named, f"the error for an unknown attribute does not name {', '.join(named)}: {refused.value}"
        for a in attributes_of(kind):
            if a.type is not str:
                with pytest.raises(TargetError) as refused:
                    Target(text).with_attributes(**{a.name: "wrong"})
                for part in (a.name, a.meaning, "wrong"):
                    assert part in str(refused.value), f"the error for {a.name}=wrong does not name {part!r}: {refused.value}"

    def test_targets_are_immutable(self, text: str) -> None:
        """Attributes cannot be set."""
        target = Target(text)
        for a in attributes_of(target.kind):
            with pytest.raises(AttributeError):
                setattr(target, a.name, getattr(target, a.name))

    def test_aliases_are_no_attributes(self, kind: str) -> None:
        """TVM's spelling of an attribute is no name of another one."""
        names = [a.name for a in attributes_of(kind)]
        assert len(set(names)) == len(names), f"two attributes of {kind} have one name"
        for alias, name in ALIASES.items():
            assert not (alias in names and name in names), f"the attribute {alias} of {kind} is also a spelling of {name}"

    def test_there_is_a_backend(self, text: str) -> None:
        """The kind or its base has a backend."""
        assert isinstance(backend_of(Target(text)), Backend)


def _changed(a: Attribute, value: Value) -> Value | None:
    """Another legal value of an attribute; None for text."""
    if isinstance(value, bool):
        return not value
    return None if isinstance(value, str) else value * 2 or 1  # lines of caches are powers of two
