"""List the functions of all families."""

from __future__ import annotations

from tunesmith.experiments.functions.function import Function
from tunesmith.experiments.functions.torch_pairs import (
    attention,
    convolutions,
    gathers,
    images,
    norms,
    pooling,
    products,
    reductions,
    softmax,
)

FAMILIES = (reductions, norms, softmax, pooling, attention, products, convolutions, images, gathers)
FUNCTIONS: dict[str, Function] = {f.name: f for family in FAMILIES for f in vars(family).values() if isinstance(f, Function)}
"""The functions by name."""
