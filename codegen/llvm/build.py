"""Build an artifact from scheduled functions: lower, emit LLVM IR and entry points, compile to object code."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tunesmith.codegen.artifact import Artifact, Pack
from tunesmith.codegen.llvm.compile import compile_assembly, compile_object
from tunesmith.codegen.llvm.dynamic_shape_entry import DynamicShapeParam, emit_dynamic_shape_entry
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.codegen.llvm.kernel.function import Module, emit_kernel
from tunesmith.codegen.llvm.kernel.versions import emit_versions
from tunesmith.codegen.params import check_scope, param_spec, param_specs, written_buffers
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.passes.check_bounds import sites_of
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.size_versions import lower_versions, takes_empty, versions_of
from tunesmith.support.errors import BuildError

PACKING = ("call", "ahead", "both")
"""Where constants are packed: in each call, as scheduled; ahead of the calls, by separate functions; or both, at the caller's choice."""

Functions = Iterable[PrimFunc] | PrimFunc | IRModule


def build(funcs: Functions, target: Target, pipeline: Pipeline = CPU, packing: str = "call") -> Artifact:
    """Compile concrete functions into one object.

    Args:
        funcs: a function, several, or a module; scheduled or not, without Params.  A function with scalar parameters is compiled for
            all their values from 1 to 2**31 - 1; calls pass them as ints after the tensors.
        target: kind llvm.
        pipeline: the lowering pipeline.
        packing: one of `PACKING`, for functions with `pack_constant`.
    Raises:
        BuildError: a function cannot be compiled for the target.
    """
    start = time.perf_counter()
    listed = _listed(funcs)
    names = tuple([f.name for f in listed])
    packed: dict[str, tuple[str, tuple[Pack, ...]]] = {}
    if packing != "call":
        listed = [part for f in listed for part in _parts(f, packing, packed)]
    text, _ = emit_text(listed, target, pipeline)
    emitted = time.perf_counter()
    data = compile_object(text, llvm_options(target))
    done = time.perf_counter()
    facts = {"lower_s": emitted - start, "llvm_s": done - emitted, "ir_lines": float(text.count("\n")), "object_bytes": float(len(data))}
    return Artifact(data, names, target.to_json(), facts, packed)


def _listed(funcs: Functions) -> list[PrimFunc]:
    return [funcs] if isinstance(funcs, PrimFunc) else list(funcs.values()) if isinstance(funcs, IRModule) else list(funcs)


def _parts(func: PrimFunc, packing: str, packed: dict[str, tuple[str, tuple[Pack, ...]]]) -> list[PrimFunc]:
    """The functions to compile for a function; its packed form is recorded in `packed`."""
    hoisted = hoist_constant_packing(func)
    if hoisted is None or len(hoisted.main.params) != len(func.params):  # versions with different copies pack in their calls
        return [func]
    specs = {at: param_spec(hoisted.main, hoisted.main.params[at], False) for at in hoisted.positions}
    packs = [Pack(p.name, at, specs[at]) for p, at in zip(hoisted.packers, hoisted.positions, strict=True)]
    packed[func.name] = hoisted.main.name, tuple(packs)
    return [*([func] if packing == "both" else []), hoisted.main, *hoisted.packers]


def assembly(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> str:
    """The assembly that `build` would encode, for display."""
    return compile_assembly(emit_text(funcs, target, pipeline)[0], llvm_options(target))


def emit_text(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> tuple[str, list[str]]:
    """LLVM IR text of the functions and their entry points, and the functions' names."""
    listed = _listed(funcs)
    module = Module(target)
    entries: list[str] = []
    declared: set[str] = set()
    for f in listed:
        sizes = _sizes(f)
        if sizes:
            params = _dynamic_shape_params(f, sizes)
            versions, rest = lower_versions(f, target, pipeline)
            kernel = emit_versions(versions, rest, module)
            sites = sites_of(rest)
            entries.append(
                emit_dynamic_shape_entry(
                    f.name, kernel.name, params, sizes, declared, module.declares, sites, kernel.detail, takes_empty(versions_of(f)[1])
                )
            )
        else:
            specs = param_specs(f)
            lowered = pipeline(f, target)
            kernel = emit_kernel(lowered, module)
            refusal = kernel.detail if kernel.refuses else None
            entries.append(emit_entry(f.name, kernel.name, specs, declared, sites_of(lowered), refusal))
    return "\n".join([module.text(), *entries]) + "\n", [f.name for f in listed]


def _sizes(func: PrimFunc) -> list[Var]:
    """Dynamic sizes, which follow the buffers; empty if a parameter is a Param, which `param_specs` refuses."""
    sizes = [p for p in func.params if isinstance(p, Var)]
    if not sizes or any(isinstance(v, Param) for v in sizes):
        return []
    buffers = len(func.params) - len(sizes)
    for p in func.params[:buffers]:
        if isinstance(p, Var):
            raise BuildError(f"{func.name}: parameter {p!r} has no constant shape and precedes a buffer; sizes must follow the buffers")
    return sizes


def _dynamic_shape_params(func: PrimFunc, sizes: list[Var]) -> list[DynamicShapeParam]:
    written = written_buffers(func)
    out: list[DynamicShapeParam] = []
    for p in func.params:
        if isinstance(p, Buffer):
            check_scope(func, p)
            for v in sorted({v for e in p.shape for v in e.vars} - set(sizes), key=lambda v: v.key):
                raise BuildError(f"{func.name}: parameter {p!r} has no constant shape; {v} is not a parameter: add it after the buffers")
            out.append(DynamicShapeParam(p.name, p.dtype, p.shape, p in written))
    return out
