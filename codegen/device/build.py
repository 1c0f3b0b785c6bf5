"""From scheduled functions to a program for a device: lower, print kernels, compile where there is a compiler.

CUDA C is compiled here, for the architecture of the target and without a driver; OpenCL C is compiled by the driver that runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
"""Of the CUDA compiler: what is to be one rounding is written as one call."""

Functions = Iterable[PrimFunc] | PrimFunc | IRModule


@dataclass(frozen=True, slots=True)
class DeviceSource:
    """Kernels as text, and what calls launch.

    Attributes:
        dialect: the language.
        kernels: of all functions, in order.
        functions: what a call of each launches.
    """

    dialect: Dialect
    kernels: tuple[PrintedKernel, ...]
    functions: tuple[DeviceFunction, ...]

    def text(self, blocks: Mapping[str, int] | None = None) -> str:
        """The source.

        Args:
            blocks: for each kernel how many blocks a multiprocessor is to hold, in CUDA C; 1 where it is not said.
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
        funcs: a function, several, or a module; without Params and sizes.
        target: kind cuda or opencl.
        pipeline: the lowering.
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
    return Artifact(program.to_bytes(), tuple([f.name for f in source.functions]), target.to_json(), facts)


def device_source(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> DeviceSource:
    """The kernels of all functions in the language of the target.

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
    return DeviceSource(dialect, tuple(printed), tuple(functions))


def emit_source(funcs: Functions, target: Target, pipeline: Pipeline = GPU) -> tuple[str, Sequence[DeviceFunction]]:
    """The source text of all functions, for people, and what their calls launch."""
    source = device_source(funcs, target, pipeline)
    return source.text(_blocks(source, target)), source.functions


def compile_kernels(source: DeviceSource, target: Target) -> CompiledCuda:
    """Compile CUDA C, so that as many blocks fit a multiprocessor as need no spilled registers.

    Estimates of registers are off by a few; a kernel that spills under its bound is compiled again under half of it.

    Raises:
        BuildError: the compiler refuses the source.
    """
    blocks = _blocks(source, target)
    while True:
        compiled = compile_cuda(source.text(blocks), target.arch, OPTIONS)
        spilling = [name for name, n in blocks.items() if n > 1 and compiled.resources[name].spill_bytes]
        if not spilling:
            return compiled
        for name in spilling:
            blocks[name] //= 2


def _blocks(source: DeviceSource, target: Target) -> dict[str, int]:
    if source.dialect.name != "cuda":
        return {}
    found = {}
    for k in source.kernels:
        x, y, z = k.launch.block
        found[k.launch.kernel] = _wanted_blocks(target, x * y * z, k.registers, k.shared_bytes)
    return found


def _resource_facts(source: DeviceSource, resources: Mapping[str, KernelResources]) -> dict[str, float]:
    """What records keep of a function's kernels: the most that one of them takes, spills of all together."""
    given = {k.launch.kernel: k.launch.shared_bytes for k in source.kernels}
    return {
        "registers": float(max(r.registers for r in resources.values())),
        "spill_bytes": float(sum(r.spill_bytes for r in resources.values())),
        "stack_bytes": float(max(r.stack_bytes for r in resources.values())),
        "shared_bytes": float(max(r.shared_bytes + given.get(name, 0) for name, r in resources.items())),
    }


def _wanted_blocks(target: Target, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks per multiprocessor to compile a kernel for: as many as fit with the estimated registers, at least one.

    With more, the compiler spills registers; with fewer, it uses registers that do not pay.
    """
    if threads > target.max_threads_per_block or shared_bytes > target.shared_memory_per_block:
        return 1
    return max(1, resident_blocks(INTEGERS, target, threads, min(registers, target.registers_per_thread), shared_bytes))
