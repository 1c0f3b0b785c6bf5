"""The backend of NVIDIA GPUs: CUDA C, compiled by NVRTC."""

from __future__ import annotations

from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.backend import Backend
from tunesmith.codegen.device.build import build, emit_source
from tunesmith.codegen.device.host import check_device, detect_device
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import GPU


def build_device(functions: Any, target: Target, packing: str, lowering: Pipeline = GPU) -> Artifact:
    """Build functions of a device, which pack constants in each call."""
    return build(functions, target, lowering)


def device_text(functions: Any, target: Target) -> str:
    """The source of the kernels."""
    return emit_source(functions, target)[0]


CUDA_BACKEND = Backend(
    kind="cuda",
    pipeline=GPU,
    build=build_device,
    source=device_text,
    check_runs_here=check_device,
    detect=detect_device,
    load="tunesmith.driver.compiled_device:load_device",
    evaluator="tunesmith.measure.evaluator.device_evaluator:DeviceEvaluator",
    calibrated="tunesmith.measure.calibration.gpu:calibrated_device",
    analytic_cost="tunesmith.costmodel.analytic.gpu_cost:gpu_cost",
    rules=("gpu_contraction", "gpu_split_reduction", "gpu_rows", "gpu_reductions", "gpu_pointwise"),
    fallback_rules=("gpu_fallback",),
    models=True,
    device="cuda",
    needs_threads=True,
    may_spill="tunesmith.codegen.device.build:may_spill",
    baselines={"torch": "torch_cuda", "torch_compile": "torch_compile_cuda"},
)
