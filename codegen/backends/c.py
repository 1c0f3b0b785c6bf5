"""The backend of C for CPUs: C11 with vector extensions, compiled by the C compiler of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunesmith.codegen.artifact import Artifact
from tunesmith.codegen.backends.cpu import CPU_BACKEND
from tunesmith.codegen.c.host.build import build, print_source
from tunesmith.codegen.c.host.export import export_c
from tunesmith.codegen.c.host.model import build_aot
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU, CPU_CHECKED


def _build(functions: Any, target: Target, packing: str, lowering: Pipeline = CPU) -> Artifact:
    return build(functions, target, lowering, packing)


def _build_checked(functions: Any, target: Target) -> Artifact:
    return build(functions, target, CPU_CHECKED)


C_BACKEND = replace(
    CPU_BACKEND,
    kind="c",
    build=_build,
    source=print_source,
    rules=tuple([rule for rule in CPU_BACKEND.rules if rule not in ("dot_products", "tile_products")]),
    build_checked=_build_checked,
    build_aot=build_aot,
    export_c=export_c,
)
