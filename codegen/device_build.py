"""From scheduled functions to a program for a device: lower, print kernels, compile where there is a compiler.

CUDA C is compiled here, for the architecture of the target and without a driver; OpenCL C is compiled by the driver that runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.c_dialect import CUDA, HELPERS, OPENCL, Dialect
from tunesmith.codegen.c_kernel import PrintedKernel, print_kernels
from tunesmith.codegen.params import param_specs
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target import Target
from tunesmith.lower.passes import Pipeline
from tunesmith.lower.pipelines import GPU
from tunesmith.runtime.device_program import DeviceFunction, DeviceProgram
from tunesmith.support.errors import BuildError

DIALECTS: dict[str, Dialect] = {"cuda": CUDA, "opencl": OPENCL}

Functions = Iterable[PrimFunc] | PrimFunc | IRModule


def build(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> Artifact:
    """Compile concrete functions for a GPU.

    Args:
        funcs: a function, several, or a module; without Params and sizes.
        target: kind cuda or opencl.
        pipeline: the lowering.
    Raises:
        BuildError: a function cannot be compiled for the target.
    """
    start = time.perf_counter()
    source, functions = emit_source(funcs, target, pipeline)
    emitted = time.perf_counter()
    facts = {"lower_s": emitted - start, "source_lines": float(source.count("\n"))}
    code, resources = source.encode(), {}
    if target.base == "cuda":
        from tunesmith.codegen.cuda_nvrtc import compile_cuda  # needs a package that not everyone has

        compiled = compile_cuda(source, target.arch, ("--fmad=false",))
        code, resources = compiled.cubin, compiled.resources
        facts |= {"nvrtc_s": time.perf_counter() - emitted, "object_bytes": float(len(code))}
        facts |= {
            "registers": float(max(r.registers for r in resources.values())),
            "spill_bytes": float(sum(r.spill_bytes for r in resources.values())),
            "stack_bytes": float(max(r.stack_bytes for r in resources.values())),
            "shared_bytes": float(max(r.shared_bytes for r in resources.values())),
        }
    program = DeviceProgram(target.base, target.arch if target.base == "cuda" else "", code, tuple(functions), resources)
    return Artifact(program.to_bytes(), tuple([f.name for f in functions]), target.to_json(), facts)


def emit_source(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> tuple[str, list[DeviceFunction]]:
    """The source text of the kernels of all functions, and what calls of the functions launch.

    Raises:
        BuildError: as `build`.
    """
    if target.base not in DIALECTS:
        raise BuildError(f"device code is for {' and '.join(DIALECTS)}, not for targets of kind {target.kind}")
    dialect = DIALECTS[target.base]
    many = [funcs] if isinstance(funcs, PrimFunc) else list(funcs.values()) if isinstance(funcs, IRModule) else list(funcs)
    printed: list[PrintedKernel] = []
    functions: list[DeviceFunction] = []
    for f in many:
        kernels, workspaces = print_kernels(pipeline(f, target), target, dialect)
        printed += kernels
        sizes = tuple([b.nbytes.as_int() for b in workspaces])
        functions.append(DeviceFunction(f.name, tuple(param_specs(f)), sizes, tuple([k.launch for k in kernels])))
    text = "\n".join([k.text for k in printed])
    helpers = sorted({h for k in printed for h in k.helpers})
    halves = dialect.halves + HELPERS if "float16(" in text else ""
    return "\n".join([dialect.prelude + halves + "".join([f"{h}\n" for h in helpers]), text]), functions
