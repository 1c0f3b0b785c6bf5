"""Name the instruction sets that an object needs in a symbol of it, and ask for the permission that tile registers need."""

from __future__ import annotations

from collections.abc import Collection

from tunesmith.codegen.cpu.required_features import needed_flags
from tunesmith.ir.target.target import Target
from tunesmith.runtime.processor import needs_symbol
from tunesmith.support.tile_permission import ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA


def required_features(target: Target, features: Collection[str]) -> list[str]:
    """Definitions in LLVM IR: the symbol that lists the instruction sets that the code may use, and the features that it does use;
    with tile registers also a function that asks for the permission.

    Args:
        target: the target of the code.
        features: features that the code uses beyond those of vectors, as LLVM spells them.
    """
    flags = needed_flags(target, features)
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
