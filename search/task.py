"""A task: one function to be tuned for one target, with its space and everything that is keyed by its digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import MeasureTask
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.search.space.rules_table import Rule, generate
from tunesmith.search.space.sketch import Space

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Task:
    """One function to tune.

    Attributes:
        name: what people call it, such as `matmul(m=512,n=512,k=512)`.
        func: the unscheduled function.
        target: where it will run.
        reference: outputs from inputs, in numpy; None compares candidates with the unscheduled program instead.
        flops: floating point operations, for rates.
        weight: how often the function occurs in what is to be fast, for the allocation of a shared budget.
        rules: the space's rules; None for those of the target's kind.
        ranges: of input values, for inputs on which the usual ones make no sense, such as divisors.
    """

    name: str
    func: PrimFunc
    target: Target
    reference: Callable[[Sequence[np.ndarray]], Arrays] | None = None
    flops: int = 0
    weight: float = 1.0
    rules: tuple[Rule, ...] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """The function's identity, equal on every machine."""
        return structural.digest(self.func)

    @cached_property
    def measured(self) -> MeasureTask:
        """The task as builders and runners see it."""
        return MeasureTask(self.func, self.space.sketches, self.reference, self.name, self.ranges)

    @cached_property
    def space(self) -> Space:
        """All sketches."""
        return generate(self.func, self.target, self.rules)
