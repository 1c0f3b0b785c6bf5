"""Propagate another form of tensors (another layout, fewer dimensions) through a graph: base class of such passes.

Operators that a pass supports are computed on converted values.  The original value is the inverse conversion of the converted one;
if all users take the converted value, dead_code removes the inverse conversion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Operand, Region, TensorType
from tunesmith.graph.ir.rewrite import Rewriter


class LayoutRewriter(Rewriter, ABC):
    """A rewriter with a table of converted values.

    Attributes:
        converted: operand -> the operand in the other form.
    """

    def __init__(self) -> None:
        super().__init__()
        self.converted: dict[Operand, Operand] = {}

    @abstractmethod
    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        """Convert an operand to the other form."""

    @abstractmethod
    def inverse(self, converted: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        """Convert an operand in the other form to a value of this type."""

    def convert(self, o: Operand, build: RegionBuilder) -> Operand:
        """The operand in the other form; it is converted at most once."""
        if o not in self.converted:
            self.converted[o] = self.forward(o, build)
        return self.converted[o]

    def restore(self, converted: Operand, type: TensorType, build: RegionBuilder) -> list[Operand]:
        """The original value of an operand computed in the other form, as `visit` returns it."""
        value = self.inverse(converted, type, build)
        self.converted[value] = converted
        return [value]

    def _region(self, region: Region) -> Region:
        """Rewrite a region; values converted inside are discarded at its end."""
        outside = dict(self.converted)
        out = super()._region(region)
        self.converted = outside
        return out
