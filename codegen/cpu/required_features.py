"""List the instruction sets that the code for a target may use."""

from __future__ import annotations

from collections.abc import Collection

from tunesmith.ir.target.cpus import cpuinfo_flag
from tunesmith.ir.target.target import Target

_CHECKED = frozenset(
    "sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c bmi bmi2 avxvnni avx512f avx512bw avx512dq avx512vl avx512cd avx512vnni avx512bf16 "
    "avx512fp16 fullfp16 dotprod bf16 i8mm sve sve2".split()
)
"""Instruction sets that code may use without a check of its own."""


def needed_flags(target: Target, features: Collection[str] = ()) -> list[str]:
    """The instruction sets that code may use, as `/proc/cpuinfo` spells them.

    Args:
        target: the target of the code.
        features: features that the code uses beyond those of vectors, as LLVM spells them.
    """
    return [cpuinfo_flag(f) for f in (target.features & _CHECKED).union(features)]
