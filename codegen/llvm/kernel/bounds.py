"""Emit LLVM IR that raises an IndexError for failed index checks of `lower.passes.check_bounds`.

The text is part of entry points.  The entry passes the kernel three int64 after the caller's arrays.  If the kernel has stored the number
of a site there, the entry raises `<function>: <site> is <index>, and the extent is <extent>` through TVM-FFI, in the same way as the
argument checker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.lower.passes.check_bounds import REPORT_ITEMS
from tunesmith.runtime.checker.ir_text import c_string

_SHARED = "tunesmith.bounds"


def bounds_report() -> list[str]:
    """Instructions that allocate an empty report, `%report`."""
    lines = [f"  %report = alloca [{REPORT_ITEMS} x i64], align 8"]
    for k in range(REPORT_ITEMS):
        lines += [f"  %item{k} = getelementptr i64, ptr %report, i64 {k}", f"  store i64 0, ptr %item{k}"]
    return lines


def emit_bounds(name: str, sites: Sequence[str], declared: set[str]) -> tuple[list[str], str]:
    """Constants and a function `i32 f(ptr report)`, which returns 0, or -1 with the error raised; and the name of the function.

    Args:
        name: exported name of the function.
        sites: texts of the sites, numbered from 1.
        declared: global names already in the module text.
    """
    prefix = f"tunesmith.{name}.bounds"
    lines: list[str] = []
    if _SHARED not in declared:
        declared.add(_SHARED)
        lines += [
            c_string(f"@{_SHARED}.class", "IndexError"),
            c_string(f"@{_SHARED}.colon", ": "),
            c_string(f"@{_SHARED}.format", " is %lld, and the extent is %lld: out of bounds"),
        ]
        for text in ("i32 @snprintf(ptr, i64, ptr, ...)", "void @TVMFFIErrorSetRaisedFromCStrParts(ptr, ptr, i32)"):
            lines.append(f"declare {text}")
    lines.append(c_string(f'@"{prefix}.name"', name))
    lines += [c_string(f'@"{prefix}.{i}"', site) for i, site in enumerate(sites)]
    table = ", ".join([f'ptr @"{prefix}.{i}"' for i in range(len(sites))])
    lines.append(f'@"{prefix}.sites" = private unnamed_addr constant [{len(sites)} x ptr] [{table}]')
    text = f"""define internal i32 @"{prefix}"(ptr %report) cold noinline nounwind {{
entry:
  %text = alloca [128 x i8], align 16
  %parts = alloca [4 x ptr], align 16
  %number = load i64, ptr %report
  %fine = icmp eq i64 %number, 0
  br i1 %fine, label %done, label %raise
raise:
  %value.p = getelementptr i64, ptr %report, i64 1
  %value = load i64, ptr %value.p
  %extent.p = getelementptr i64, ptr %report, i64 2
  %extent = load i64, ptr %extent.p
  %at = sub i64 %number, 1
  %site.p = getelementptr ptr, ptr @"{prefix}.sites", i64 %at
  %site = load ptr, ptr %site.p
  %wrote = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 128, ptr @{_SHARED}.format, i64 %value, i64 %extent)
  store ptr @"{prefix}.name", ptr %parts
  %part1 = getelementptr ptr, ptr %parts, i64 1
  store ptr @{_SHARED}.colon, ptr %part1
  %part2 = getelementptr ptr, ptr %parts, i64 2
  store ptr %site, ptr %part2
  %part3 = getelementptr ptr, ptr %parts, i64 3
  store ptr %text, ptr %part3
  call void @TVMFFIErrorSetRaisedFromCStrParts(ptr @{_SHARED}.class, ptr %parts, i32 4)
  br label %done
done:
  %status = phi i32 [ 0, %entry ], [ -1, %raise ]
  ret i32 %status
}}"""
    return [*lines, *text.split("\n")], f'@"{prefix}"'
