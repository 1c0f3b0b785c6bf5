"""The backend of CPUs: LLVM IR, compiled in this process."""

from __future__ import annotations

from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import Backend
from tunesmith.codegen.llvm.aot import build_aot
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.codegen.llvm.host import check_runs_here
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU, CPU_CHECKED


def _build(functions: Any, target: Target, packing: str, lowering: Pipeline = CPU) -> Artifact:
    return build(functions, target, lowering, packing)


def _build_checked(functions: Any, target: Target) -> Artifact:
    return build(functions, target, CPU_CHECKED)


def _source(functions: Any, target: Target) -> str:
    return emit_text(functions, target)[0]


CPU_BACKEND = Backend(
    kind="llvm",
    pipeline=CPU,
    build=_build,
    source=_source,
    check_runs_here=check_runs_here,
    detect=Target,
    load="tunesmith.driver.compiled_cpu:load_cpu",
    evaluator="tunesmith.measure.evaluator.cpu_evaluator:CpuEvaluator",
    calibrated="tunesmith.measure.calibration.cpu:calibrated",
    analytic_cost="tunesmith.costmodel.analytic.cost:analytic_cost",
    rules=("contraction", "dot_products", "tile_products", "strassen", "winograd", "rows", "reductions", "pointwise"),
    fallback_rules=("derived", "fallback"),
    large_rules=("stages",),
    build_checked=_build_checked,
    models=True,
    build_aot=build_aot,
)
