"""Replace dynamic sizes of a function by numbers (TVM's `PrimFunc.specialize`)."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.visit import substitute
from tunesmith.support.errors import ScriptError, UserError


def sizes_of(func: PrimFunc) -> tuple[Var, ...]:
    """The dynamic sizes of a function: its scalar parameters."""
    return tuple([p for p in func.params if isinstance(p, Var)])


def specialize(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function for given sizes, which are no parameters of it any more.

    Args:
        func: a function, scheduled or not.
        sizes: size name -> number; other sizes stay dynamic.
    Raises:
        UserError: the function has no such size, or a buffer would have a negative extent or an extent divided by zero.
    """
    known = {v.name: v for v in sizes_of(func)}
    unknown = sorted(sizes.keys() - known.keys())
    if unknown:
        raise UserError(f"{func.name} has no size {', '.join(unknown)}; it has {', '.join(known) or 'no dynamic sizes'}")
    values: dict[Var, Poly] = {known[name]: poly(number) for name, number in sizes.items()}
    buffers = {b: _specialized(func, b, values, sizes) for b in func.buffers}
    return func.with_(
        params=tuple([buffers[p] if isinstance(p, Buffer) else p for p in func.params if p not in values]),
        allocs=tuple([buffers[b] for b in func.allocs]),
        body=substitute(func.body, values, {b: new for b, new in buffers.items() if new is not b}),
    )


def _specialized(func: PrimFunc, b: Buffer, values: Mapping[Var, Poly], sizes: Mapping[str, int]) -> Buffer:
    given = ", ".join(f"{name} = {number}" for name, number in sizes.items())
    try:
        changed = [substitute_poly(e, values) for e in b.sizes]
    except ScriptError as error:
        raise UserError(f"{func.name} is not defined for {given}: the shape of {b.name}: {error}") from None
    negative = next((old for old, e in zip(b.shape, changed, strict=False) if e.const is not None and e.const < 0), None)
    if negative is not None:
        raise UserError(f"{func.name} is not defined for {given}: the extent {negative} of {b.name} is negative. Give another size")
    return b if all(x == y for x, y in zip(changed, b.sizes, strict=True)) else b.with_sizes(changed)
