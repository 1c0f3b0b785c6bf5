"""Which code generator a target has, and whether its code runs here."""

from __future__ import annotations

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.device.build import DIALECTS
from tunesmith.codegen.device.build import build as build_device
from tunesmith.codegen.device.host import check_device
from tunesmith.codegen.llvm.build import Functions
from tunesmith.codegen.llvm.build import build as build_llvm
from tunesmith.codegen.llvm.host import check_runs_here as check_processor
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import CPU_CHECKED
from tunesmith.support.errors import BuildError

KINDS = ("llvm", *DIALECTS)
"""Kinds of targets that code is generated for."""


def build(funcs: Functions, target: Target, packing: str = "call", bounds_check: bool = False) -> Artifact:
    """Compile concrete functions for any target that has a code generator.

    Args:
        funcs: a function, several, or a module.
        target: for which.
        packing: where constants are packed, on CPUs: see `llvm_build.build`.  On devices each call packs.
        bounds_check: every index is checked when a function runs, on CPUs only: see `lower.passes.check_bounds`.  Constants are then packed
            in each call.
    Raises:
        BuildError: no code is generated for this kind of target, or a function cannot be compiled.
    """
    check_kind(target)
    if bounds_check:
        if target.base != "llvm":
            raise BuildError(
                f"bounds_check=True is for targets of kind llvm, not {target.kind}: check the program on a CPU, before its loops are bound"
            )
        return build_llvm(funcs, target, CPU_CHECKED)
    return build_llvm(funcs, target, packing=packing) if target.base == "llvm" else build_device(funcs, target)


def check_kind(target: Target) -> None:
    """Refuse a target that no code is generated for.  Raises BuildError."""
    if target.base in KINDS:
        return
    advice = "give a target such as Target.detect()"
    if target.base == "c":
        advice = (
            f"there is no code generator for C yet. Give the target {str(target).replace('c', 'llvm', 1)!r} for this processor; for C "
            'programs, a model compiled with executor="aot" exports an object file and a header'
        )
    raise BuildError(f"code is generated for targets of kind {', '.join(KINDS)}, not {target.kind}: {advice}")


def check_runs_here(target: Target) -> None:
    """Refuse a target whose code cannot run on this machine.

    Raises:
        BuildError: another architecture, or no such device.
    """
    check_kind(target)
    if target.base == "llvm":
        check_processor(target)
    else:
        check_device(target)
