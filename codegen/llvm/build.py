"""Build an artifact from scheduled functions: lower, emit LLVM IR and entry points, compile to object code."""

from __future__ import annotations

import time

from tunesmith.codegen.artifact import Artifact, Pack
from tunesmith.codegen.cpu.functions import Functions, dynamic_shape_params, dynamic_sizes, listed, parts_of
from tunesmith.codegen.llvm.compile import compile_assembly, compile_object
from tunesmith.codegen.llvm.dynamic_shape_entry import emit_dynamic_shape_entry
from tunesmith.codegen.llvm.host import llvm_options
from tunesmith.codegen.llvm.host_entry import emit_entry
from tunesmith.codegen.llvm.kernel.function import Module, emit_kernel
from tunesmith.codegen.llvm.kernel.versions import emit_versions
from tunesmith.codegen.params import param_specs
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.passes.check_bounds import sites_of
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.size_versions import lower_versions, takes_empty, versions_of


def build(funcs: Functions, target: Target, pipeline: Pipeline = CPU, packing: str = "call") -> Artifact:
    """Compile concrete functions into one object.

    Args:
        funcs: a function, several, or a module; scheduled or not, without Params.  A function with scalar parameters is compiled for
            all their values from 1 to 2**31 - 1; calls pass them as ints after the tensors.
        target: kind llvm.
        pipeline: the lowering pipeline.
        packing: one of `cpu.functions.PACKING`, for functions with `pack_constant`.
    Raises:
        BuildError: a function cannot be compiled for the target.
    """
    start = time.perf_counter()
    functions = listed(funcs)
    names = tuple([f.name for f in functions])
    packed: dict[str, tuple[str, tuple[Pack, ...]]] = {}
    if packing != "call":
        functions = [part for f in functions for part in parts_of(f, packing, packed)]
    text, _ = emit_text(functions, target, pipeline)
    emitted = time.perf_counter()
    data = compile_object(text, llvm_options(target))
    done = time.perf_counter()
    facts = {"lower_s": emitted - start, "llvm_s": done - emitted, "ir_lines": float(text.count("\n")), "object_bytes": float(len(data))}
    return Artifact(data, names, target.to_json(), facts, packed, source=text)


def assembly(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> str:
    """The assembly that `build` would encode, for display."""
    return compile_assembly(emit_text(funcs, target, pipeline)[0], llvm_options(target))


def emit_text(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> tuple[str, list[str]]:
    """LLVM IR text of the functions and their entry points, and the functions' names."""
    functions = listed(funcs)
    module = Module(target)
    entries: list[str] = []
    declared: set[str] = set()
    for f in functions:
        sizes = dynamic_sizes(f)
        if sizes:
            params = dynamic_shape_params(f, sizes)
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
    return "\n".join([module.text(), *entries]) + "\n", [f.name for f in functions]
