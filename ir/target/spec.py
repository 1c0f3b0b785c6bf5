"""Read the specification of a target: text, a tag, a mapping or JSON, in the spelling of tunesmith or of TVM.

Mappings and JSON of TVM have attributes without a meaning here, such as `fast-math`; they are skipped and named in `Spec.ignored`.  All
other unknown attributes are refused, so that a misspelling is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith.ir.target.attributes import (
    ALIASES,
    ATTRIBUTES,
    CPU_KINDS,
    KINDS,
    TARGET_KINDS,
    WORD,
    Value,
    attributes_of,
    base_kind,
    check_attributes,
    check_kind,
    flag_values,
    known_kinds,
    split_words,
    suggestion,
)
from tunesmith.ir.target.defaults import known_tags, tagged
from tunesmith.ir.target.tvm_names import KINDS_ELSEWHERE, LIBRARIES, TVM_LIBRARIES, is_ignored
from tunesmith.support.errors import TargetError

_SHOWN = 300
"""Characters of a specification in messages."""
_VENDOR = re.compile(r"([a-z0-9_]+)(-[a-z0-9_]+)?-linux-gnu")
"""A triple in an export of TVM, which has the vendor of its LLVM (`x86_64-conda-linux-gnu`).  It changes no code, but the identity."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A specification.

    Attributes:
        kind: a known kind.
        attributes: checked attributes.
        keys: words of the user for what the target is.
        libs: libraries that parts of models may be offloaded to.
        host: specification of the host; None for this machine.
        ignored: names of TVM's attributes that have no meaning here.
    """

    kind: str
    attributes: dict[str, Value]
    keys: tuple[str, ...] = ()
    libs: tuple[str, ...] = ()
    host: object = None
    ignored: tuple[str, ...] = ()


def shown(spec: object) -> str:
    """The target as the user wrote it, for messages; a long one is shortened."""
    try:
        text = str(spec)
    except ValueError:  # a number with too many digits
        text = f"a {type(spec).__name__}"
    return f"target {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'!r}"


def read_spec(spec: object) -> Spec:
    """Kind, checked attributes and the rest of a text or mapping.

    Raises:
        TargetError: unknown kind, attribute or tag, or a bad value.
    """
    where = shown(spec)
    data: object = spec
    if isinstance(spec, str):
        data = _parse_json(spec, where) if spec.lstrip().startswith("{") else _split_text(spec, where)
    if not isinstance(data, Mapping):
        raise TargetError(f"{where}: expected text or a mapping, got {type(data).__name__}.")
    given = {str(name): value for name, value in data.items()}
    exported = "tag" in given and "keys" in given
    is_text = isinstance(spec, str) and not spec.lstrip().startswith("{")
    if exported and isinstance(given.get("mtriple"), str):
        given["mtriple"] = _VENDOR.sub(r"\1-unknown-linux-gnu", str(given["mtriple"]))
    tag, ignored = given.pop("tag", ""), []
    if not isinstance(tag, str):
        raise TargetError(f"{where}: tag: expected text, got {type(tag).__name__}.")
    if tag and (tagged(tag) is not None or not ("kind" in given and exported)):
        given = {**tag_attributes(tag, where), **given}
    elif tag:  # TVM exports the attributes of its tag, too
        ignored.append("tag")
    kind = _kind(given, where)
    keys = _words("keys", given.pop("keys", ()), where)
    libs = [LIBRARIES.get(name, name) for name in _words("libs", given.pop("libs", ()), where)]
    ignored += [f"libs={name}" for name in libs if name in TVM_LIBRARIES]
    host = given.pop("host", None)
    base = base_kind(kind)
    if host is not None and base in CPU_KINDS:  # a CPU is its own host
        check_host(host, where)
        host = None
        ignored.append("host")
    if base in KINDS and not is_text:
        known = {a.name for a in attributes_of(kind)} | ALIASES.keys() | (set() if exported else ATTRIBUTES.keys())
        skipped = [name for name in given if name.replace("-", "_") not in known and is_ignored(base, name)]
        given = {name: value for name, value in given.items() if name not in skipped}
        ignored += skipped
    attributes = check_attributes(kind, given, where)
    return Spec(kind, attributes, keys, tuple(dict.fromkeys(n for n in libs if n not in TVM_LIBRARIES)), host, tuple(sorted(ignored)))


def check_host(host: object, where: str) -> None:
    """Refuse an object that specifies no CPU, where the host of a CPU is not used.  Raises TargetError."""
    if not isinstance(host, (str, Mapping)):
        raise TargetError(f"{where}: host: expected a target, its text or a mapping, got {type(host).__name__}.")
    kind = read_spec(host).kind
    if base_kind(kind) not in CPU_KINDS:
        raise TargetError(f"{where}: host: code of the host is for a CPU, and {kind} is none. Give one such as llvm.")


def tag_attributes(tag: str, where: str) -> dict[str, object]:
    """Kind and attributes of a tag.  Raises TargetError if there is none of this name."""
    if not isinstance(tag, str):
        raise TargetError(f"{where}: a tag is a text such as nvidia/h200, not {type(tag).__name__}.")
    found = tagged(tag)
    if found is None:
        raise TargetError(f"{where}: unknown tag {tag!r:.100}. Known tags: {', '.join(known_tags())}.{suggestion(tag, known_tags())}")
    return dict(found)


def _kind(given: dict[str, object], where: str) -> str:
    if "kind" not in given:
        raise TargetError(f"{where}: `kind` is missing. Known kinds: {', '.join(known_kinds())}.")
    kind = given.pop("kind")
    if isinstance(kind, str) and kind in KINDS_ELSEWHERE and kind not in TARGET_KINDS:
        raise TargetError(_elsewhere(str(kind), where))
    return check_kind(kind, where)


def _elsewhere(kind: str, where: str) -> str:
    return (
        f"{where}: {kind} is a target kind of TVM for which tunesmith has no backend. Known kinds: {', '.join(known_kinds())}. "
        "Another package can add it: docs/targets.md"
    )


def _words(name: str, value: object, where: str) -> tuple[str, ...]:
    """A list of words, given as a list or separated by commas."""
    words = [w.strip() for w in value.split(",")] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) and re.fullmatch(WORD, w) for w in words):
        raise TargetError(f"{where}: {name}: expected words such as a,b, got {value!r:.100}.")
    return tuple(dict.fromkeys(words))


def _parse_json(text: str, where: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_pairs)
    except RecursionError:
        raise TargetError(f"{where}: the JSON is nested too deeply.") from None
    except ValueError as error:
        raise TargetError(f"{where}: not valid JSON ({error}).") from None


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice; keep one of them")
    return found


def _split_text(text: str, where: str) -> dict[str, object]:
    """`kind -name=value ...` or `tag -name=value ...` as a mapping; a value with blanks is quoted."""
    head, *flags = split_words(text, where)
    if head in KINDS or head in TARGET_KINDS:
        found: dict[str, object] = {"kind": head}
    elif tagged(head) is not None:
        found = tag_attributes(head, where)
    elif head in KINDS_ELSEWHERE:
        raise TargetError(_elsewhere(head, where))
    else:
        kinds, tags = known_kinds(), known_tags()
        raise TargetError(
            f"{where}: unknown target kind or tag {head!r:.100}.{suggestion(head, [*kinds, *tags])} "
            f"Known kinds: {', '.join(kinds)}. Known tags: {', '.join(tags)}."
        )
    return {**found, **flag_values(flags, where)}
