"""Describe a tuning task: one function, one target, the search space and the digest that identifies its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import MeasureTask
from tunesmith.measure.evaluator.argument_data import Range
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.space.dynamic_sizes import DynamicSizes
from tunesmith.search.space.rules_table import Rule, generate
from tunesmith.search.space.sketch import Space

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Task:
    """One function to tune.

    Attributes:
        name: display name, such as `matmul(m=512,n=512,k=512)`.
        func: the unscheduled function.
        target: the target it is compiled for.
        reference: computes the outputs from the inputs in numpy; None compares candidates with the unscheduled program instead.
        flops: arithmetic operations, to compute rates (`ir.analysis.operation_count`); 0 for no rate.
        weight: occurrences of the function in the tuned program, used to allocate a shared budget.
        rules: sketch rules of the space; None for those of the target's kind.
        ranges: value ranges of inputs for which the default range is unsuitable, such as divisors.
        sizes: of a function with dynamic shapes, the sizes to tune for.  `func` is the function for the largest of them; the space has the
            sketches that apply to all of them.
        error_growth: largest growth of rounding errors of sketches, relative to direct sums.
        in_loop: see `MeasureTask`.
    """

    name: str
    func: PrimFunc
    target: Target
    reference: Callable[[Sequence[np.ndarray]], Arrays] | None = None
    flops: int = 0
    weight: float = 1.0
    rules: tuple[Rule, ...] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)
    sizes: DynamicSizes | None = None
    error_growth: float = ERROR_GROWTH
    in_loop: bool = False

    @cached_property
    def digest(self) -> str:
        """Structural digest of the function, equal on every machine."""
        return structural.digest(self.func)

    @cached_property
    def measured(self) -> MeasureTask:
        """The task in the form that builders and runners take."""
        made = MeasureTask(self.func, self.space.sketches, self.reference, self.name, self.ranges, in_loop=self.in_loop)
        return made if self.sizes is None else replace(made, sizes=self.sizes.tuned, version=self.sizes.version)

    def use(self, space: Space) -> None:
        """Take the search space, generated elsewhere from an equal task."""
        self.__dict__["space"] = space

    @property
    def has_space(self) -> bool:
        """Whether the search space is generated."""
        return "space" in self.__dict__

    @cached_property
    def space(self) -> Space:
        """The search space: all sketches of the function."""
        space = generate(self.func, self.target, self.rules, self.error_growth)
        return space if self.sizes is None else self.sizes.applicable(space)
