"""Warn of patterns of names that match no operand of a model, which are misspelled usually."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Constant, all_bindings, used
from tunesmith.support.caller import stacklevel
from tunesmith.support.nearest_name import did_you_mean

_LISTED = 8
"""Names of weights in a message."""


class PatternWarning(UserWarning):
    """A pattern of names that matches nothing."""


def warn_unmatched(funcs: Iterable[GraphFunc], patterns: Iterable[str], option: str) -> None:
    """Issue a PatternWarning for each pattern that matches no operand.

    Args:
        funcs: the functions of the model.
        patterns: patterns as those of `fnmatch`.
        option: the option that they were given for, for the message.
    """
    operands = list(dict.fromkeys(o for f in funcs for b in all_bindings(f.body) for o in used(b.operation)))
    weights = [o.name for o in operands if isinstance(o, Constant) and o.data.ndim > 1]
    end = ", ..." if len(weights) > _LISTED else "."
    listed = f" Weights: {', '.join(weights[:_LISTED])}{end}" if weights else ""
    for pattern in patterns:
        if not any(fnmatchcase(o.name, pattern) for o in operands):
            message = f"{option}: no name matches the pattern {pattern!r}.{did_you_mean(pattern, weights)}{listed}"
            warnings.warn(message, PatternWarning, stacklevel=stacklevel())
