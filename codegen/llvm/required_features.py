"""Name the instruction sets that an object needs in a symbol of it, and ask for the permission that tile registers need."""

from __future__ import annotations

from collections.abc import Collection

from tunesmith.ir.target.cpus import cpuinfo_flag
from tunesmith.ir.target.target import Target
from tunesmith.runtime.processor import needs_symbol
from tunesmith.support.tile_permission import ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA

_CHECKED = frozenset(
    "sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c bmi bmi2 avxvnni avx512f avx512bw avx512dq avx512vl avx512cd avx512vnni avx512bf16 "
    "avx512fp16".split()
)
"""Instruction sets that code may use without a check of its own."""


def required_features(target: Target, features: Collection[str]) -> list[str]:
    """Definitions in LLVM IR: the symbol that lists the instruction sets of x86 that the code may use, and the features that it does use;
    with tile registers also a function that asks for the permission.

    Args:
        target: the target of the code.
        features: features that the code uses beyond those of vectors, as LLVM spells them.
    """
    flags = [cpuinfo_flag(f) for f in (target.features & _CHECKED).union(features)]
    symbol = [f'@"{needs_symbol(flags)}" = weak_odr constant i8 0'] if flags else []
    return [*symbol, *_permission(features)]


def _permission(features: Collection[str]) -> list[str]:
    """A function that asks Linux for the permission to use tile registers when a library is loaded, for programs without tunesmith.

    Objects that are loaded into this process have it from `runtime/processor.py`, which says so if the kernel refuses.
    """
    if "amx-tile" not in features:
        return []
    numbers = ", ".join([f"i64 {n}" for n in (ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)])
    return [
        "declare i64 @syscall(i64, ...)",
        f"define internal void @__tunesmith_tile_permission() {{\n  call i64 (i64, ...) @syscall({numbers})\n  ret void\n}}",
        "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
        "[{ i32, ptr, ptr } { i32 65535, ptr @__tunesmith_tile_permission, ptr null }]",
    ]
