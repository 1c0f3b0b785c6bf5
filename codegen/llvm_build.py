"""From scheduled functions to an artifact: lower, emit, compile."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.llvm_compile import compile_assembly, compile_object
from tunesmith.codegen.llvm_function import Module, emit_kernel
from tunesmith.codegen.llvm_host import llvm_options
from tunesmith.codegen.llvm_host_entry import emit_entry
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target import Target
from tunesmith.ir.visit import walk_objects
from tunesmith.lower.passes import Pipeline
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.param_spec import ParamSpec
from tunesmith.support.errors import BuildError


def build(funcs: Iterable[PrimFunc] | PrimFunc | IRModule, target: Target, pipeline: Pipeline = CPU) -> Artifact:
    """Compile concrete functions into one object.

    Args:
        funcs: a function, several, or a module; scheduled or not, without Params.
        target: kind llvm.
        pipeline: the lowering.
    Raises:
        BuildError: a function cannot be compiled for the target.
    """
    start = time.perf_counter()
    text, names = emit_text(funcs, target, pipeline)
    emitted = time.perf_counter()
    data = compile_object(text, llvm_options(target))
    done = time.perf_counter()
    facts = {"lower_s": emitted - start, "llvm_s": done - emitted, "ir_lines": float(text.count("\n")), "object_bytes": float(len(data))}
    return Artifact(data, tuple(names), target.to_json(), facts)


def assembly(funcs: Iterable[PrimFunc] | PrimFunc | IRModule, target: Target, pipeline: Pipeline = CPU) -> str:
    """The assembly of what `build` makes, for people."""
    return compile_assembly(emit_text(funcs, target, pipeline)[0], llvm_options(target))


def emit_text(funcs: Iterable[PrimFunc] | PrimFunc | IRModule, target: Target, pipeline: Pipeline = CPU) -> tuple[str, list[str]]:
    """LLVM IR text of the functions and their entry points, and the functions' names."""
    many = [funcs] if isinstance(funcs, PrimFunc) else list(funcs.values()) if isinstance(funcs, IRModule) else list(funcs)
    module = Module(target)
    entries: list[str] = []
    declared: set[str] = set()
    for f in many:
        specs = param_specs(f)
        kernel = emit_kernel(pipeline(f, target), module)
        entries.append(emit_entry(f.name, kernel, specs, declared))
    return module.text() + "\n".join(entries) + "\n", [f.name for f in many]


def param_specs(func: PrimFunc) -> list[ParamSpec]:
    """What the arguments of a function must be."""
    written = {n.buffer for n in walk_objects(func.body) if type(n) is BufferStore}
    out: list[ParamSpec] = []
    for p in func.params:
        if not isinstance(p, Buffer) or any(e.const is None for e in p.shape):
            raise BuildError(f"{func.name}: parameter {p!r} has no constant shape; bind symbolic sizes before building")
        out.append(ParamSpec(p.name, p.dtype, tuple([e.as_int() for e in p.shape]), p in written))
    return out
