"""The backend of C for CPUs, whose code generator is still missing: spaces and cost models are those of the CPU."""

from __future__ import annotations

from dataclasses import replace

from tunesmith.codegen.backends.cpu import CPU_BACKEND

C_BACKEND = replace(
    CPU_BACKEND,
    kind="c",
    unavailable=(
        "there is no code generator for C yet. Give the target {llvm} for this processor; for C programs, a model compiled with "
        'executor="aot" exports an object file and a header'
    ),
)
