"""What cannot be imported of a torch model, gathered and told in one error: operator, how often, where, and what to do."""

from __future__ import annotations

import re
from typing import Any

from tunesmith.support.errors import ModelImportError

_DATA_DEPENDENT = "the shape of its result depends on data; compute a mask instead, or take it out of the model"
_RANDOM = "it draws random numbers; pass them in as an input"
_HINTS = {
    "aten.nonzero": _DATA_DEPENDENT,
    "aten.masked_select": _DATA_DEPENDENT,
    "aten.unique": _DATA_DEPENDENT,
    "aten._unique": _DATA_DEPENDENT,
    "aten._unique2": _DATA_DEPENDENT,
    "aten.item": "a number from data cannot steer shapes; keep it a tensor",
    "aten._local_scalar_dense": "a number from data cannot steer shapes; keep it a tensor",
    "aten.rand": _RANDOM,
    "aten.bernoulli": _RANDOM,
    "aten.multinomial": _RANDOM,
    "aten.native_dropout": "call model.eval() before the import",
    "aten._native_batch_norm_legit": "it computes statistics of the batch; call model.eval(), and keep track_running_stats on",
    "higher_order.while_loop": "write the loop out, or take it out of the model and call the function in a loop",
}


class UnsupportedOperators:
    """All that is wrong with one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._places: dict[tuple[str, str], list[str]] = {}
        self.cause: BaseException | None = None

    def add(self, what: str, node: Any, reason: str | None, cause: BaseException | None = None) -> None:
        """Note a fault.

        Args:
            what: the operator, or what else it is that cannot be imported.
            node: the fx node, None if it is none.
            reason: why, and what to do; None for an operator without a converter.
            cause: the error that a converter ended in.
        """
        self.cause = self.cause or cause
        self._places.setdefault((what, reason or _unknown_operator(what)), []).append("" if node is None else place(node))

    def raise_if_any(self) -> None:
        """ModelImportError that lists everything added."""
        if not self._places:
            return
        lines = [f"the torch model cannot be imported as {self.model}:"]
        for (what, reason), places in sorted(self._places.items()):
            count = f" ({len(places)} times)" if len(places) > 1 else ""
            where = f"\n      {'first ' if len(places) > 1 else ''}at {places[0]}" if places[0] else ""
            lines.append(f"  - {what}{count}: {reason}{where}")
        raise ModelImportError("\n".join(lines)) from self.cause


def place(node: Any) -> str:
    """Where a node comes from: its name, the last line of the user's own code, the module."""
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
        "there is no converter for this operator. Write the model with others, or add one:"
        f" tunesmith.graph.importers.torch.importer.TORCH_OPERATORS.register({name!r}, convert)"
    )
