"""Collect the unsupported operators of a torch model and report them in one error: operator, count, location, remedy."""

from __future__ import annotations

import re
from typing import Any

from tunesmith.support.errors import ModelImportError

_DATA_DEPENDENT = "the shape of its result depends on data; compute a mask instead, or remove it from the model"
_RANDOM = "it draws random numbers; pass them in as an input"
_COMPLEX = "its elements are complex numbers; compute real and imaginary parts, a transform as products with cosines and sines"
_HINTS = {
    "aten.unique": _DATA_DEPENDENT,
    "aten._unique": _DATA_DEPENDENT,
    "aten.rand": _RANDOM,
    "aten.bernoulli": _RANDOM,
    "aten.multinomial": _RANDOM,
    "aten._fft_r2c": _COMPLEX,
    "aten._fft_c2c": _COMPLEX,
    "aten._fft_c2r": _COMPLEX,
    "aten.complex": _COMPLEX,
    "aten.polar": _COMPLEX,
}


class UnsupportedOperators:
    """The unsupported operators of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._locations: dict[tuple[str, str], list[str]] = {}
        self.cause: BaseException | None = None

    def add(self, what: str, node: Any, reason: str | None, cause: BaseException | None = None) -> None:
        """Record an unsupported operator.

        Args:
            what: operator name, or another unsupported part of the model.
            node: fx node, or None.
            reason: why it is unsupported and what to do; None for an operator without a converter.
            cause: error raised in the converter.
        """
        self.cause = self.cause or cause
        self._locations.setdefault((what, reason or _unknown_operator(what)), []).append("" if node is None else location(node))

    @property
    def any(self) -> bool:
        """Whether an operator is recorded."""
        return bool(self._locations)

    def raise_if_any(self) -> None:
        """Raise a ModelImportError that lists all recorded operators, if there are any."""
        if not self._locations:
            return
        lines = [f"the torch model cannot be imported as {self.model}:"]
        for (what, reason), locations in sorted(self._locations.items()):
            count = f" ({len(locations)} times)" if len(locations) > 1 else ""
            where = f"\n      {'first ' if len(locations) > 1 else ''}at {locations[0]}" if locations[0] else ""
            lines.append(f"  - {what}{count}: {reason}{where}")
        raise ModelImportError("\n".join(lines)) from self.cause


def location(node: Any) -> str:
    """Location of a node: its name, the innermost line of user code, its module."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', node.meta.get("stack_trace") or "")
    source = f" ({frames[-1][0]}:{frames[-1][1]} in {frames[-1][2]})" if frames else ""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = f", module {stack[-1][0]}" if stack and stack[-1][0] else ""
    return f"node {node.name}{source}{module}"


def _unknown_operator(name: str) -> str:
    for start, hint in _HINTS.items():
        if name == start or name.startswith(start + ".") or (hint is _RANDOM and name.startswith(start)):
            return hint
    return (
        "there is no converter for this operator. Use other operators in the model, or add a converter:"
        f" tunesmith.graph.importers.torch.importer.TORCH_OPERATORS.register({name!r}, convert)"
    )
