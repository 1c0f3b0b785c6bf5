"""Build functions with the backend of their target."""

from __future__ import annotations

import inspect
from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import backend_of, check_kind
from tunesmith.codegen.cpu.functions import Functions
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.support.errors import BuildError


def build(
    funcs: Functions, target: Target, packing: str = "call", bounds_check: bool = False, lowering: Pipeline | None = None
) -> Artifact:
    """Compile concrete functions for any target that has a backend.

    Args:
        funcs: a function, several, or a module.
        target: what is compiled for.
        packing: where constants are packed, on CPUs: see `codegen.llvm.build.build`.  On devices each call packs.
        bounds_check: check every index when a function runs, where the backend supports it: see `lower.passes.check_bounds`.  Constants are
            then packed in each call.
        lowering: passes in place of those of the backend; not together with `bounds_check`.
    Raises:
        BuildError: no code is generated for this kind of target, a function cannot be compiled, or the backend takes no other passes.
    """
    check_kind(target)
    backend = backend_of(target)
    if not bounds_check and lowering is None:
        return backend.build(funcs, target, packing)
    if lowering is not None:
        if bounds_check:
            raise BuildError("bounds_check=True has passes of its own: without it, lowering= replaces the passes")
        if "lowering" not in inspect.signature(backend.build).parameters:
            raise BuildError(f"the backend of {target.kind} takes no other passes: leave out lowering=, and steer its own by a PassContext")
        return backend.build(funcs, target, packing, lowering=lowering)
    if backend.build_checked is None:
        raise BuildError(
            f"bounds_check=True: the backend of {target.kind} generates no checks. Check the program on a CPU, before its loops are bound"
        )
    return backend.build_checked(funcs, target)


def pass_changes(target: Target) -> dict[str, Any]:
    """How the current `PassContext` changes the lowering of a target, as plain data that records hold; empty if it does not."""
    return PassContext.current().changes(backend_of(target).pipeline)


def check_runs_here(target: Target) -> None:
    """Refuse a target whose code cannot run on this machine.

    Raises:
        BuildError: another architecture, or no such device.
    """
    check_kind(target)
    backend_of(target).check_runs_here(target)
