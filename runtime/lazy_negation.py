"""Refuse torch tensors with a lazy negation, whose memory holds the negated values.

torch sets a negation bit on some tensors (the imaginary part of a conjugate), which neither DLPack nor an address carries.  Every
function that accepts arrays of callers checks it here.
"""

from __future__ import annotations

from typing import Any

from tunesmith.support.errors import RunError


class _SupportsNegation(dict[type, bool]):
    """Type -> whether its values may have a negation bit; cached, because every call checks it."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = callable(getattr(kind, "is_neg", None)) and hasattr(kind, "resolve_neg")
        return found


MARKABLE = _SupportsNegation()
"""Type of a value -> whether it has the method `is_neg`."""


def is_negated(value: Any) -> bool:
    """Whether the values of a tensor are the negatives of its memory contents."""
    return MARKABLE[type(value)] and bool(value.is_neg())


def negation(where: str, value: object) -> RunError:
    """The error for such a tensor; `where` is the prefix of the message, for example `relu: argument 0`."""
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return RunError(f"{where}: the values of this {kind} are the negatives of its memory contents. Call .resolve_neg() first")
