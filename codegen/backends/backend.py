"""Describe a backend in one manifest: pipeline, builder, checks, and the parts of higher layers that belong to it.

Parts of higher layers are dotted paths, `package.module:name`, which are imported on first use: a manifest imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.support.errors import BuildError
from tunesmith.support.registry import Registry, instance_of, resolve


@dataclass(frozen=True, slots=True)
class Backend:
    """What belongs to one kind of target.

    Attributes:
        kind: the kind of the targets: `Target.kind`, or `Target.base` for the kinds derived from it that have no backend of their own.
        pipeline: from concrete scheduled functions to what code is generated from.
        build: `(functions, target, packing) -> Artifact`; `packing` is one of `cpu.functions.PACKING`.  With a fourth parameter `lowering`,
            a pipeline in place of `pipeline`, users may edit the passes; backends that compile models on hosts have it.
        source: `(functions, target) -> str`, the generated source for people.
        check_runs_here: refuses a target whose code cannot run on this machine, with BuildError.
        detect: the target of this machine, or of its first device, from the kind alone.
        load: path of `(artifact, coverage, remarks, functions) -> module`.
        evaluator: path of the class that runs and times candidates in a worker process.
        calibrated: path of `(target) -> Target`, the target with measured rates.
        analytic_cost: path of `(analysis, target) -> cost` of the analytic model.
        rules: names of the sketch rules, all of which are tried.
        large_rules: names of the rules for functions that are too large to be inlined as a whole.
        fallback_rules: names of the rules for functions that no rule of `rules` applies to; the first with a sketch is used.
        build_checked: `(functions, target) -> Artifact`, whose code checks every index when it runs; None where that is not supported.
        models: whether whole models can be compiled.
        build_aot: `(functions, program, constants, name, target, pipeline) -> (program, object code)`, which compiles a model to one C
            function; in place of the code a BuildError if no compiler for the target is found.  None where that is not supported.
        export_c: `(folder, functions, program, constants, name, target, pipeline, parameters) -> paths`, which writes a model as C files;
            None where that is not supported.
        device: name of the runtime device that runs the code (`runtime.device.device.DEVICES`); empty if it runs in this process.
        needs_threads: whether loops must be bound to threads, so that `compile` schedules unscheduled functions before it builds them.
        may_spill: path of `(function, target) -> bool`, whether the registers of a scheduled function may not suffice; `Artifact.facts`
            then has `spill_bytes`, by which untuned programs are chosen.  Empty where the compiler reports no spills.
        baselines: name of a baseline -> name of its variant that runs on the device.
        unavailable: why no code is generated, and what to do; `{llvm}` is the same target with the kind llvm.  Empty where it is.
    """

    kind: str
    pipeline: Pipeline
    build: Callable[..., Artifact]
    source: Callable[[Any, Target], str]
    check_runs_here: Callable[[Target], None]
    detect: Callable[[str], Target]
    load: str
    evaluator: str
    calibrated: str
    analytic_cost: str
    rules: tuple[str, ...]
    fallback_rules: tuple[str, ...]
    large_rules: tuple[str, ...] = ()
    build_checked: Callable[[Any, Target], Artifact] | None = None
    models: bool = False
    build_aot: Callable[..., tuple[dict[str, Any], bytes | BuildError]] | None = None
    export_c: Callable[..., tuple[Path, ...]] | None = None
    device: str = ""
    needs_threads: bool = False
    may_spill: str = ""
    baselines: Mapping[str, str] = field(default_factory=dict)
    unavailable: str = ""

    def part(self, name: str) -> Any:
        """The object that a path of the manifest names, such as `part("evaluator")`."""
        return resolve(getattr(self, name))


BACKENDS: Registry[Backend] = Registry(
    "backend",
    {
        "c": "tunesmith.codegen.backends.c:C_BACKEND",
        "llvm": "tunesmith.codegen.backends.cpu:CPU_BACKEND",
        "cuda": "tunesmith.codegen.backends.cuda:CUDA_BACKEND",
        "opencl": "tunesmith.codegen.backends.opencl:OPENCL_BACKEND",
    },
    contract=instance_of(Backend),
)
"""All backends by kind of target; other packages add theirs through the entry point group `tunesmith.backend`."""


def backend_of(target: Target) -> Backend:
    """The backend of a target: that of its kind or else of the kind it is based on.  BuildError if neither has one."""
    name = _name(target)
    if name is None:
        raise BuildError(_refusal(target, None, "give a target such as Target.detect()"))
    return BACKENDS.get(name)


def check_kind(target: Target) -> None:
    """Refuse a target that no code is generated for.  Raises BuildError."""
    advice = backend_of(target).unavailable
    if advice:
        raise BuildError(_refusal(target, _name(target), advice.replace("{llvm}", repr(str(target).replace(target.kind, "llvm", 1)))))


def _name(target: Target) -> str | None:
    return next((kind for kind in (target.kind, target.base) if kind in BACKENDS), None)


def _refusal(target: Target, but: str | None, advice: str) -> str:
    """The message with the names of all other backends, none of which is imported: a package with a defect must not replace it."""
    kinds = [name for name in BACKENDS if name != but]
    return f"code is generated for targets of kind {', '.join(kinds)}, not {target.kind}: {advice}"
