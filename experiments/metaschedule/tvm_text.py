"""Print a program as a script of TVM 0.27, whose words for blocks and intermediate buffers differ."""

from __future__ import annotations

import re

from tunesmith.ir.function import PrimFunc

_WORDS = {
    "@T.prim_func": "@T.prim_func(s_tir=True)",
    "T.block(": "T.sblock(",
    "T.alloc_buffer(": "T.sblock_alloc_buffer(",
    "T.select(": "T.if_then_else(",  # the second operand of a select may read outside a buffer in TVM
}


def tvm_text(func: PrimFunc) -> str:
    """The script of a function named `main`."""
    text = str(func)
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs)
    text = re.sub(r"def \w+\(", "def main(", text, count=1)
    return text
