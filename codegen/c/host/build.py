"""Build an artifact from scheduled functions: lower, print C and entry points, compile to object code."""

from __future__ import annotations

import time

from tunesmith.codegen.artifact import Artifact, Pack
from tunesmith.codegen.c.compiler import compile_c, compile_c_assembly
from tunesmith.codegen.c.host.entry import Entries
from tunesmith.codegen.c.host.kernel import print_kernel
from tunesmith.codegen.c.host.module import LOADED, CModule
from tunesmith.codegen.c.host.versions import print_versions
from tunesmith.codegen.cpu.functions import Functions, dynamic_shape_params, dynamic_sizes, listed, parts_of
from tunesmith.codegen.cpu.required_features import needed_flags
from tunesmith.codegen.params import param_specs
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.passes.check_bounds import sites_of
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.size_versions import lower_versions, takes_empty, versions_of
from tunesmith.runtime.processor import needs_symbol


def build(funcs: Functions, target: Target, pipeline: Pipeline = CPU, packing: str = "call") -> Artifact:
    """Compile concrete functions into one object with the C compiler of this machine; arguments as those of `codegen.llvm.build.build`.

    Raises:
        BuildError: a function cannot be compiled for the target, or there is no C compiler.
    """
    start = time.perf_counter()
    functions = listed(funcs)
    names = tuple([f.name for f in functions])
    packed: dict[str, tuple[str, tuple[Pack, ...]]] = {}
    if packing != "call":
        functions = [part for f in functions for part in parts_of(f, packing, packed)]
    source, entries = _print(functions, target, pipeline)
    text = _whole(source, entries, target)
    printed = time.perf_counter()
    data = compile_c(text, target, ", ".join(names))
    done = time.perf_counter()
    facts = {"lower_s": printed - start, "cc_s": done - printed, "c_lines": float(text.count("\n")), "object_bytes": float(len(data))}
    return Artifact(data, names, target.to_json(), facts, packed, source=source)


def assembly(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> str:
    """The assembly that `build` would encode, for display."""
    return compile_c_assembly(print_object(funcs, target, pipeline), target, ", ".join(f.name for f in listed(funcs)))


def print_source(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> str:
    """The C text of the kernels, for people: without entry points."""
    return _print(funcs, target, pipeline)[0]


def print_object(funcs: Functions, target: Target, pipeline: Pipeline = CPU) -> str:
    """The C text of the kernels and their entry points."""
    return _whole(*_print(funcs, target, pipeline), target)


def required(target: Target) -> list[str]:
    """The definition of a symbol that names the instruction sets of the code, which loaders check."""
    flags = needed_flags(target)
    return [f'__attribute__((weak)) const char tunesmith_needs __asm__("{needs_symbol(flags)}") = 0;'] if flags else []


def _whole(source: str, entries: str, target: Target) -> str:
    return "\n".join([source, entries, *required(target), ""])


def _print(funcs: Functions, target: Target, pipeline: Pipeline) -> tuple[str, str]:
    """The C text of the kernels, and of their entry points."""
    module = CModule(target)
    entries = Entries(module.prelude)
    for f in listed(funcs):
        sizes = dynamic_sizes(f)
        if sizes:
            params = dynamic_shape_params(f, sizes)
            versions, rest = lower_versions(f, target, pipeline)
            kernel = print_versions(versions, rest, module)
            entries.add_dynamic(f.name, kernel, params, sizes, sites_of(rest), takes_empty(versions_of(f)[1]))
        else:
            specs = param_specs(f)
            lowered = pipeline(f, target)
            entries.add(f.name, print_kernel(lowered, module), specs, sites_of(lowered))
    return module.text(LOADED), entries.text()
