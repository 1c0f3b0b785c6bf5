"""Twins: the base of passes that compute part of a graph on another form of its tensors (another layout, fewer dimensions).

A value that is worth it gets a twin, itself in the other form.  Operators that a pass knows are computed on twins, and the value
itself is the twin brought back: where all users take the twin, nobody needs the way back, and dead_code drops it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Operand, Region, TensorType
from tunesmith.graph.ir.rewrite import Rewriter


class LayoutRewriter(Rewriter, ABC):
    """A rewriter that remembers the twins of values.

    Attributes:
        twins: operand -> its twin, where one was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.twins: dict[Operand, Operand] = {}

    @abstractmethod
    def forward(self, o: Operand, build: RegionBuilder) -> Operand:
        """The operand in the other form."""

    @abstractmethod
    def inverse(self, twin: Operand, type: TensorType, build: RegionBuilder) -> Operand:
        """The value of this type from its twin."""

    def twin(self, o: Operand, build: RegionBuilder) -> Operand:
        """The operand in the other form, made once."""
        if o not in self.twins:
            self.twins[o] = self.forward(o, build)
        return self.twins[o]

    def back(self, twin: Operand, type: TensorType, build: RegionBuilder) -> list[Operand]:
        """The value of a twin that was computed, as `visit` returns it."""
        value = self.inverse(twin, type, build)
        self.twins[value] = twin
        return [value]

    def _region(self, region: Region) -> Region:
        """Twins that are made inside a region are not known behind it."""
        outside = dict(self.twins)
        out = super()._region(region)
        self.twins = outside
        return out
