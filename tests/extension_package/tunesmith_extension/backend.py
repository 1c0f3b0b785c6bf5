"""The backend of the kind simcpu: that of the CPU, with another pass."""

from dataclasses import replace

from tunesmith.codegen.backends.cpu import CPU_BACKEND
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith_extension.passes import unroll_short_loops

PIPELINE = CPU_BACKEND.pipeline.insert_after("legalize_bool_storage", unroll_short_loops)

SIMCPU_BACKEND = replace(
    CPU_BACKEND,
    kind="simcpu",
    pipeline=PIPELINE,
    build=lambda functions, target, packing: build(functions, target, PIPELINE, packing),
    source=lambda functions, target: emit_text(functions, target, PIPELINE)[0],
)
