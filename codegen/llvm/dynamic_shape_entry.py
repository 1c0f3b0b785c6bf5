"""Emit host entry points for dynamic shapes as LLVM IR; `codegen.llvm.host_entry` has those for constant shapes.

The entry reads the sizes, computes the extents of every tensor from them with overflow checks, and calls the argument checker of
`runtime.checker.size_checker` on the resulting table.  The kernel runs only if all tensors match, so that it stays within their memory
for all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.cpu.entry_points import begin_entry, dlpack_dtype
from tunesmith.codegen.cpu.functions import DynamicShapeParam
from tunesmith.codegen.llvm.kernel.bounds import bounds_report, emit_bounds
from tunesmith.codegen.llvm.sizes import CheckedSizes
from tunesmith.ir.poly import Var
from tunesmith.runtime.checker.argument_checker import PARAM
from tunesmith.runtime.checker.ir_text import c_string
from tunesmith.runtime.checker.size_checker import CHECK_POSITIVE_SIZES, CHECK_SIZES, CHECK_TENSORS, MAX_SIZES, REFUSE, SIZE_SIGNATURE
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import BuildError


def emit_dynamic_shape_entry(
    name: str,
    kernel: str,
    params: Sequence[DynamicShapeParam],
    sizes: Sequence[Var],
    declared: set[str],
    declares: set[str],
    sites: Sequence[str] | None = None,
    refusal: str = "",
    takes_empty: bool = True,
) -> str:
    """LLVM IR text of the entry point of one kernel.

    Args:
        name: exported name of the function.
        kernel: global name of `i64 kernel(ptr, ..., i64, ...)`: a data pointer for each parameter, then the sizes; it returns 0, or the
            size of a failed allocation in bytes.
        params: specifications of the tensors.
        sizes: the ints that follow them.
        declared: see `codegen.llvm.host_entry.emit_entry`.
        declares: receives the required declarations, which are module text and not part of the result.
        sites: index checks of the kernel, if it takes a report after the tensors: see `codegen.llvm.kernel.bounds`.
        refusal: further text for the error if the kernel refused to run.
        takes_empty: the kernel takes size 0; otherwise the entry refuses it.
    Raises:
        BuildError: the name is not an identifier, is emitted twice into one module, or there are too many sizes.
    """
    if len(sizes) > MAX_SIZES:
        raise BuildError(f"{name}: a function has at most {MAX_SIZES} sizes, got {len(sizes)}")
    entry = begin_entry(name, declared)
    check_sizes = CHECK_SIZES if takes_empty else CHECK_POSITIVE_SIZES
    declares |= {
        f"declare i32 @{check_sizes}(ptr, ptr, i32, ptr)",
        f"declare i32 @{CHECK_TENSORS}(ptr, ptr, ptr, ptr, ptr)",
    }
    if REFUSE not in declared:  # entries for constant shapes declare it too
        declared.add(REFUSE)
        declares.add(f"declare i32 @{REFUSE}(ptr, ptr, i64, ptr)")
    checked = CheckedSizes({v: f"%z{j}" for j, v in enumerate(sizes)}, "x", declares)
    fill = _table(name, params, checked)
    constants, signature = _signature(name, params, sizes)
    extents = sum(len(p.shape) for p in params)
    checks, outside = ([], "") if not sites else emit_bounds(name, sites, declared)
    lines = [
        *constants,
        *checks,
        c_string(f'@"tunesmith.{name}.refusal"', refusal),
        f'define i32 @"{entry}"(ptr %self, ptr %args, i32 %num_args, ptr %result) nounwind {{',
        "entry:",
        f"  %sizes = alloca [{len(sizes)} x i64], align 8",
        f"  %extents = alloca [{max(1, extents)} x i64], align 8",
        f"  %params = alloca [{max(1, len(params))} x {PARAM}], align 8",
        f"  %addresses = alloca [{max(1, len(params))} x ptr], align 8",
        f"  %counted = call i32 @{check_sizes}(ptr {signature}, ptr %args, i32 %num_args, ptr %sizes)",
        "  %sized = icmp eq i32 %counted, 0",
        "  br i1 %sized, label %measure, label %done",
        "measure:",
    ]
    for j in range(len(sizes)):
        lines += [f"  %size{j} = getelementptr i64, ptr %sizes, i64 {j}", f"  %z{j} = load i64, ptr %size{j}"]
    lines += [
        *checked.lines,
        f"  br i1 {checked.bad}, label %refuse, label %check",
        "check:",
        *fill,
        f"  %status = call i32 @{CHECK_TENSORS}(ptr {signature}, ptr %params, ptr %args, ptr %sizes, ptr %addresses)",
        "  %good = icmp eq i32 %status, 0",
        "  br i1 %good, label %run, label %done",
        "run:",
    ]
    for i in range(len(params)):
        lines += [f"  %slot{i} = getelementptr ptr, ptr %addresses, i64 {i}", f"  %p{i} = load ptr, ptr %slot{i}"]
    pointers = [f"ptr %p{i}" for i in range(len(params))] + ["ptr %report"] * (sites is not None)
    arguments = ", ".join([*pointers, *[f"i64 %z{j}" for j in range(len(sizes))]])
    lines += [
        *(bounds_report() if sites is not None else []),
        f'  %wanted = call i64 @"{kernel}"({arguments})',
        *([f"  %inside = call i32 {outside}(ptr %report)"] if sites else []),
        "  %ran = icmp eq i64 %wanted, 0",
        "  br i1 %ran, label %done, label %refuse",
        "refuse:",
        "  %bytes = phi i64 [ -1, %measure ], [ %wanted, %run ]",
        f'  %refused = call i32 @{REFUSE}(ptr {signature}, ptr %sizes, i64 %bytes, ptr @"tunesmith.{name}.refusal")',
        "  br label %done",
        "done:",
        f"  %code = phi i32 [ %counted, %entry ], [ %status, %check ], [ {'%inside' if sites else 0}, %run ], [ %refused, %refuse ]",
        "  ret i32 %code",
        "}",
        "",
    ]
    return "\n".join(lines)


def _table(name: str, params: Sequence[DynamicShapeParam], checked: CheckedSizes) -> list[str]:
    """Instructions that fill `%params` and `%extents`; the instructions that compute the values are added to `checked`."""
    prefix = f"tunesmith.{name}."
    lines: list[str] = []
    first = 0
    for i, p in enumerate(params):
        extents = [checked.value(e) for e in p.shape]
        size = dtypes.nbytes(p.dtype)
        nbytes = checked.product([str(size), *extents])
        lines.append(f"  %shape{i} = getelementptr i64, ptr %extents, i64 {first}")
        for d, extent in enumerate(extents):
            lines += [f"  %at{i}.{d} = getelementptr i64, ptr %shape{i}, i64 {d}", f"  store i64 {extent}, ptr %at{i}.{d}"]
        first += len(extents)
        fields = (
            f'ptr @"{prefix}{i}.name"',
            f'ptr @"{prefix}{i}.expected"',
            f"ptr %shape{i}",
            f"i32 {len(extents)}",
            f"i32 {dlpack_dtype(p.dtype)}",
            f"i64 {nbytes}",
            f"i64 {size}",
            f"i64 {int(p.written)}",
        )
        for k, value in enumerate(fields):
            lines += [
                f"  %field{i}.{k} = getelementptr {PARAM}, ptr %params, i64 {i}, i32 {k}",
                f"  store {value}, ptr %field{i}.{k}",
            ]
    return lines


def _signature(name: str, params: Sequence[DynamicShapeParam], sizes: Sequence[Var]) -> tuple[list[str], str]:
    """Constants for the argument checks, and the name of the one that refers to all of them."""
    prefix = f"tunesmith.{name}."
    usage = f"{name}({', '.join([*(f'{p.name}: {p}' for p in params), *(f'{v.name}: int' for v in sizes)])})"
    lines = [c_string(f'@"{prefix}function"', name), c_string(f'@"{prefix}usage"', usage)]
    for i, p in enumerate(params):
        lines += [c_string(f'@"{prefix}{i}.name"', p.name), c_string(f'@"{prefix}{i}.expected"', str(p))]
    lines += [c_string(f'@"{prefix}size{j}"', v.name) for j, v in enumerate(sizes)]
    masks = [sum(1 << j for j, v in enumerate(sizes) if any(v in e.vars for e in p.shape)) for p in params]
    names = ", ".join(f'ptr @"{prefix}size{j}"' for j in range(len(sizes)))
    uses = f"[{', '.join(f'i64 {mask}' for mask in masks)}]" if masks else "zeroinitializer"
    lines += [
        f'@"{prefix}sizes" = private unnamed_addr constant [{len(sizes)} x ptr] [{names}]',
        f'@"{prefix}uses" = private unnamed_addr constant [{len(params)} x i64] {uses}',
        f'@"{prefix}signature" = private unnamed_addr constant {SIZE_SIGNATURE} {{ ptr @"{prefix}function", i32 {len(params)}, ptr null, '
        f'ptr @"{prefix}usage", i32 {len(sizes)}, ptr @"{prefix}sizes", ptr @"{prefix}uses" }}',
    ]
    return lines, f'@"{prefix}signature"'
