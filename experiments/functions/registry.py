"""List the functions of all families."""

from __future__ import annotations

from importlib import import_module

from tunesmith.experiments.functions.function import Function

FAMILIES = ("reductions", "norms", "softmax", "pooling", "attention", "products", "convolutions", "images", "gathers")
"""The files of `torch_pairs`, in the order of the list."""


def _functions() -> dict[str, Function]:
    modules = [import_module(f"tunesmith.experiments.functions.torch_pairs.{family}") for family in FAMILIES]
    found = [f for m in modules for f in vars(m).values() if isinstance(f, Function)]
    return {f.name: f for f in found}


FUNCTIONS = _functions()
"""The functions by name."""
