"""Define the target schema: each attribute's type, the kinds that have it, and whether it is part of the target's identity.

Other distributions register kinds and tags based on the built-in ones: such a kind has the attributes and the code generator of its base.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tunesmith.ir.target.tags import TAGS
from tunesmith.support.errors import TargetError
from tunesmith.support.nearest_name import did_you_mean
from tunesmith.support.registry import Registry, instance_of

CPU_KINDS = ("llvm", "c")
GPU_KINDS = ("cuda", "opencl")
KINDS = CPU_KINDS + GPU_KINDS

Value = bool | int | float | str

WORD = r"[A-Za-z0-9_.-]+"
"""Pattern of keys and libraries."""
_LARGEST_INTEGER, _SMALLEST_FLOAT, _LARGEST_FLOAT = (1 << 63) - 1, 1e-12, 1e15
"""Limits of built-in attributes: other numbers are mistakes, in any of their units."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute.

    Attributes:
        name: spelling in Python and JSON; in text `_` is written `-`.
        type: bool, int, float or str.
        kinds: the built-in target kinds that have it; empty for an attribute of a `TargetKind`.
        identity: True if code or its legality depends on it, so that records with different values must not be mixed; False for facts
            that only guide choices (cache sizes, measured rates).
        doc: meaning.
        unit: unit of a number, such as bytes or GB/s; empty for counts.
        check: for strings, returns the canonical spelling or raises `TargetError`.
        minimum: smallest legal number.
        default: value in targets that do not give it, for an attribute of a `TargetKind`; None if each target must give it.
    """

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    kinds: tuple[str, ...] = ()
    identity: bool = False
    doc: str = ""
    unit: str = ""
    check: Callable[[str], str] | None = None
    minimum: int = 1
    default: Value | None = None

    def __post_init__(self) -> None:
        """Raises TargetError if a field has another type."""
        named = f"attribute {self.name!r:.60}"
        for what, holds in (
            ("name is a text", isinstance(self.name, str)),
            ("type is bool, int, float or str", self.type in (bool, int, float, str)),
            ("kinds are names of kinds", isinstance(self.kinds, tuple)),
            ("doc and unit are texts", isinstance(self.doc, str) and isinstance(self.unit, str)),
            ("check is a function", self.check is None or callable(self.check)),
            ("minimum is a number", isinstance(self.minimum, (int, float)) and not isinstance(self.minimum, bool)),
            ("default is a bool, a number or a text", self.default is None or isinstance(self.default, (bool, int, float, str))),
        ):
            if not holds:
                raise TargetError(f"{named}: its {what}; got {self!r:.300}.")

    @property
    def flag(self) -> str:
        """Spelling in text: `-num-cores`."""
        return "-" + self.name.replace("_", "-")

    @property
    def meaning(self) -> str:
        """Meaning and unit."""
        return f"{self.doc}, {self.unit}" if self.doc and self.unit else self.doc or self.unit


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A target kind besides the built-in ones.

    Attributes:
        like: the built-in kind whose attributes, rules and code generator it uses; empty for a kind with a backend of its own, which has
            only the attributes below.  It may repeat built-in ones: `ATTRIBUTES["num_cores"]`.
        defaults: values of attributes that a target of this kind does not specify.
        attributes: further attributes, which only this kind has.
        keys: words for what a target of this kind is, the most specific first; those of the base kind follow (`Target.keys`).
    """

    like: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    attributes: tuple[Attribute, ...] = ()
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises TargetError if a field has another type."""
        if not isinstance(self.like, str):
            raise TargetError(f"target kind: like is the name of a built-in kind, or empty, not {self.like!r:.100}.")
        if not isinstance(self.defaults, Mapping) or not all(isinstance(name, str) for name in self.defaults):
            raise TargetError(f"target kind: defaults is a mapping from names of attributes to values, not {self.defaults!r:.100}.")
        if not isinstance(self.attributes, (tuple, list)) or not all(isinstance(a, Attribute) for a in self.attributes):
            raise TargetError(f"target kind: attributes is a tuple of Attribute objects, not {self.attributes!r:.100}.")
        if not isinstance(self.keys, (tuple, list)) or not all(isinstance(w, str) and re.fullmatch(WORD, w) for w in self.keys):
            raise TargetError(f"target kind: keys is a tuple of words such as ('npu',), not {self.keys!r:.100}.")
        object.__setattr__(self, "attributes", tuple(self.attributes))
        object.__setattr__(self, "keys", tuple(self.keys))


class TagRegistry(Registry[Mapping[str, Value]]):
    """Named targets besides the built-in ones."""

    def register(self, name: str, value: Mapping[str, Value] | str) -> Mapping[str, Value]:
        """Bind a tag to a kind with attributes, given as a mapping or as text: `"llvm -mcpu=cortex-a76 -num-cores=4"`.

        Raises:
            TargetError: the name is that of a built-in tag or of a kind, or there is no such kind or attribute.
            UserError: the tag is already registered, or the value is neither a mapping nor text.
        """
        where = f"target tag {name!r}"
        if name in TAGS or name in known_kinds():
            raise TargetError(f"{where}: this is the name of a built-in {'tag' if name in TAGS else 'target kind'}. Choose another name.")
        if isinstance(value, str):
            head, *flags = split_words(value, where)
            value = {"kind": head, **flag_values(flags, where)}
        self.contract.check(value, f"the {self.kind} {name!r}")
        given = dict(value)
        kind = check_kind(given.pop("kind", None), where)
        check_attributes(kind, {k: v for k, v in given.items() if k not in ("keys", "libs", "host")}, where)
        return super().register(name, value)


TARGET_KINDS: Registry[TargetKind] = Registry(
    "target kind",
    contract=instance_of(TargetKind),
    sent="tunesmith.ir.target.attributes:TARGET_KINDS",
    names=r"[^\W\d][\w.-]*",
    reserved=KINDS,
)
"""Kinds besides the built-in ones, by name.  Their programs are searched and recorded separately from those of the base kind."""
TARGET_TAGS = TagRegistry("target tag", contract=instance_of(Mapping), names=r"[^\s{-]\S*")
"""Named targets besides the built-in ones: kind and attributes."""


def base_kind(kind: str) -> str:
    """The built-in kind that a known kind is based on; the kind itself if it has no base."""
    return kind if kind in KINDS else TARGET_KINDS.get(kind).like or kind


def known_kinds() -> list[str]:
    """The names of all kinds."""
    return [*KINDS, *TARGET_KINDS]


def split_words(text: str, where: str) -> list[str]:
    """The words of the text of a target; a value with blanks is quoted."""
    try:
        return shlex.split(text) or [""]
    except ValueError as error:
        raise TargetError(f"{where}: {error}. Quote a value with blanks as in -host='llvm -num-cores=2'.") from None


def flag_values(flags: Iterable[str], where: str) -> dict[str, str]:
    """Attributes of `-name=value` words, with names in Python's spelling.  TargetError for other words."""
    found: dict[str, str] = {}
    for flag in flags:
        name, equals, value = flag.lstrip("-").partition("=")
        if not flag.startswith("-") or not equals or not value:
            raise TargetError(f"{where}: expected attributes like -num-cores=2, got {flag!r}.")
        name = name.replace("-", "_")
        if name in ("kind", "tag"):
            raise TargetError(f"{where}: the text begins with its kind or tag, and {flag!r} gives another one. Leave it out.")
        if name in found:
            raise TargetError(f"{where}: attribute {name!r} is given twice; keep one of them.")
        found[name] = value
    return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """` Did you mean ...?` with the nearest known word, or an empty string."""
    return did_you_mean(word, known, 0.5)


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise TargetError(f"expected {what}, got {text!r}")
        return text

    return check


def canonical_mattr(text: str) -> str:
    """LLVM feature flags in canonical order; the last flag of a feature wins: `+b,+a,-b` -> `+a,-b`."""
    chosen: dict[str, str] = {}
    for flag in filter(None, (part.strip() for part in text.split(","))):
        if not re.fullmatch(r"[+-][A-Za-z0-9._-]+", flag):
            raise TargetError(f"expected features like '+avx512f,-avx512vnni', got {flag!r}")
        chosen[flag[1:]] = flag[0]
    return ",".join(sign + name for name, sign in sorted(chosen.items()))


TILE_STRUCTURE = "SSSRS"
"""The default of `tile_structure`."""


def check_tile_structure(text: str) -> str:
    """The structure itself: 3 to 6 levels S, the first outermost and the last innermost, and 1 or 2 levels R, each directly outside of
    an S, one of them outside of the last.  Otherwise `TargetError`."""
    if not re.fullmatch(r"S+(RS+)?RS", text) or not 3 <= text.count("S") <= 6:
        raise TargetError(
            "expected levels of loops from the outermost to the innermost, 3 to 6 S (spatial) and 1 or 2 R (reduction), that start with S "
            f"and end with RS, and no two R side by side, such as {TILE_STRUCTURE} or SSRSRS, got {text!r}"
        )
    return text


def canonical_rates(text: str) -> str:
    """Rates of instructions by name in canonical order: `b=2,a=1.50` -> `a=1.5,b=2`.  TargetError for other text."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not 0 < rate < math.inf or name in found:
            raise TargetError(f"expected rates like 'vdpbf16ps=536,vpdpbusd=1071.5', got {part!r}")
        found[name] = rate
    return ",".join([f"{name}={rate:g}" for name, rate in sorted(found.items())])


def _attribute_list() -> list[Attribute]:
    every, cpu, gpu = KINDS, CPU_KINDS, GPU_KINDS
    rate = "GB/s"
    return [
        Attribute(
            "mcpu", str, cpu, True, "processor name as LLVM spells it, or `native`", "", _matching(r"[A-Za-z0-9._-]+", "a processor name")
        ),
        Attribute(
            "mattr", str, cpu, True, "features added to or removed from the processor's: `+avx512fp16,-avx512vnni`", "", canonical_mattr
        ),
        Attribute(
            "mtriple",
            str,
            cpu,
            True,
            "LLVM triple",
            "",
            _matching(r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.]+){1,4}", "a triple like x86_64-unknown-linux-gnu"),
        ),
        Attribute(
            "arch", str, gpu, True, "GPU architecture: `sm_90`", "", _matching(r"[A-Za-z0-9_.-]+", "an architecture name like sm_90")
        ),
        Attribute(
            "model",
            str,
            gpu,
            True,
            "the card: `h200`; it sets size and rates",
            "",
            _matching(r"[A-Za-z0-9_.-]+", "a card name like h200"),
        ),
        Attribute("num_cores", int, every, True, "threads of a parallel loop; on a GPU multiprocessors (compute units)"),
        Attribute("vector_bits", int, cpu, True, "width of the widest vector register used", "bits"),
        Attribute("vector_registers", int, cpu, False, "vector registers available to a kernel"),
        Attribute(
            "tile_structure",
            str,
            cpu,
            False,
            "levels of the nest of a contraction, outermost first: `S` spatial loops, `R` reduction loops; the last is the register tile",
            "",
            check_tile_structure,
        ),
        Attribute("l1_bytes", int, cpu, False, "L1 data cache of a core", "bytes"),
        Attribute("l2_bytes", int, every, False, "L2 cache of a core (of the whole GPU)", "bytes"),
        Attribute("l3_bytes", int, cpu, False, "last-level cache shared by cores, 0 if there is none", "bytes", minimum=0),
        Attribute("cache_line", int, every, False, "line of a cache", "bytes"),
        Attribute("clock_ghz", float, every, False, "sustained clock (GPU: boost clock)", "GHz"),
        Attribute("peak_gflops_core", float, cpu, False, "float32 multiply-add peak of one core", "GFLOP/s"),
        Attribute("peak_gflops", float, every, False, "float32 multiply-add peak of all cores", "GFLOP/s"),
        Attribute(
            "tensor_rates",
            str,
            cpu,
            False,
            "rates of dot-product instructions on one core: `vdpbf16ps=536,vpdpbusd=1072`",
            "giga-operations a second",
            canonical_rates,
        ),
        Attribute("tensor_gflops", float, gpu, False, "dense 16-bit matrix peak with float32 accumulation", "GFLOP/s"),
        Attribute("l2_gbs_core", float, cpu, False, "L2 read bandwidth of one core alone", rate),
        Attribute("l2_gbs", float, every, False, "L2 read bandwidth of all cores", rate),
        Attribute("l3_gbs_core", float, cpu, False, "L3 read bandwidth of one core alone", rate),
        Attribute("l3_gbs", float, cpu, False, "L3 read bandwidth of all cores", rate),
        Attribute("dram_gbs_core", float, cpu, False, "memory read bandwidth of one core alone", rate),
        Attribute("dram_gbs", float, every, False, "memory bandwidth of all cores", rate),
        Attribute("fork_join_us", float, cpu, False, "starting and joining a parallel region", "microseconds"),
        Attribute("launch_us", float, gpu, False, "launching a kernel", "microseconds"),
        Attribute("max_threads_per_block", int, gpu, True, "threads of a block (work items of a group)"),
        Attribute("warp_size", int, gpu, True, "threads that execute in lockstep"),
        Attribute("shared_memory_per_block", int, gpu, True, "shared (local) memory a block may use, opt-in included", "bytes"),
        Attribute("static_shared_memory_per_block", int, gpu, False, "shared memory without the opt-in", "bytes"),
        Attribute("shared_memory_per_sm", int, gpu, False, "shared memory of a multiprocessor", "bytes"),
        Attribute("shared_memory_reserved", int, gpu, False, "shared memory reserved per resident block", "bytes", minimum=0),
        Attribute("max_threads_per_sm", int, gpu, False, "resident threads of a multiprocessor"),
        Attribute("max_blocks_per_sm", int, gpu, False, "resident blocks of a multiprocessor"),
        Attribute("registers_per_sm", int, gpu, False, "32-bit registers of a multiprocessor"),
        Attribute("registers_per_thread", int, gpu, False, "32-bit registers a thread may use"),
        Attribute("memory_bytes", int, gpu, False, "device memory", "bytes"),
    ]


ATTRIBUTES: dict[str, Attribute] = {attribute.name: attribute for attribute in _attribute_list()}

ALIASES = {
    "max_shared_memory_per_block": "shared_memory_per_block",
    "thread_warp_size": "warp_size",
    "l2_cache_size_bytes": "l2_bytes",
    "max_num_threads": "max_threads_per_block",
    "vector_width": "vector_bits",
}
"""TVM's spellings of attributes."""

RESERVED = (
    *("kind", "tag", "tags", "kinds", "keys", "host", "libs", "features", "ignored", "key", "base", "current", "detect", "has_feature"),
    *("has_host", "has_key", "is_cpu", "is_gpu", "from_json", "from_tag", "to_json", "tensor_rate", "vector_lanes", "warps_per_sm"),
    "with_attributes",
)
"""Names of the parts and properties of a target (`target.Target`), which no attribute has."""

ALL_CORE_RATES = ("peak_gflops", "l2_gbs", "l3_gbs", "dram_gbs", "fork_join_us")
"""Facts that are valid for one number of cores only."""


def attributes_of(kind: str) -> list[Attribute]:
    """The attributes of a kind, in schema order; those that only it has come last."""
    base = base_kind(kind)
    return [*[attribute for attribute in ATTRIBUTES.values() if base in attribute.kinds], *own_attributes(kind)]


def own_attributes(kind: str) -> tuple[Attribute, ...]:
    """The attributes that a registered kind adds to those of its base."""
    return () if kind in KINDS else TARGET_KINDS.get(kind).attributes


def own_defaults(kind: str, where: str) -> dict[str, Value]:
    """The default values of the attributes that a registered kind adds; those that each target must give are missing.

    Raises:
        TargetError: an attribute has the name of another one, or a default is not a value of it.
    """
    found: dict[str, Value] = {}
    base = base_kind(kind)
    seen = {*RESERVED, *[a.name for a in ATTRIBUTES.values() if base in a.kinds]}
    seen |= {alias for alias, name in ALIASES.items() if name in seen}
    for a in own_attributes(kind):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", a.name) or a.name in seen:
            raise TargetError(
                f"{where}: the target kind {kind!r} declares the attribute {a.name!r}: names are lower-case words joined by `_`, and "
                f"differ from those of {base} and of the properties of targets. Rename it."
            )
        seen.add(a.name)
        if a.default is not None:
            try:
                found[a.name] = _convert(a, a.default)
            except TargetError as error:
                raise TargetError(f"{where}: the default of the attribute {a.name!r} of the target kind {kind!r}: {error}.") from None
    return found


def check_kind(kind: object, where: str) -> str:
    """The kind itself, or `TargetError`."""
    if not isinstance(kind, str) or (kind not in KINDS and kind not in TARGET_KINDS):
        known = known_kinds()
        raise TargetError(f"{where}: unknown target kind {kind!r:.100}. Known kinds: {', '.join(known)}.{suggestion(str(kind), known)}")
    if base_kind(kind) not in (*KINDS, kind):
        raise TargetError(f"{where}: the target kind {kind!r} is based on {base_kind(kind)!r}, which is not one of {', '.join(KINDS)}.")
    return kind


def check_attributes(kind: str, given: Mapping[str, object], where: str) -> dict[str, Value]:
    """Validate attributes and normalize their names and values.

    Args:
        kind: a known kind.
        given: attribute names (Python, text or TVM spelling) to values; strings are converted.
        where: the target as the user wrote it, for messages.
    """
    known = {attribute.name: attribute for attribute in attributes_of(kind)}
    checked: dict[str, Value] = {}
    for spelled, value in given.items():
        name = spelled.replace("-", "_")
        name = ALIASES.get(name, name)
        if name not in known:
            raise TargetError(_unknown(kind, spelled, name, list(known), where))
        try:
            found = _convert(known[name], value)
        except TargetError as error:
            raise TargetError(f"{where}: attribute {name!r} ({known[name].meaning}): {error}.") from None
        if name == "cache_line" and int(found) & (int(found) - 1):
            raise TargetError(f"{where}: attribute {name!r} ({known[name].meaning}): expected a power of two, got {found}.")
        if checked.get(name, found) != found:
            raise TargetError(f"{where}: attribute {name!r} is given twice; keep one of them.")
        checked[name] = found
    return checked


def _unknown(kind: str, spelled: str, name: str, known: list[str], where: str) -> str:
    if name in ATTRIBUTES:
        owners = ", ".join(ATTRIBUTES[name].kinds)
        return f"{where}: attribute {spelled!r} belongs to {owners} targets, not to {kind}. {kind} has: {', '.join(known)}."
    return f"{where}: unknown attribute {spelled!r}. {kind} targets have: {', '.join(known)}.{suggestion(name, [*known, *ALIASES])}"


def _convert(attribute: Attribute, value: object) -> Value:
    """The value converted to the attribute's type; `TargetError` states the expected value."""
    if attribute.type is str:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = ",".join(value)
        if not isinstance(value, str):
            raise TargetError(f"expected text, got {_shown(value)}")
        return _checked_text(attribute, value)
    if attribute.type is bool:
        return _truth(value)
    number = _number(attribute, value)
    if number < attribute.minimum if attribute.type is int else number <= 0:
        raise TargetError(
            f"expected {'at least ' + str(attribute.minimum) if attribute.type is int else 'a positive number'}, got {_shown(value)}"
        )
    if ATTRIBUTES.get(attribute.name) is attribute and attribute.type is float and not _SMALLEST_FLOAT <= number <= _LARGEST_FLOAT:
        raise TargetError(f"expected a number from {_SMALLEST_FLOAT:g} to {_LARGEST_FLOAT:g}, got {_shown(value)}")
    return number


def _checked_text(attribute: Attribute, value: str) -> str:
    """The canonical spelling of a text."""
    if attribute.check is None:
        return value
    try:
        found = attribute.check(value)
    except (TargetError, RecursionError):
        raise
    except Exception as error:  # the check is user code
        raise TargetError(f"its check refuses {_shown(value)}: {type(error).__name__}: {error}") from error
    if not isinstance(found, str):
        raise TargetError(f"its check returned {_shown(found)} for {_shown(value)}, and not a text")
    return found


def _shown(value: object) -> str:
    """A value in messages, shortened."""
    try:
        return f"{value!r:.100}"
    except Exception:  # a number with too many digits, or an object of the user
        return f"a {type(value).__name__}"


def _truth(value: object) -> bool:
    text = str(value).lower() if isinstance(value, (bool, str, int)) else ""
    if text not in _TRUTHS:
        raise TargetError(f"expected true or false, got {_shown(value)}")
    return _TRUTHS[text]


_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def _number(attribute: Attribute, value: object) -> int | float:
    expected = "a whole number" if attribute.type is int else "a number"
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        try:
            value = attribute.type(value)
        except ValueError:  # a fraction for an integer, or too many digits
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TargetError(f"expected {expected}, got {_shown(value)}")
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise TargetError(f"expected {expected} of at most 63 bits, got {_shown(value)}")
    if not math.isfinite(value) or (attribute.type is int and value != int(value)):
        raise TargetError(f"expected {expected}, got {_shown(value)}")
    return int(value) if attribute.type is int else float(value)


_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
