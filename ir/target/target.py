"""Define `Target`, a complete description of the machine to compile for, so that rules and code generators need no device.

A target has an *identity* (kind, processor, cores, vector width, hard limits), which keys databases, and *facts* (cache sizes, rates),
which guide choices.  Facts may be measured, with noise, without changing the identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tunesmith.ir.target.attributes import (
    ALL_CORE_RATES,
    ATTRIBUTES,
    CPU_KINDS,
    KINDS,
    TARGET_KINDS,
    Value,
    attributes_of,
    base_kind,
    check_attributes,
    check_kind,
    known_kinds,
    suggestion,
)
from tunesmith.ir.target.defaults import known_tags, resolve, tagged
from tunesmith.support import dtype
from tunesmith.support.errors import TargetError

GPU_VECTOR_BITS = 128
"""Width of the widest load or store of a GPU thread, bits."""

_NAMES = ("mcpu", "arch", "model")


class _NotApplicable(TargetError, AttributeError):
    """Access to an attribute that this kind of target does not have; also an AttributeError, so that `hasattr` works."""


class Target:
    """The machine a program is compiled for.  Immutable; equal if every attribute is equal.

    Args:
        spec: text (`"llvm -mcpu=znver5 -num-cores=2"`), a tag (`"nvidia/h200"`, optionally followed by attributes), a mapping or JSON text
            (`{"kind": "cuda", "arch": "sm_90"}`), or a target, which is copied.

    On a CPU target `mcpu` defaults to `native`, which is resolved immediately to this machine, cores and caches included, so that a stored
    target means the same on every machine.  A processor given by name takes its facts from a table and needs `num_cores`.  `cuda` without
    an architecture is this machine's first GPU.

    Raises:
        TargetError: unknown kind, attribute, processor, architecture or tag, a bad value, or a missing `num_cores`.
    """

    __slots__ = ("_given", "features", "kind", *ATTRIBUTES)

    _given: dict[str, Value]
    kind: str
    """`llvm`, `c`, `cuda`, `opencl`, or a kind of `attributes.TARGET_KINDS`."""
    features: frozenset[str]
    """Instruction sets a code generator may use (LLVM's names); empty on GPUs."""

    # `attributes` documents the meaning and unit of each attribute.
    mcpu: str
    mattr: str
    mtriple: str
    arch: str
    model: str
    num_cores: int
    vector_bits: int
    vector_registers: int
    tile_structure: str
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line: int
    clock_ghz: float
    peak_gflops_core: float
    peak_gflops: float
    tensor_rates: str
    tensor_gflops: float
    l2_gbs_core: float
    l2_gbs: float
    l3_gbs_core: float
    l3_gbs: float
    dram_gbs_core: float
    dram_gbs: float
    fork_join_us: float
    launch_us: float
    max_threads_per_block: int
    warp_size: int
    shared_memory_per_block: int
    static_shared_memory_per_block: int
    shared_memory_per_sm: int
    shared_memory_reserved: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    registers_per_thread: int
    memory_bytes: int

    def __init__(self, spec: str | Mapping[str, object] | Target) -> None:
        kind, given = (spec.kind, spec._given) if isinstance(spec, Target) else _parse(spec)
        resolved = resolve(kind, given, _shown(spec))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "features", resolved.features)
        object.__setattr__(self, "_given", resolved.given)
        for name, value in resolved.values.items():
            object.__setattr__(self, name, value)

    def tensor_rate(self, instruction: str) -> float | None:
        """The rate of a dot-product instruction on one core, in giga-operations a second; None if it is not known."""
        rates = dict(part.split("=") for part in self.tensor_rates.split(",") if part)
        return float(rates[instruction]) if instruction in rates else None

    @classmethod
    def detect(cls, kind: str = "llvm") -> Target:
        """This machine: its processor for `llvm` and `c`, its first GPU for `cuda`.

        The result is the same for every process with the same affinity and quota.  Rates are estimates until calibrated
        (`measure.calibration.cpu.calibrated`).
        """
        return cls(check_kind(kind, "Target.detect"))

    @classmethod
    def from_tag(cls, tag: str) -> Target:
        """A known card: `Target.from_tag("nvidia/h200")`."""
        return cls(_tag_attributes(tag, "Target.from_tag"))

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Target:
        """The target written by `to_json`."""
        return cls(data)

    def to_json(self, *, facts: bool = False) -> dict[str, Value]:
        """The target as JSON data with sorted keys.

        Args:
            facts: False for the identity only, as stored in records and databases; True for every attribute, measured rates included, so
                that another process can reproduce exactly this target.
        """
        shown = {a.name: self._value(a.name) for a in attributes_of(self.kind) if facts or a.identity}
        return dict(sorted({"kind": self.kind, **{name: value for name, value in shown.items() if value != ""}}.items()))

    @property
    def key(self) -> str:
        """The identity as a line of text, equal for targets whose records may be mixed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    def with_attributes(self, **changes: Value) -> Target:
        """This target with some attributes changed and all derived attributes recomputed.

        A change of the processor keeps only the number of threads; a change of the number of threads drops the measured rates of all cores,
        which are valid for the old number.
        """
        checked = check_attributes(self.kind, changes, f"Target.with_attributes on {self}")
        retained = self._given
        if any(name in _NAMES and value != getattr(self, name) for name, value in checked.items()):
            retained = {"num_cores": self.num_cores} if self.is_cpu else {}
        elif self.is_cpu and checked.get("num_cores", self.num_cores) != self.num_cores:
            retained = {name: value for name, value in retained.items() if name not in ALL_CORE_RATES}
        return Target({"kind": self.kind, **retained, **checked})

    @property
    def base(self) -> str:
        """The built-in kind: the kind itself, or the one it is based on.  It selects the code generator."""
        return base_kind(self.kind)

    @property
    def is_cpu(self) -> bool:
        """True for `llvm`, `c` and kinds based on them."""
        return self.base in CPU_KINDS

    @property
    def is_gpu(self) -> bool:
        """True for `cuda`, `opencl` and kinds based on them: loops are bound to blocks and threads."""
        return not self.is_cpu

    @property
    def warps_per_sm(self) -> int:
        """Resident warps of a multiprocessor."""
        return self.max_threads_per_sm // self.warp_size

    def vector_lanes(self, type_name: str) -> int:
        """Lanes of `type_name` in the widest vector register (on a GPU: in the widest load of a thread), at least 1."""
        bits = self.vector_bits if self.is_cpu else GPU_VECTOR_BITS
        return max(1, bits // dtype.bits(type_name))

    def has_feature(self, name: str) -> bool:
        """Whether code may use an instruction set: `target.has_feature("avx512f")`."""
        return name in self.features

    def _value(self, name: str) -> Value:
        value: Value = object.__getattribute__(self, name)
        return value

    def _facts(self) -> tuple[object, ...]:
        return (self.kind, *(self._value(attribute.name) for attribute in attributes_of(self.kind)))

    def __getattr__(self, name: str) -> Any:
        # Called only if normal attribute access fails: for an attribute of another kind, or an unknown one.
        if name not in ATTRIBUTES:
            raise AttributeError(f"'Target' object has no attribute {name!r}")
        kinds = ", ".join(ATTRIBUTES[name].kinds)
        raise _NotApplicable(f"target {self.kind!r} has no {name}: it is an attribute of {kinds} targets. Check `target.kind` first.")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"targets are immutable: use target.with_attributes({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("targets are immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __str__(self) -> str:
        """The shortest text that parses back to the same identity."""
        identity = {name: value for name, value in self.to_json().items() if name != "kind"}
        always = ("mcpu", "num_cores") if self.is_cpu else ("arch", "model")
        named = {name: identity[name] for name in always if name in identity}
        try:
            implied = resolve(self.kind, named, "").values
        except TargetError:
            implied = {}  # a processor or card outside the tables implies no attributes
        shown = [a for a in attributes_of(self.kind) if a.name in identity and (a.name in named or identity[a.name] != implied.get(a.name))]
        return " ".join([self.kind, *(f"{attribute.flag}={identity[attribute.name]}" for attribute in shown)])

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[type[Target], tuple[dict[str, Value]]]:
        return Target, (self.to_json(facts=True),)


def _shown(spec: object) -> str:
    """The target as the user wrote it, for messages."""
    return f"target {str(spec)!r}"


def _parse(spec: str | Mapping[str, object]) -> tuple[str, dict[str, Value]]:
    """Kind and checked attributes of a text or mapping."""
    where = _shown(spec)
    data: object = spec
    if isinstance(spec, str):
        data = _parse_json(spec, where) if spec.lstrip().startswith("{") else _split_text(spec, where)
    if not isinstance(data, Mapping):
        raise TargetError(f"{where}: expected text or a mapping, got {type(data).__name__}.")
    given = {str(name): value for name, value in data.items()}
    if "tag" in given:
        given = {**_tag_attributes(str(given.pop("tag")), where), **given}
    if "kind" not in given:
        raise TargetError(f"{where}: `kind` is missing. Known kinds: {', '.join(known_kinds())}.")
    kind = check_kind(given.pop("kind"), where)
    return kind, check_attributes(kind, given, where)


def _tag_attributes(tag: str, where: str) -> dict[str, Value]:
    found = tagged(tag)
    if found is None:
        raise TargetError(f"{where}: unknown tag {tag!r}. Known tags: {', '.join(known_tags())}.{suggestion(tag, known_tags())}")
    return found


def _parse_json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TargetError(f"{where}: not valid JSON ({error}).") from None


def _split_text(text: str, where: str) -> dict[str, Value]:
    """`kind -name=value ...` or `tag -name=value ...` as a mapping."""
    head, *flags = text.split() or [""]
    if head in KINDS or head in TARGET_KINDS:
        found: dict[str, Value] = {"kind": head}
    elif tagged(head) is not None:
        found = dict(_tag_attributes(head, where))
    else:
        kinds, tags = known_kinds(), known_tags()
        raise TargetError(
            f"{where}: unknown target kind or tag {head!r}.{suggestion(head, [*kinds, *tags])} "
            f"Known kinds: {', '.join(kinds)}. Known tags: {', '.join(tags)}."
        )
    stated = set()
    for flag in flags:
        name, equals, value = flag.lstrip("-").partition("=")
        if not flag.startswith("-") or not equals or not value:
            raise TargetError(f"{where}: expected attributes like -num-cores=2, got {flag!r}.")
        name = name.replace("-", "_")
        if name in stated:
            raise TargetError(f"{where}: attribute {name!r} is given twice; keep one of them.")
        stated.add(name)
        found[name] = value
    return found
