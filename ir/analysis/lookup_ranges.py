"""Find inputs that a program looks rows up by, and the values that they may have."""

from __future__ import annotations

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Cast, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.stmt import BindIndex, BufferStore
from tunesmith.ir.visit import walk, walk_objects
from tunesmith.support import dtype as dt


def lookup_ranges(func: PrimFunc) -> dict[str, tuple[int, int]]:
    """The half-open interval of values of each input whose elements are indirect indices as they are, perhaps converted.

    Args:
        func: a function; extents that depend on sizes give no interval.

    Returns:
        Input name -> (0, the smallest extent that its elements index).
    """
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    found: dict[str, tuple[int, int]] = {}
    for n in walk_objects(func.body):
        if isinstance(n, (IndirectIndex, BindIndex)) and n.extent.const is not None:
            b = _loaded(n.value)
            if b is not None and b in func.params and b not in written:
                found[b.name] = (0, min(n.extent.const, found.get(b.name, (0, n.extent.const))[1]))
    return found


def _loaded(e: Expr) -> Buffer | None:
    """The buffer of integers that an expression loads an element of."""
    while type(e) is Cast and dt.is_int(e.a.dtype):
        e = e.a
    return e.buffer if type(e) is BufferLoad and dt.is_int(e.dtype) else None
