"""Make the search space of a function with dynamic shapes for a range of its sizes.

The space is that of the function for the largest sizes of the range.  A sketch belongs to it if its steps also apply to the function with
dynamic sizes: the tuned schedule is replayed there, and its loops get guards for the other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.specialize import sizes_of
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import version_for
from tunesmith.lower.tuned_sizes import TunedSizes
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import Constraint
from tunesmith.search.space.sketch import Sketch, Space
from tunesmith.support.errors import BuildError, UserError


@dataclass(frozen=True)
class DynamicSizes:
    """A function with dynamic shapes, and a box of its sizes.

    Attributes:
        func: the unscheduled function with dynamic shapes.
        box: a range for each of its sizes.
    """

    func: PrimFunc
    box: SizeRanges

    @cached_property
    def tuned(self) -> TunedSizes:
        """The sizes as records hold them."""
        return TunedSizes(structural.digest(self.func), self.box)

    @cached_property
    def version(self) -> PrimFunc | None:
        """The unscheduled function for the sizes of the box; None if they are single numbers."""
        made = version_for(self.func, self.box)
        return made if sizes_of(made) else None

    def applicable(self, space: Space) -> Space:
        """The sketches of `measured_function` that apply to all sizes of the box, with the constraints that they have there.

        Raises:
            BuildError: no sketch applies.
        """
        func = version_for(self.func, self.box)
        sketches: list[Sketch] = []
        refused: list[str] = []
        for sketch in space.sketches:
            try:
                sketches.append(_constrained(sketch, func))
            except UserError as error:
                refused.append(f"{sketch.name!r} does not apply for {self.box}: {error.args[0].splitlines()[0]}")
        if not sketches:
            raise BuildError(
                f"no schedule of {self.func.name} applies to all sizes {self.box} ({'; '.join(refused[:3])}). "
                "Tune it for single sizes, such as n=16,64,128"
            )
        return replace(space, sketches=tuple(sketches), refused=(*space.refused, *refused))


def _constrained(sketch: Sketch, func: PrimFunc) -> Sketch:
    """The sketch with the constraints of its trace on another function.  UserError if a step does not apply to it."""
    s = Schedule(func, parametric=True)
    for instruction in sketch.trace.instructions:
        apply_instruction(s, instruction, None)
    values: dict[Var, Poly] = {a: poly(b) for a, b in zip(s.params, sketch.params, strict=True)}
    constraints = dict.fromkeys(sketch.constraints)
    constraints |= dict.fromkeys([Constraint(c.kind, substitute(c.expr, values), c.label) for c in s.constraints])
    return sketch if len(constraints) == len(sketch.constraints) else replace(sketch, constraints=tuple(constraints))
