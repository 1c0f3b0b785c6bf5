"""Prepare functions for the code generators of CPUs: list them, hoist their packing, describe dynamic shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tunesmith.codegen.artifact import Pack
from tunesmith.codegen.params import check_scope, param_spec, written_buffers
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Poly, Var
from tunesmith.ir.script.printer import script
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.support.errors import BuildError

PACKING = ("call", "ahead", "both")
"""Where constants are packed: in each call, as scheduled; ahead of the calls, by separate functions; or both, at the caller's choice."""

Functions = Iterable[PrimFunc] | PrimFunc | IRModule


@dataclass(frozen=True, slots=True)
class DynamicShapeParam:
    """One tensor argument, like `runtime.checker.param_spec.ParamSpec`, with extents that are expressions of sizes."""

    name: str
    dtype: str
    shape: tuple[Poly, ...]
    written: bool = False

    def __str__(self) -> str:
        """`float32[n, 64]`, as in error messages."""
        extents = [script(e) if e.const is None else str(e) for e in self.shape]
        return f"{self.dtype}[{', '.join(extents)}]"


def listed(funcs: Functions) -> list[PrimFunc]:
    return [funcs] if isinstance(funcs, PrimFunc) else list(funcs.values()) if isinstance(funcs, IRModule) else list(funcs)


def parts_of(func: PrimFunc, packing: str, packed: dict[str, tuple[str, tuple[Pack, ...]]]) -> list[PrimFunc]:
    """The functions to compile for a function; its packed form is recorded in `packed`."""
    hoisted = hoist_constant_packing(func)
    if hoisted is None or len(hoisted.main.params) != len(func.params):  # versions with different copies pack in their calls
        return [func]
    specs = {at: param_spec(hoisted.main, hoisted.main.params[at], False) for at in hoisted.positions}
    packs = [Pack(p.name, at, specs[at]) for p, at in zip(hoisted.packers, hoisted.positions, strict=True)]
    packed[func.name] = hoisted.main.name, tuple(packs)
    return [*([func] if packing == "both" else []), hoisted.main, *hoisted.packers]


def dynamic_sizes(func: PrimFunc) -> list[Var]:
    """Dynamic sizes, which follow the buffers; empty if a parameter is a Param, which `param_specs` refuses."""
    sizes = [p for p in func.params if isinstance(p, Var)]
    if not sizes or any(isinstance(v, Param) for v in sizes):
        return []
    buffers = len(func.params) - len(sizes)
    for p in func.params[:buffers]:
        if isinstance(p, Var):
            raise BuildError(f"{func.name}: parameter {p!r} has no constant shape and precedes a buffer; sizes must follow the buffers")
    return sizes


def dynamic_shape_params(func: PrimFunc, sizes: list[Var]) -> list[DynamicShapeParam]:
    written = written_buffers(func)
    out: list[DynamicShapeParam] = []
    for p in func.params:
        if isinstance(p, Buffer):
            check_scope(func, p)
            for v in sorted({v for e in p.shape for v in e.vars} - set(sizes), key=lambda v: v.key):
                raise BuildError(f"{func.name}: parameter {p!r} has no constant shape; {v} is not a parameter: add it after the buffers")
            out.append(DynamicShapeParam(p.name, p.dtype, p.shape, p in written))
    return out
