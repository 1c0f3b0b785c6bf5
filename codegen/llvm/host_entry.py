"""Emit host entry points as LLVM IR: `__tvm_ffi_<name>`, which checks every argument and calls the kernel.

The entry has the safe-call signature of TVM-FFI, `int (void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result)`.  Its
parameter specifications are constant data, a signature, read by the argument checker of `runtime.checker.argument_checker`.  An entry
takes about a millisecond of compile time, and needs libtvm_ffi and libc at run time, so that an exported library runs without tunesmith.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.cpu.entry_points import begin_entry, dlpack_dtype
from tunesmith.codegen.llvm.kernel.bounds import bounds_report, emit_bounds
from tunesmith.runtime.checker.argument_checker import CHECKER, PARAM, SIGNATURE
from tunesmith.runtime.checker.ir_text import c_string
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.checker.size_checker import REFUSE
from tunesmith.support import dtype as dtypes


def emit_entry(
    name: str,
    kernel: str,
    params: Sequence[ParamSpec],
    declared: set[str] | None = None,
    sites: Sequence[str] | None = None,
    refusal: str | None = None,
) -> str:
    """LLVM IR text of the entry point of one kernel, to be joined to the text that defines the kernel.

    Args:
        name: exported name of the function, as in `module[name]`; a C identifier.
        kernel: global name of `void kernel(ptr, ptr, ...)`, one data pointer for each parameter, in order.
        params: specifications of the arguments.
        declared: global names already in the module text.  Missing declarations are emitted and added, so that entries of one module
            share them: pass the same set for each.  None starts an empty one, and the text is self-contained.
        sites: index checks of the kernel, if it takes a report after the parameters: see `codegen.llvm.kernel.bounds`.
        refusal: for a kernel that may refuse to run and returns an i64 (`codegen.llvm.kernel.function.Kernel`): further text for the
            error.
    Returns:
        Text that defines `__tvm_ffi_<name>`; its private constants start with `tunesmith.`.
    Raises:
        BuildError: the name is not an identifier, or is emitted twice into one module.
    """
    declared = set() if declared is None else declared
    entry = begin_entry(name, declared)
    constants, signature = emit_signature(name, params)
    lines = [] if CHECKER in declared else [f"declare i32 @{CHECKER}(ptr, ptr, i32, ptr)"]
    declared.add(CHECKER)
    checks, outside = ([], "") if not sites else emit_bounds(name, sites, declared)
    lines += [
        *checks,
        *constants,
        f'define i32 @"{entry}"(ptr %self, ptr %args, i32 %num_args, ptr %result) nounwind {{',
        f"  %addresses = alloca [{max(1, len(params))} x ptr], align 8",
        f"  %status = call i32 @{CHECKER}(ptr {signature}, ptr %args, i32 %num_args, ptr %addresses)",
        "  %good = icmp eq i32 %status, 0",
        "  br i1 %good, label %run, label %done",
        "run:",
    ]
    for i in range(len(params)):
        lines += [f"  %slot{i} = getelementptr ptr, ptr %addresses, i64 {i}", f"  %p{i} = load ptr, ptr %slot{i}"]
    arguments = ", ".join([f"ptr %p{i}" for i in range(len(params))] + ["ptr %report"] * (sites is not None))
    if sites is not None:
        lines += bounds_report()
    if refusal is None:
        lines += [f'  call void @"{kernel}"({arguments})']
    else:
        lines += [
            f'  %refused = call i64 @"{kernel}"({arguments})',
            "  %ran = icmp eq i64 %refused, 0",
            "  br i1 %ran, label %finish, label %refuse",
            "refuse:",
            f'  %raised = call i32 @{REFUSE}(ptr {signature}, ptr null, i64 %refused, ptr @"tunesmith.{name}.refusal")',
            "  ret i32 %raised",
            "finish:",
        ]
        lines.insert(0, c_string(f'@"tunesmith.{name}.refusal"', refusal))
        if REFUSE not in declared:
            declared.add(REFUSE)
            lines.insert(0, f"declare i32 @{REFUSE}(ptr, ptr, i64, ptr)")
    lines += [f"  %inside = call i32 {outside}(ptr %report)", "  ret i32 %inside"] if sites else ["  br label %done"]
    lines += ["done:", "  ret i32 %status", "}", ""]
    return "\n".join(lines)


def emit_signature(name: str, params: Sequence[ParamSpec], alignment: int | None = None) -> tuple[list[str], str]:
    """Constants of the parameter specifications for the checker, and the name of the one that refers to all of them.

    Args:
        name: name of the function.
        params: specifications of the arguments.
        alignment: alignment of their addresses, a power of two; by default the size of an element.
    """
    prefix = f"tunesmith.{name}."
    usage = f"{name}({', '.join(f'{p.name}: {p}' for p in params)})"
    lines = [c_string(f'@"{prefix}function"', name), c_string(f'@"{prefix}usage"', usage)]
    rows = []
    for i, param in enumerate(params):
        align = alignment or dtypes.nbytes(param.dtype)
        lines += [
            c_string(f'@"{prefix}{i}.name"', param.name),
            c_string(f'@"{prefix}{i}.expected"', str(param)),
            f'@"{prefix}{i}.shape" = private unnamed_addr constant [{len(param.shape)} x i64] '
            + (f"[{', '.join(f'i64 {extent}' for extent in param.shape)}]" if param.shape else "zeroinitializer"),
        ]
        rows.append(
            f'{PARAM} {{ ptr @"{prefix}{i}.name", ptr @"{prefix}{i}.expected", ptr @"{prefix}{i}.shape", i32 {len(param.shape)}, '
            f"i32 {dlpack_dtype(param.dtype)}, i64 {param.nbytes}, i64 {align}, i64 {int(param.written)} }}"
        )
    table = f"[{', '.join(rows)}]" if rows else "zeroinitializer"
    lines += [
        f'@"{prefix}params" = private unnamed_addr constant [{len(rows)} x {PARAM}] {table}',
        f'@"{prefix}signature" = private unnamed_addr constant {SIGNATURE} {{ ptr @"{prefix}function", i32 {len(params)}, '
        f'ptr @"{prefix}params", ptr @"{prefix}usage" }}',
    ]
    return lines, f'@"{prefix}signature"'
