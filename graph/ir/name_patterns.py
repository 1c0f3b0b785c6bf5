"""Warn of patterns of names that match no operand of a contraction of a model, which are misspelled usually."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, all_bindings
from tunesmith.support.caller import stacklevel
from tunesmith.support.nearest_name import did_you_mean

_CONTRACTIONS = ("conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "einsum", "matmul")
_LISTED = 8
"""Names of weights in a message."""


class PatternWarning(UserWarning):
    """A pattern of names that matches nothing."""


def warn_unmatched(funcs: Iterable[GraphFunc], patterns: Iterable[str], option: str) -> None:
    """Issue a PatternWarning for each pattern that matches no operand of a contraction, with the names of weights.

    Args:
        funcs: the functions of the model.
        patterns: patterns as those of `fnmatch`.
        option: the option that they were given for, for the message.
    """
    operands = [o for f in funcs for o in _contracted(f)]
    weights = [o.name for o in operands if isinstance(o, Constant) and o.data.ndim > 1]
    end = ", ..." if len(weights) > _LISTED else "."
    listed = f" Weights: {', '.join(weights[:_LISTED])}{end}" if weights else ""
    for pattern in patterns:
        if not any(fnmatchcase(o.name, pattern) for o in operands):
            message = f"{option}: no name matches the pattern {pattern!r}.{did_you_mean(pattern, weights)}{listed}"
            warnings.warn(message, PatternWarning, stacklevel=stacklevel())


def _contracted(func: GraphFunc) -> list[Operand]:
    """The operands of contractions, in order, also those whose axes are permuted or reshaped before."""
    found: dict[Operand, None] = {}
    for b in reversed(list(all_bindings(func.body))):
        op = b.operation
        if not isinstance(op, Call):
            continue
        moves = op.operator in ("permute_dims", "reshape") and b.results[0] in found
        if moves or op.operator in _CONTRACTIONS:
            found.update(dict.fromkeys(reversed(op.args)))
    return list(reversed(found))
