"""Derive the operator family of a workload from its name, for splits that test models on unseen operators."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"_[0-9]+$")


def family(name: str) -> str:
    """`conv2d` for `conv2d(n=1,...)`; `fused_conv2d_add` for `net/fused_conv2d_add_2`, a task of a model.

    Functions of the same operators differ in a trailing number, and functions of different models in the prefix before the slash.
    """
    if name.endswith(")"):
        return name.partition("(")[0]
    return _NUMBERED.sub("", name.rpartition("/")[2]) or name
