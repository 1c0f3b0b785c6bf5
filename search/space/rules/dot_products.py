"""Schedule contractions of bytes and of bfloat16 on CPUs by dot-product instructions, in the nests of `contraction`.

The register tile consists of vectors of the instruction, and the operand whose groups fill the lanes is packed.
"""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.search.space.rules.contraction import Named, candidate, named
from tunesmith.search.space.rules.contraction import plans as plans_of
from tunesmith.search.space.rules.dot_instruction import dot_of


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules for a function with exactly one contraction that an instruction of the target computes; none for others."""
    found = candidate(func, target) if target.base == "llvm" else None
    dot = None if found is None else dot_of(found.main, target)
    if found is None or dot is None:
        return []
    return named(found, plans_of(func, found, target, dot.vector, dot), target)
