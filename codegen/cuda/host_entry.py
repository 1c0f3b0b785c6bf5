"""Emit `__tvm_ffi_<name>` of CUDA functions in LLVM IR: check every argument, launch on the caller's stream.

A function is a list of launches, so its entry is a list of stores and calls; the common code is in `codegen.cuda.host_launcher`.  The
result is one object with the cubin inside, whose only symbols are the entry points:

    begin(signature, args, num_args, addresses, workspace, call)      addresses of the parameters; the workspace is in `call`
    addresses[params + j] = workspace + offset j
    pointers[i] = &addresses[argument i]; launch(call, kernel, grid, block, shared bytes, pointers)     for each launch
    end(call, status)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tunesmith.codegen.cpu.entry_points import begin_entry
from tunesmith.codegen.cuda.host_launcher import CALL, launcher_text
from tunesmith.codegen.llvm.compile import compile_object
from tunesmith.codegen.llvm.host import LlvmOptions, generic_options
from tunesmith.codegen.llvm.host_entry import emit_signature
from tunesmith.runtime.device.array import ALIGNMENT
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram
from tunesmith.support.errors import BuildError

_APART = 256
"""Alignment of each workspace in bytes, as in CUDA allocations."""


def compile_entries(program: DeviceProgram, options: LlvmOptions | None = None) -> bytes:
    """An object with a CUDA program and an entry point for each of its functions; equal programs give equal bytes.

    Args:
        program: of kind cuda.
        options: of the host's processor; by default those of the generic processor of this machine.
    Raises:
        BuildError: the program is for another kind of device, a name is not an identifier, or two functions have the same name.
    """
    return compile_object(emit_cuda_entries(program), options or generic_options())


def emit_cuda_entries(program: DeviceProgram) -> str:
    """LLVM IR text of the module.  Raises BuildError as `compile_entries` does."""
    if program.kind != "cuda":
        raise BuildError(f"entry points with launches are generated for programs of kind cuda, not {program.kind}")
    kernels: dict[str, int] = {}
    for launch in [x for f in program.functions for x in f.launches]:
        kernels[launch.kernel] = max(kernels.get(launch.kernel, 0), launch.shared_bytes)
    numbers = {name: i for i, name in enumerate(kernels)}
    declared: set[str] = set()
    entries = [_entry(f, numbers, declared) for f in program.functions]
    pooled = any(_offsets(f.workspaces)[-1] for f in program.functions)
    return "\n".join([launcher_text(program.arch, program.code, kernels, pooled), *entries])


def _entry(function: DeviceFunction, kernels: dict[str, int], declared: set[str]) -> str:
    entry = begin_entry(function.name, declared)
    constants, signature = emit_signature(function.name, function.params, ALIGNMENT)
    *offsets, workspace = _offsets(function.workspaces)
    given = len(function.params)
    most = max((len(x.arguments) for x in function.launches), default=0)
    lines = [
        *constants,
        f'define i32 @"{entry}"(ptr %self, ptr %args, i32 %num_args, ptr %result) nounwind {{',
        "entry:",
        f"  %addresses = alloca [{max(1, given + len(offsets))} x i64], align 16",
        f"  %pointers = alloca [{max(1, most)} x ptr], align 16",
        f"  %call = alloca {CALL}, align 16",
        f"  %begun = call i32 @tunesmith.begin(ptr {signature}, ptr %args, i32 %num_args, ptr %addresses, i64 {workspace}, ptr %call)",
        "  %ready = icmp eq i32 %begun, 0",
        "  br i1 %ready, label %run, label %refused",
        "run:",
        f"  %workspace.p = getelementptr {CALL}, ptr %call, i64 0, i32 2",
        "  %workspace = load i64, ptr %workspace.p",
    ]
    for i in range(given + len(offsets)):
        lines.append(f"  %a{i} = getelementptr i64, ptr %addresses, i64 {i}")
    for j, offset in enumerate(offsets):
        lines += [f"  %w{j} = add i64 %workspace, {offset}", f"  store i64 %w{j}, ptr %a{given + j}"]
    lines += [f"  %p{i} = getelementptr ptr, ptr %pointers, i64 {i}" for i in range(most)]
    lines += ["  br label %launch0"]
    for n, launch in enumerate(function.launches):
        extents = ", ".join(f"i32 {x}" for x in (*launch.grid, *launch.block, launch.shared_bytes))
        lines += [
            f"launch{n}:",
            *[f"  store ptr %a{argument}, ptr %p{i}" for i, argument in enumerate(launch.arguments)],
            f"  %code{n} = call i32 @tunesmith.launch(ptr %call, i64 {kernels[launch.kernel]}, {extents}, ptr %pointers)",
            f"  %good{n} = icmp eq i32 %code{n}, 0",
            f"  br i1 %good{n}, label %launch{n + 1}, label %end",
        ]
    failed = "".join(f", [ %code{n}, %launch{n} ]" for n in range(len(function.launches)))
    lines += [
        f"launch{len(function.launches)}:",
        "  br label %end",
        "end:",
        f"  %code = phi i32 [ 0, %launch{len(function.launches)} ]{failed}",
        "  %status = call i32 @tunesmith.end(ptr %call, i32 %code)",
        "  ret i32 %status",
        "refused:",
        "  ret i32 -1",
        "}",
        "",
    ]
    return "\n".join(lines)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Offsets of workspaces of these sizes in one allocation, followed by its total size."""
    return list(accumulate([-(-size // _APART) * _APART for size in sizes], initial=0))
