"""Define `Target`, a complete description of the machine to compile for, so that rules and code generators need no device.

A target has an *identity* (kind, processor, cores, vector width, hard limits), which keys databases, and *facts* (cache sizes, rates),
which guide choices.  Facts may be measured, with noise, without changing the identity.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from tunesmith.ir.target.attributes import (
    ALL_CORE_RATES,
    ATTRIBUTES,
    CPU_KINDS,
    GPU_KINDS,
    Value,
    attributes_of,
    base_kind,
    check_attributes,
    check_kind,
    known_kinds,
    own_attributes,
)
from tunesmith.ir.target.cpus import CPUS
from tunesmith.ir.target.defaults import known_tags, resolve
from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.keys import keys_of
from tunesmith.ir.target.spec import Spec, check_host, read_spec, shown, tag_attributes
from tunesmith.support import dtype
from tunesmith.support.errors import TargetError

GPU_VECTOR_BITS = 128
"""Width of the widest load or store of a GPU thread, bits."""

_NAMES = ("mcpu", "arch", "model")
_CURRENT: ContextVar[tuple[Target, ...]] = ContextVar("tunesmith_target", default=())
"""The targets of the `with` statements around, the innermost last."""


class _NotApplicable(TargetError, AttributeError):
    """Access to an attribute that this kind of target does not have; also an AttributeError, so that `hasattr` works."""


class Target:
    """The machine a program is compiled for.  Immutable; equal if every attribute is equal.

    A target is also a context: inside of `with target:` it is the target of `compile`, `build`, `tune` and `bench` by default
    (`Target.current`).

    Args:
        spec: text (`"llvm -mcpu=znver5 -num-cores=2"`), a tag (`"nvidia/h200"`, optionally followed by attributes), a mapping or JSON text
            (`{"kind": "cuda", "arch": "sm_90"}`), also of TVM, or a target, which is copied.
        host: the CPU that the host code of a device is compiled for: a target or its specification.

    On a CPU target `mcpu` defaults to `native`, which is resolved immediately to this machine, cores and caches included, so that a stored
    target means the same on every machine.  A processor given by name takes its facts from a table and needs `num_cores`.  `cuda` without
    an architecture is this machine's first GPU.

    Raises:
        TargetError: unknown kind, attribute, processor, architecture or tag, a bad value, or a missing `num_cores`.
    """

    __slots__ = ("_given", "_host", "_own", "features", "ignored", "keys", "kind", "libs", *ATTRIBUTES)

    _given: dict[str, Value]
    _own: dict[str, Value]
    _host: Target | None
    kind: str
    """`llvm`, `c`, `cuda`, `opencl`, or a kind of `attributes.TARGET_KINDS`."""
    features: frozenset[str]
    """Instruction sets a code generator may use (LLVM's names); empty on GPUs."""
    keys: tuple[str, ...]
    """Words for what the target is, the most specific first, such as `arm_cpu`, `cpu`: those that were given, and those of the kind."""
    libs: tuple[str, ...]
    """External code generators that parts of models are offloaded to by default, such as `blas`."""
    ignored: tuple[str, ...]
    """Names of attributes of TVM that the specification had and that have no meaning here."""

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

    def __init__(self, spec: str | Mapping[str, object] | Target, host: str | Mapping[str, object] | Target | None = None) -> None:
        try:
            self._fill(spec._spec(spec._given) if isinstance(spec, Target) else read_spec(spec), shown(spec), host)
        except RecursionError:
            raise TargetError(f"{shown(spec)}: hosts are nested too deeply. Is a target its own host?") from None

    def _fill(self, found: Spec, where: str, host: object = None) -> None:
        """Set all attributes."""
        resolved = resolve(found.kind, found.attributes, where)
        own = {a.name for a in own_attributes(found.kind)}.difference(ATTRIBUTES)
        for name, value in (
            ("kind", found.kind),
            ("features", resolved.features),
            ("libs", found.libs),
            ("ignored", found.ignored),
            ("keys", keys_of(found.kind, found.keys, resolved.values)),
            ("_given", resolved.given),
            ("_own", {name: value for name, value in resolved.values.items() if name in own}),
            ("_host", _host_of(found.kind, found.host if host is None else host, where)),
            *[(name, value) for name, value in resolved.values.items() if name not in own],
        ):
            object.__setattr__(self, name, value)

    def _spec(self, attributes: Mapping[str, Value]) -> Spec:
        """This target with other given attributes."""
        return Spec(self.kind, dict(attributes), self.keys, self.libs, self._host, self.ignored)

    @property
    def host(self) -> Target:
        """The CPU that host code is compiled for: the target itself if it is a CPU, else the given one, by default this machine."""
        if self.is_cpu:
            return self
        return Target("llvm") if self._host is None else self._host

    @property
    def has_host(self) -> bool:
        """Whether a host was given."""
        return self._host is not None

    def has_key(self, word: str) -> bool:
        """Whether the target is of a sort: `target.has_key("arm_cpu")`."""
        return _as_text("has_key", word) in self.keys

    @classmethod
    def current(cls) -> Target | None:
        """The target of the innermost `with Target(...):` around, None without one.

        Each thread and each asynchronous task has its own.
        """
        return _CURRENT.get()[-1] if _CURRENT.get() else None

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The names of all kinds, registered ones included."""
        return tuple(known_kinds())

    @classmethod
    def tags(cls) -> dict[str, dict[str, object]]:
        """All tags, registered ones included, with their kinds and attributes."""
        return {tag: tag_attributes(tag, "Target.tags") for tag in known_tags()}

    def __enter__(self) -> Target:
        """Make this the current target."""
        _CURRENT.set((*_CURRENT.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        """Make the target of the `with` statement around the current one."""
        _CURRENT.set(_CURRENT.get()[:-1])

    def tensor_rate(self, instruction: str) -> float | None:
        """The rate of a dot-product instruction on one core, in giga-operations a second; None if it is not known."""
        rates = dict(part.split("=") for part in self.tensor_rates.split(",") if part)
        return float(rates[instruction]) if _as_text("tensor_rate", instruction) in rates else None

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
        return cls(tag_attributes(tag, "Target.from_tag"))

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Target:
        """The target written by `to_json`."""
        return cls(data)

    def to_json(self, *, facts: bool = False) -> dict[str, Any]:
        """The target as JSON data with sorted keys.

        Args:
            facts: False for the identity only, as stored in records and databases; True for every attribute, measured rates included, and
                keys, libraries and the given host, so that another process can reproduce exactly this target.
        """
        found = {a.name: self._value(a.name) for a in attributes_of(self.kind) if facts or a.identity}
        more: dict[str, Any] = {}
        if facts:
            known = keys_of(self.kind, (), {name: self._value(name) for name in found})
            more = {
                "keys": [word for word in self.keys if word not in known],
                "libs": list(self.libs),
                "host": self._host and self._host.to_json(facts=True),
            }
        entries = {"kind": self.kind, **{name: value for name, value in found.items() if value != ""}}
        return dict(sorted({**entries, **{name: value for name, value in more.items() if value}}.items()))

    @property
    def key(self) -> str:
        """The identity as a line of text, equal for targets whose records may be mixed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    def with_attributes(self, **changes: Value) -> Target:
        """This target with some attributes changed and all derived attributes recomputed.

        A change of the processor keeps only the number of threads and the attributes that only this kind has; a change of the number of
        threads drops the measured rates of all cores, which are valid for the old number.
        """
        checked = check_attributes(self.kind, changes, f"Target.with_attributes on {self}")
        retained = self._given
        if any(name in _NAMES and value != getattr(self, name) for name, value in checked.items()):
            own = {a.name for a in own_attributes(self.kind)}
            retained = {name: value for name, value in retained.items() if name in own}
            retained |= {"num_cores": self.num_cores} if self.is_cpu else {}
        elif self.is_cpu and checked.get("num_cores", self.num_cores) != self.num_cores:
            retained = {name: value for name, value in retained.items() if name not in ALL_CORE_RATES}
        made = Target.__new__(Target)
        made._fill(self._spec({**retained, **checked}), f"Target.with_attributes on {self}")
        return made

    @property
    def base(self) -> str:
        """The built-in kind: the kind itself, or the one it is based on, or the kind itself if it has no base.  It selects the code
        generator."""
        return base_kind(self.kind)

    @property
    def is_cpu(self) -> bool:
        """True for `llvm`, `c` and kinds based on them."""
        return self.base in CPU_KINDS

    @property
    def is_gpu(self) -> bool:
        """True for `cuda`, `opencl` and kinds based on them: loops are bound to blocks and threads."""
        return self.base in GPU_KINDS

    @property
    def warps_per_sm(self) -> int:
        """Resident warps of a multiprocessor."""
        return self.max_threads_per_sm // self.warp_size

    def vector_lanes(self, type_name: str) -> int:
        """Lanes of `type_name` in the widest vector register (on a GPU: in the widest load of a thread), at least 1."""
        bits = self.vector_bits if self.is_cpu else GPU_VECTOR_BITS
        return max(1, bits // dtype.bits(_as_text("vector_lanes", type_name)))

    def has_feature(self, name: str) -> bool:
        """Whether code may use an instruction set: `target.has_feature("avx512f")`."""
        return _as_text("has_feature", name) in self.features

    def _value(self, name: str) -> Value:
        value: Value = self._own[name] if name in self._own else object.__getattribute__(self, name)
        return value

    def _facts(self) -> tuple[object, ...]:
        return (self.kind, self.keys, self.libs, self._host, *(self._value(attribute.name) for attribute in attributes_of(self.kind)))

    def __getattr__(self, name: str) -> Any:
        # Called only if normal attribute access fails: for an attribute of another kind, or an unknown one.
        if not name.startswith("_") and name in self._own:
            return self._own[name]
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
        own = own_attributes(self.kind)
        needed = {a.name: self._value(a.name) for a in own if a.default is None}
        identity = {**{name: value for name, value in self.to_json().items() if name != "kind"}, **needed}
        always = [*(("mcpu", "num_cores") if self.is_cpu else ("arch", "model")), *[a.name for a in own]]
        named = {name: identity[name] for name in always if name in identity}
        try:
            implied = resolve(self.kind, named, "").values
        except TargetError:
            implied = {}  # a processor or card outside the tables implies no attributes
        given = [a for a in attributes_of(self.kind) if a.name in identity and (a.name in named or identity[a.name] != implied.get(a.name))]
        return " ".join([self.kind, *(f"{a.flag}={_text(identity[a.name])}" for a in given)])

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[type[Target], tuple[dict[str, Value]]]:
        return Target, (self.to_json(facts=True),)


def _as_text(method: str, given: object) -> str:
    """The argument of a method.  TargetError if it is no text."""
    if not isinstance(given, str):
        raise TargetError(f"Target.{method} takes a text, not {type(given).__name__}.")
    return given


def _host_of(kind: str, host: object, where: str) -> Target | None:
    """The host of a device.  TargetError if it is no CPU."""
    if host is None:
        return None
    if base_kind(kind) in CPU_KINDS:
        if not isinstance(host, Target):
            check_host(host, where)
        return None
    if not isinstance(host, (str, Mapping, Target)):
        raise TargetError(f"{where}: host: expected a target, its text or a mapping, got {type(host).__name__}.")
    found = Target(host) if isinstance(host, Target) else _host_with_cores(host, where)
    if not found.is_cpu:
        raise TargetError(f"{where}: host: code of the host is for a CPU, and {found} is none. Give one such as llvm.")
    return found


def _host_with_cores(host: str | Mapping[str, object], where: str) -> Target:
    """The target of a host; without a number of cores, which exports of TVM omit, a processor of this machine has those of this machine.

    Raises:
        TargetError: it is no target, or another processor, and the number of its cores is missing.
    """
    try:
        spec = read_spec(host)
        if spec.kind in CPU_KINDS and spec.attributes.get("mcpu") in CPUS and "num_cores" not in spec.attributes:
            mcpu, here = spec.attributes["mcpu"], detect_host()
            if mcpu != here.mcpu:
                raise TargetError(f'the number of cores of {mcpu} is missing. Add "num-cores": N, or in text -num-cores=N.')
            spec.attributes["num_cores"] = here.num_cores
        found = Target.__new__(Target)
        found._fill(spec, shown(host))
    except TargetError as error:
        raise TargetError(f"{where}: host: {error}") from None
    return found


def _text(value: Value) -> str:
    """The value as text, which the constructor reads; with blanks it is quoted."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return shlex.quote(text)
