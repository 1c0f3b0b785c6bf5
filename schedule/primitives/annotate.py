"""annotate, unannotate: hints for lowering, on a loop or a block."""

from __future__ import annotations

from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import GRAIN, Block, For, annotated
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

KEYS = {
    "prefetch": "loop or block: distance, in elements of the block's streamed operand, at which it is prefetched",
    "prefetch_operand": "loop: the buffer of which the annotation `prefetch_ahead` refers to",
    "prefetch_ahead": "loop: so many iterations ahead what it reads of that buffer is fetched (lower/passes/inject_prefetch.py)",
    "double_buffer": "loop: 2 for two versions of the tiles filled at the beginning of its body (lower/passes/double_buffer.py)",
    "pack_constant": "block: the constant parameter that it copies into another layout, once (lower/hoist_constant_packing.py)",
    GRAIN: "parallel loop: it runs on one thread in calls in which it stores fewer elements than this (codegen/llvm/kernel/function.py)",
}
"""Annotations that lowering understands."""

MOST = {"prefetch": 1 << 24, "prefetch_ahead": 1 << 16, "double_buffer": 2}
"""The annotations whose value is an integer from 0, and the largest that makes sense."""
TEXTS = ("prefetch_operand",)
"""The annotations whose value is text."""


def _set(s: ScheduleState, target: BlockRV | LoopRV, key: str, value: str | Poly | None) -> None:
    if isinstance(target, BlockRV):
        name = s.block(target).name
        s.replace_block(name, lambda b: b.with_(annotations=annotated(b.annotations, key, value)))
    else:
        s.replace_loop(s.loop(target).var, lambda f: f.with_(annotations=annotated(f.annotations, key, value)))


@primitive
def annotate(s: ScheduleState, target: BlockRV | LoopRV, key: str, value: IntRV | int | str) -> None:
    """Attach `key: value`.

    Requires:
        known-key: lowering understands the key (see KEYS).
        value: of a distance, a number of iterations or of versions it is an integer from 0 to the most that makes sense (see MOST); of an
            operand it is a name.
        block-exists: a block target is still in the program.
        loop-exists: a loop target is still in the program.
    Keeps: everything.
    """
    if key not in KEYS:
        raise s.refuse("known-key", f"unknown annotation {key!r}; known are {', '.join(sorted(KEYS))}")
    if isinstance(value, str) if key in MOST else key in TEXTS and not isinstance(value, str):
        wanted = f"an integer from 0 to {MOST[key]}" if key in MOST else "the name of a buffer"
        raise s.refuse("value", f"the value of {key} is {value!r}; it is {wanted}")
    if key in MOST:
        number = s.value(value)  # type: ignore[arg-type]  # no text
        if number.const is not None:
            s.require("le0", -number, "value", f"{key} is at least 0", number)
        s.require_at_most(number, MOST[key], "value", f"{key} is at most {MOST[key]}")
    _set(s, target, key, value if isinstance(value, str) else s.value(value))


@primitive
def unannotate(s: ScheduleState, target: BlockRV | LoopRV, key: str) -> None:
    """Remove the annotation `key`.

    Requires:
        present: the annotation is there.
        block-exists: a block target is still in the program.
        loop-exists: a loop target is still in the program.
    Keeps: everything.
    """
    node: Block | For = s.block(target) if isinstance(target, BlockRV) else s.loop(target)
    if all(k != key for k, _ in node.annotations):
        raise s.refuse("present", f"there is no annotation {key!r}", node)
    _set(s, target, key, None)
