"""Keep the inactive lanes of masked vectors harmless."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.codegen.llvm.text import literal, llvm_type, vector_literal
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


def with_inactive_ones(e: Expr, value: str, mask: Callable[[Poly, int], str], emit: Callable[[str], str]) -> str:
    """A divisor with ones in the lanes that its masked loads set to zero.

    LLVM 22 takes 0 / 0 for 0 (zero lanes of FDIV in TargetLowering::SimplifyDemandedVectorElts), and drops a select that excludes it.

    Args:
        e: the divisor.
        value: its LLVM value.
        mask: returns the mask of a number of active lanes.
        emit: appends an instruction and returns its value.
    """
    lanes = dt.lanes(e.dtype)
    if lanes == 1:
        return value
    loads = [x for x in walk_objects(e) if type(x) is BufferLoad and x.lanes == lanes and x.mask is not None]
    for count in dict.fromkeys(n for x in loads if (n := active_lanes(x.mask, lanes)) is not None):
        ones = vector_literal([literal(1.0, e.dtype)] * lanes, llvm_type(dt.element(e.dtype)))
        value = emit(f"select <{lanes} x i1> {mask(count, lanes)}, {llvm_type(e.dtype)} {value}, {llvm_type(e.dtype)} {ones}")
    return value
