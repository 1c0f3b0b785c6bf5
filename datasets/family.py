"""The operator family of a workload, from its name: what a model must not have learned from when it is judged on new operators."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"_[0-9]+$")


def family(name: str) -> str:
    """`conv2d` of `conv2d(n=1,...)`; `fused_conv2d_add` of `net/fused_conv2d_add_2`, as tasks of models are called: several functions of
    the same operators differ in a number at the end, and functions of several models in what is before the slash."""
    if name.endswith(")"):
        return name.partition("(")[0]
    return _NUMBERED.sub("", name.rpartition("/")[2]) or name
