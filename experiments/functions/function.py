"""Define a function to compare: a program, the same computation in torch, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith import te
from tunesmith.codegen.params import param_specs
from tunesmith.ir.function import PrimFunc
from tunesmith.ops.tensor_expression import Tensor

Shapes = Sequence[tuple[int, ...]]
ONE_SUM = 1e-3
"""Tolerance of a sum of some hundred thousand elements: one serial accumulator of float32 loses four of seven digits."""


@dataclass(frozen=True)
class Function:
    """One computation in both systems.

    Attributes:
        name: name of the function, unique in the registry.
        family: the file that defines it.
        tensors: the parameters of the program, inputs and then outputs; its arguments are sizes, all with defaults.
        torch: maps the inputs, as tensors, to the output or a tuple of outputs.
        small: sizes for tests.
        inputs: makes the inputs from a generator and their shapes; by default normal values.
        tolerance: largest difference between the systems, relative to the largest element; 0 for integers.
    """

    name: str
    family: str
    tensors: Callable[..., Sequence[Tensor]]
    torch: Callable[..., Any]
    small: tuple[int, ...]
    inputs: Callable[[np.random.Generator, Shapes], list[np.ndarray]] | None = None
    tolerance: float = 1e-4

    def build(self, *sizes: int) -> PrimFunc:
        """The unscheduled program, with its default sizes or the given ones."""
        return te.create_prim_func(self.tensors(*sizes), self.name)

    def arguments(self, func: PrimFunc, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Inputs and empty outputs for a program made by `build`."""
        specs = param_specs(func)
        shapes = [p.shape for p in specs if not p.written]
        made = [rng.standard_normal(s) for s in shapes] if self.inputs is None else self.inputs(rng, shapes)
        inputs = [np.asarray(x, p.dtype) for x, p in zip(made, [p for p in specs if not p.written], strict=True)]
        return inputs, [np.zeros(p.shape, p.dtype) for p in specs if p.written]

    def difference(self, outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
        """The largest difference of an element, relative to the largest expected element; infinite for NaN and other shapes."""
        worst = 0.0
        for got, want in zip(outputs, expected, strict=True):
            if got.shape != want.shape or not np.isfinite(got).all():
                return np.inf
            a, b = got.astype(np.float64), want.astype(np.float64)
            worst = max(worst, float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30))
        return worst


def function(torch: Callable[..., Any], small: tuple[int, ...], **options: Any) -> Callable[[Callable[..., Sequence[Tensor]]], Function]:
    """Make a Function of the decorated definition in tensor expressions; the arguments are fields of `Function`."""
    return lambda tensors: Function(tensors.__name__, tensors.__module__.rpartition(".")[2], tensors, torch, small, **options)
