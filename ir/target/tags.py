"""Name the built-in targets: kind and attributes by tag."""

from __future__ import annotations

from tunesmith.ir.target.gpus import CARDS

_PROCESSORS = {
    "raspberry-pi/4b-aarch64": ("cortex-a72", 4),
    "raspberry-pi/5-aarch64": ("cortex-a76", 4),
    "aws/graviton2": ("neoverse-n1", 64),
    "aws/graviton3": ("neoverse-v1", 64),
    "aws/graviton4": ("neoverse-v2", 96),
    "riscv/sifive-u74": ("sifive-u74", 4),
    "riscv/bananapi-f3": ("spacemit-x60", 8),
}
"""Processor and number of cores by tag."""
TAGS: dict[str, dict[str, bool | int | float | str]] = {
    **{f"nvidia/{card}": {"kind": "cuda", "model": card} for card in CARDS},
    **{tag: {"kind": "llvm", "mcpu": mcpu, "num_cores": cores} for tag, (mcpu, cores) in _PROCESSORS.items()},
}
"""Built-in named targets; those of other distributions are in `attributes.TARGET_TAGS`."""
