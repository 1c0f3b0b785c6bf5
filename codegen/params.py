"""Derive parameter specifications of functions, for entry points and launches of any backend."""

from __future__ import annotations

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk_objects
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import BuildError


def param_specs(func: PrimFunc) -> list[ParamSpec]:
    """Specifications of all parameters of a function.

    Raises:
        BuildError: a shape is not constant.
    """
    written = written_buffers(func)
    return [param_spec(func, p, p in written) for p in func.params]


def param_spec(func: PrimFunc, p: Buffer | Var, written: bool) -> ParamSpec:
    """Specification of one parameter.  Raises BuildError as `param_specs` does."""
    if not isinstance(p, Buffer) or any(e.const is None for e in p.shape):
        raise BuildError(f"{func.name}: parameter {p!r} has no constant shape; bind symbolic sizes before building")
    check_scope(func, p)
    return ParamSpec(p.name, p.dtype, tuple([e.as_int() for e in p.shape]), written)


def check_scope(func: PrimFunc, p: Buffer) -> None:
    """Refuse a parameter that is not in global memory, or not dense like the arrays of a caller."""
    if p.pad.const != 0 or p.align:
        found = f"align={[*map(tuple, p.align)]}" if p.align else f"pad={p.pad}"
        raise BuildError(f"{func.name}: parameter {p.name} has {found}; arrays of a caller have no padding: pad allocations only")
    if p.scope != "global":
        raise BuildError(f"{func.name}: parameter {p.name} is in scope {p.scope}; arrays of a caller are in global memory")


def written_buffers(func: PrimFunc) -> set[Buffer]:
    """The buffers that a function stores to."""
    return {n.buffer for n in walk_objects(func.body) if type(n) is BufferStore}
