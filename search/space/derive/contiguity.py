"""Find the loops of a block that run through memory without a gap, so that they can be fused and vectorised as one."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import Access, accesses
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.poly import ONE, ZERO, Var
from tunesmith.ir.stmt import Block
from tunesmith.search.space.rules.block_classes import operands


def contiguous_suffix(b: Block, positions: Sequence[int]) -> int:
    """How many of the last iteration variables in `positions` are adjacent in memory for every access that uses one of them; at least 1."""
    count = 1
    while count < len(positions) and all(_is_contiguous(b, a, positions[-count - 1 :]) for a in accesses(b)):
        count += 1
    return count


def contiguous_last(b: Block, positions: Sequence[int]) -> list[int]:
    """The iteration variables in `positions`, those that are contiguous in an operand last."""
    contiguous: set[Var] = set()
    for o in operands(b):
        contiguous |= o.contiguous
    return sorted(positions, key=lambda n: b.iters[n].var in contiguous)


def _is_contiguous(b: Block, a: Access, positions: Sequence[int]) -> bool:
    """Whether the variables are the last dimensions of the access, or none of them is used.

    The first of them may be part of an index with step 1; the others are whole dimensions.
    """
    variables = [b.iters[n].var for n in positions]
    if not any(v in e.vars for e in a.indices for v in variables):
        return True
    if len(a.indices) < len(variables):
        return False
    tail = list(zip(a.indices, a.buffer.shape, strict=True))[-len(variables) :]
    if any(v in e.vars for e in a.indices[: -len(variables)] for v in variables):
        return False
    for n, (v, (e, size)) in enumerate(zip(variables, tail, strict=True)):
        if any(other in e.vars for other in variables if other is not v):
            return False
        if step_of(e, v) != ONE or (n and (e.as_var() is not v or size != b.iters[positions[n]].extent)):
            return False
    return a.buffer.pad == ZERO
