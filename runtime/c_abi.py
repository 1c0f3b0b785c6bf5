"""Mark 32-bit arguments and results in LLVM IR as sign-extended, where the C calling convention requires it.

On RISC-V a caller extends a 32-bit argument to the 64 bits of its register, and a function its result; LLVM does so only if the parameter
is marked.  On x86-64 and aarch64 the upper bits are undefined, and texts stay as they are.
"""

from __future__ import annotations

import re

_HEAD = re.compile(r"^(?:declare|define)\b[^\n]*$", re.MULTILINE)
_RESULT = re.compile(r"^((?:declare|define)(?: [a-z_]+)*) i32 @")
_PARAMETER = re.compile(r"(\(|, )i32\b")


def with_extensions(text: str, triple: str) -> str:
    """The module with marked functions.

    Args:
        text: LLVM IR.
        triple: the triple of the target.
    """
    return _HEAD.sub(_marked, text) if triple.startswith("riscv") else text


def _marked(found: re.Match[str]) -> str:
    line = found[0]
    if "@llvm." in line:  # intrinsics are no calls
        return line
    return _PARAMETER.sub(r"\1i32 signext", _RESULT.sub(r"\1 signext i32 @", line))
