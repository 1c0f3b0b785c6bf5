"""Build functions with the backend of their target."""

from __future__ import annotations

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.cpu.functions import Functions
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import BuildError


def build(funcs: Functions, target: Target, packing: str = "call", bounds_check: bool = False) -> Artifact:
    """Compile concrete functions for any target that has a backend.

    Args:
        funcs: a function, several, or a module.
        target: what is compiled for.
        packing: where constants are packed, on CPUs: see `codegen.llvm.build.build`.  On devices each call packs.
        bounds_check: check every index when a function runs, where the backend supports it: see `lower.passes.check_bounds`.  Constants are
            then packed in each call.
    Raises:
        BuildError: no code is generated for this kind of target, or a function cannot be compiled.
    """
    check_kind(target)
    backend = backend_of(target)
    if not bounds_check:
        return backend.build(funcs, target, packing)
    if backend.build_checked is None:
        raise BuildError(
            f"bounds_check=True: the backend of {target.kind} generates no checks. Check the program on a CPU, before its loops are bound"
        )
    return backend.build_checked(funcs, target)


def check_runs_here(target: Target) -> None:
    """Refuse a target whose code cannot run on this machine.

    Raises:
        BuildError: another architecture, or no such device.
    """
    check_kind(target)
    backend_of(target).check_runs_here(target)
