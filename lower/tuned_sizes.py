"""Name the sizes that a schedule of a function with dynamic shapes was tuned for, and the function that is measured for them."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.specialize import specialize
from tunesmith.lower.size_ranges import SizeRanges

SIZES = "sizes"
"""Attribute of a measured function: its records are not those of a function that has these shapes only."""


@dataclass(frozen=True, slots=True)
class TunedSizes:
    """The sizes of a function with dynamic shapes that a record is for.

    Attributes:
        function: digest of that function; the workload of the record is its `measured_function`.
        box: the sizes.
    """

    function: str
    box: SizeRanges

    def to_json(self) -> dict[str, object]:
        """The field `sizes` of a record."""
        return {"function": self.function, "ranges": self.box.to_json()}


def measured_function(func: PrimFunc, box: SizeRanges) -> PrimFunc:
    """A function with dynamic shapes for the largest sizes of a box, which is measured for the whole box.

    Raises:
        UserError: the function has no such size, or a shape is not defined for the ends of the box.
    """
    specialize(func, {name: low for name, low, _ in box.ranges})
    made = specialize(func, box.last)
    return made.with_(attrs=tuple(sorted([*made.attrs, (SIZES, f"{box} of {structural.digest(func)}")])))
