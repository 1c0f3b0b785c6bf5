"""Tensors whose memory does not hold their values: torch marks some of them as to be negated (the imaginary part of a conjugate), and
neither DLPack nor an address says so.  Every place that takes an array of a caller asks here.
"""

from __future__ import annotations

from typing import Any

from tunesmith.support.errors import RunError


class _Markable(dict[type, bool]):
    """Whether values of a type may bear the mark; each type is looked at once, as the question comes with every call."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = callable(getattr(kind, "is_neg", None)) and hasattr(kind, "resolve_neg")
        return found


MARKABLE = _Markable()
"""By type of a value.  What is so has the method `is_neg`."""


def is_negated(value: Any) -> bool:
    """Whether the values of a tensor are the negatives of what its memory holds."""
    return MARKABLE[type(value)] and bool(value.is_neg())


def negation(where: str, value: object) -> RunError:
    """The refusal of such a tensor; `where` ends the sentence's beginning, such as `relu: argument 0`."""
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return RunError(f"{where}: the values of this {kind} are the negatives of what its memory holds. Call .resolve_neg() first")
