"""Build device programs from scheduled functions: lower, print kernels, compile CUDA C.

CUDA C is compiled here for the target architecture, without a driver; OpenCL C is compiled by the driver at load time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.c.dialect import CUDA, HELPERS, OPENCL, Dialect
from tunesmith.codegen.c.kernel import PrintedKernel, print_kernels
from tunesmith.codegen.cuda.nvrtc import CompiledCuda, compile_cuda
from tunesmith.codegen.params import param_specs
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.occupancy import INTEGERS, resident_blocks
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import GPU
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, KernelResources
from tunesmith.support.errors import BuildError

DIALECTS: dict[str, Dialect] = {"cuda": CUDA, "opencl": OPENCL}

OPTIONS = ("--fmad=false",)
"""Options of the CUDA compiler: no contraction, because a fused multiply-add is written as an explicit call."""
UNCERTAIN = 24
"""Registers that a kernel takes at most in addition to the estimate (docs/design/006-gpu.md)."""
IN_PARALLEL = ("--split-compile=0",)
"""Further options of sources with several kernels, which all processors compile; the code does not depend on their number."""

Functions = Iterable[PrimFunc] | PrimFunc | IRModule


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """Kernels as text, and the launches of each function.

    Attributes:
        dialect: the language.
        kernels: the kernels of all functions, in order.
        functions: the launches of each function.
    """

    dialect: Dialect
    kernels: tuple[PrintedKernel, ...]
    functions: tuple[DeviceFunction, ...]

    def text(self, blocks: Mapping[str, int] | None = None) -> str:
        """The source text.

        Args:
            blocks: minimum blocks per multiprocessor of each kernel, in CUDA C; 1 if not given.
        """
        body = "\n".join([k.text for k in self.kernels])
        helpers = sorted({h for k in self.kernels for h in k.helpers})
        used = body + "".join(helpers)
        halves = self.dialect.halves + HELPERS if "float16(" in used else ""
        names = {k.blocks_macro: (blocks or {}).get(k.launch.kernel, 1) for k in self.kernels if self.dialect.name == "cuda"}
        head = "".join([f"#define {name} {n}\n" for name, n in names.items()])
        return f"{head}{self.dialect.prelude}{halves}{''.join([f'{h}{chr(10)}' for h in helpers])}\n{body}"


def build(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> Artifact:
    """Compile concrete functions for a GPU.

    Args:
        funcs: one function, several, or a module; without Params and size parameters.
        target: kind cuda or opencl.
        pipeline: the lowering pipeline.
    Raises:
        BuildError: a function cannot be compiled for the target.
    """
    start = time.perf_counter()
    source = device_source(funcs, target, pipeline)
    emitted = time.perf_counter()
    code, resources = source.text().encode(), {}
    facts = {"lower_s": emitted - start, "source_lines": float(code.count(b"\n"))}
    arch = ""
    if target.base == "cuda":
        compiled, arch = compile_kernels(source, target), target.arch
        code, resources = compiled.cubin, compiled.resources
        facts |= {"nvrtc_s": time.perf_counter() - emitted, "object_bytes": float(len(code)), **_resource_facts(source, resources)}
    program = DeviceProgram(target.base, arch, code, source.functions, resources)
    described = target.to_json() | ({"host": target.host.to_json()} if target.has_host else {})
    return Artifact(program.to_bytes(), tuple([f.name for f in source.functions]), described, facts, source=source.text())


def device_source(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> DeviceSource:
    """The kernels of all functions in the language of the target.

    Raises:
        BuildError: as for `build`.
    """
    if target.base not in DIALECTS:
        raise BuildError(f"device code is generated for {' and '.join(DIALECTS)}, not for targets of kind {target.kind}")
    dialect = DIALECTS[target.base]
    listed = [funcs] if isinstance(funcs, PrimFunc) else list(funcs.values()) if isinstance(funcs, IRModule) else list(funcs)
    printed: list[PrintedKernel] = []
    functions: list[DeviceFunction] = []
    for f in listed:
        kernels, workspaces = print_kernels(pipeline(f, target), target, dialect)
        printed += kernels
        sizes = tuple([b.nbytes.as_int() for b in workspaces])
        functions.append(DeviceFunction(f.name, tuple(param_specs(f)), sizes, tuple([k.launch for k in kernels])))
    return DeviceSource(dialect, tuple(printed), tuple(functions))


def emit_source(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> tuple[str, Sequence[DeviceFunction]]:
    """The source text of all functions, for display, and their launches."""
    source = device_source(funcs, target, pipeline)
    return source.text(_blocks(source, target)), source.functions


def compile_kernels(source: DeviceSource, target: Target) -> CompiledCuda:
    """Compile CUDA C for the highest occupancy without register spills.

    Register estimates are inexact; a kernel that spills is compiled again for half as many blocks per multiprocessor.

    Raises:
        BuildError: the compiler rejects the source.
    """
    blocks = _blocks(source, target)
    while True:
        compiled = compile_cuda(source.text(blocks), target.arch, (*OPTIONS, *(IN_PARALLEL if len(blocks) > 1 else ())))
        spilling = [name for name, n in blocks.items() if n > 1 and compiled.resources[name].spill_bytes]
        if not spilling:
            return compiled
        for name in spilling:
            blocks[name] //= 2


def may_spill(func: PrimFunc, target: Target) -> bool:
    """Whether a kernel of the function may not fit the registers of its threads, even with one block on a multiprocessor."""
    source = device_source(func, target)
    threads = [(k.registers, prod(k.launch.block)) for k in source.kernels]
    return any(n + UNCERTAIN > min(target.registers_per_thread, target.registers_per_sm // t) for n, t in threads)


def _blocks(source: DeviceSource, target: Target) -> dict[str, int]:
    if source.dialect.name != "cuda":
        return {}
    found = {}
    for k in source.kernels:
        x, y, z = k.launch.block
        found[k.launch.kernel] = _wanted_blocks(target, x * y * z, k.registers, k.shared_bytes)
    return found


def _resource_facts(source: DeviceSource, resources: Mapping[str, KernelResources]) -> dict[str, float]:
    """Resource facts for records: the maximum over kernels, and the sum of their spills."""
    given = {k.launch.kernel: k.launch.shared_bytes for k in source.kernels}
    return {
        "registers": float(max(r.registers for r in resources.values())),
        "spill_bytes": float(sum(r.spill_bytes for r in resources.values())),
        "stack_bytes": float(max(r.stack_bytes for r in resources.values())),
        "shared_bytes": float(max(r.shared_bytes + given.get(name, 0) for name, r in resources.items())),
    }


def _wanted_blocks(target: Target, threads: int, registers: int, shared_bytes: int) -> int:
    """Minimum blocks per multiprocessor of a kernel: as many as fit with the estimated registers, at least one.

    A larger value makes the compiler spill registers; a smaller one lets it use registers without benefit.
    """
    if threads > target.max_threads_per_block or shared_bytes > target.shared_memory_per_block:
        return 1
    return max(1, resident_blocks(INTEGERS, target, threads, min(registers, target.registers_per_thread), shared_bytes))
