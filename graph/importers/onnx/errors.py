"""What stands in the way of importing an ONNX model, all of it in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.support.errors import ModelImportError


@dataclass(frozen=True)
class Unsupported:
    """A node that cannot be imported.

    Attributes:
        operator: its type.
        domain: of the operator; "" is ONNX's own.
        version: of the operator set.
        reason: one sentence.
        place: which node.
        wanted: inputs of the model whose values would have to be known.
        cause: the error that a converter ended in, None if it refused.
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
        name: of the model's graph.
        unsupported: every node that stands in the way.
        sizes: symbolic dimensions that could be fixed.
    """

    def __init__(self, name: str, unsupported: Sequence[Unsupported], sizes: Sequence[str] = ()) -> None:
        super().__init__(_listed(name, unsupported, sizes))
        self.unsupported = tuple(unsupported)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Inputs of the model that would help if their values were given with `constants=`."""
        return tuple(dict.fromkeys(name for u in self.unsupported for name in u.wanted))


def _listed(name: str, unsupported: Sequence[Unsupported], sizes: Sequence[str]) -> str:
    groups: dict[tuple[str, str, int, str], list[Unsupported]] = {}
    for u in unsupported:
        groups.setdefault((u.domain, u.operator, u.version, u.reason), []).append(u)
    lines = [f"the ONNX graph {name!r} cannot be imported; unsupported:"]
    for (domain, operator, version, reason), found in sorted(groups.items()):
        places = ", ".join([u.place for u in found[:3]]) + (", ..." if len(found) > 3 else "")
        lines.append(f"  {operator} ({domain or 'ai.onnx'} {version}): {reason} [{len(found)}x: {places}]")
    wanted = dict.fromkeys(w for u in unsupported for w in u.wanted)
    if wanted:
        lines.append(f"Values of these inputs are needed at import: {', '.join(wanted)}; give them with constants={{name: array}}.")
    if sizes:
        lines.append(f"The model has the symbolic sizes {', '.join(sizes)}; they are fixed with shapes={{name: extent}}.")
    lines.append("A converter of your own is registered with tunesmith.graph.importers.onnx.node.ONNX_OPERATORS.")
    return "\n".join(lines)
