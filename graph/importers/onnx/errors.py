"""Report all unsupported nodes of an ONNX model in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.support.errors import ModelImportError


@dataclass(frozen=True)
class Unsupported:
    """An unsupported node.

    Attributes:
        operator: operator type.
        domain: operator domain; "" is ONNX's own.
        version: operator-set version.
        reason: one sentence.
        place: path of the node.
        wanted: model inputs whose values are needed at import.
        cause: error raised in the converter; None if the converter refused the node.
    """

    operator: str
    domain: str
    version: int
    reason: str
    place: str
    wanted: tuple[str, ...] = ()
    cause: BaseException | None = None


class OnnxImportError(ModelImportError):
    """A model cannot be imported.

    Args:
        name: name of the model's graph.
        unsupported: all unsupported nodes.
        sizes: symbolic dimensions that can be fixed.
    """

    def __init__(self, name: str, unsupported: Sequence[Unsupported], sizes: Sequence[str] = ()) -> None:
        super().__init__(_listed(name, unsupported, sizes))
        self.unsupported = tuple(unsupported)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Model inputs whose values, given with `constants=`, would help the import."""
        return tuple(dict.fromkeys(name for u in self.unsupported for name in u.wanted))


def _listed(name: str, unsupported: Sequence[Unsupported], sizes: Sequence[str]) -> str:
    groups: dict[tuple[str, str, int, str], list[Unsupported]] = {}
    for u in unsupported:
        groups.setdefault((u.domain, u.operator, u.version, u.reason), []).append(u)
    lines = [f"the ONNX graph {name!r} cannot be imported; unsupported operators:"]
    for (domain, operator, version, reason), found in sorted(groups.items()):
        places = ", ".join([u.place for u in found[:3]]) + (", ..." if len(found) > 3 else "")
        lines.append(f"  {operator} ({domain or 'ai.onnx'} {version}): {reason} [{len(found)}x: {places}]")
    wanted = dict.fromkeys(w for u in unsupported for w in u.wanted)
    if wanted:
        lines.append(f"Values of these inputs are needed at import: {', '.join(wanted)}; pass them with constants={{name: array}}.")
    if sizes:
        lines.append(f"The model has the symbolic sizes {', '.join(sizes)}; fix them with shapes={{name: extent}}.")
    lines.append("Register your own converters in tunesmith.graph.importers.onnx.node.ONNX_OPERATORS.")
    return "\n".join(lines)
