"""Name the architecture of a triple as `platform.machine()` and ELF files do."""

from __future__ import annotations

TRIPLE_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}
"""First part of a triple -> architecture."""


def architecture(triple: str) -> str:
    """The architecture of a triple of a target: `arm64-apple-darwin` -> `aarch64`."""
    return TRIPLE_ARCHITECTURES[triple.split("-")[0]]
