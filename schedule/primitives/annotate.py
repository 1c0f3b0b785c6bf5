"""Attach annotations to loops and blocks, which lowering passes read, and remove them."""

from __future__ import annotations

from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import GRAIN, Block, For, annotated
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

KEYS = {
    "prefetch": "loop or block: prefetch distance in elements of the streamed operand",
    "prefetch_operand": "loop: name of the buffer that `prefetch_ahead` fetches",
    "prefetch_ahead": "loop: prefetch distance in iterations (lower/passes/inject_prefetch.py)",
    "double_buffer": "loop: 2 for two versions of the tiles copied at the start of its body (lower/passes/double_buffer.py)",
    "pack_constant": "block: the constant parameter that the block packs, once for all calls (lower/hoist_constant_packing.py)",
    GRAIN: "parallel loop: it runs on one thread if a call stores fewer elements than this (codegen/llvm/kernel/function.py)",
}
"""Annotations that lowering supports, with their meaning."""

MOST = {"prefetch": 1 << 24, "prefetch_ahead": 1 << 16, "double_buffer": 2}
"""Annotations with an integer value from 0, and the largest value allowed."""
TEXTS = ("prefetch_operand",)
"""Annotations with a text value."""


def _set(s: ScheduleState, target: BlockRV | LoopRV, key: str, value: str | Poly | None) -> None:
    if isinstance(target, BlockRV):
        name = s.block(target).name
        s.replace_block(name, lambda b: b.with_(annotations=annotated(b.annotations, key, value)))
    else:
        s.replace_loop(s.loop(target).var, lambda f: f.with_(annotations=annotated(f.annotations, key, value)))


@primitive
def annotate(s: ScheduleState, target: BlockRV | LoopRV, key: str, value: IntRV | int | str) -> None:
    """Attach the annotation `key: value` to a loop or a block.

    Requires:
        known-key: lowering supports the key (see KEYS).
        value: the value of a key in MOST is an integer from 0 to its limit; the value of `prefetch_operand` is a name.
        block-exists: a block target is still in the program.
        loop-exists: a loop target is still in the program.
    Keeps: everything.
    """
    if key not in KEYS:
        raise s.refuse("known-key", f"unknown annotation {key!r}; known are {', '.join(sorted(KEYS))}")
    if isinstance(value, str) if key in MOST else key in TEXTS and not isinstance(value, str):
        wanted = f"an integer from 0 to {MOST[key]}" if key in MOST else "the name of a buffer"
        raise s.refuse("value", f"the value of {key} is {value!r}; {wanted} is needed")
    if key in MOST:
        number = s.value(value)  # type: ignore[arg-type]  # not text, see above
        if number.const is not None:
            s.require("le0", -number, "value", f"{key} is at least 0", number)
        s.require_at_most(number, MOST[key], "value", f"{key} is at most {MOST[key]}")
    _set(s, target, key, value if isinstance(value, str) else s.value(value))


@primitive
def unannotate(s: ScheduleState, target: BlockRV | LoopRV, key: str) -> None:
    """Remove the annotation `key` from a loop or a block.

    Requires:
        present: the loop or block has the annotation.
        block-exists: a block target is still in the program.
        loop-exists: a loop target is still in the program.
    Keeps: everything.
    """
    node: Block | For = s.block(target) if isinstance(target, BlockRV) else s.loop(target)
    if all(k != key for k, _ in node.annotations):
        raise s.refuse("present", f"there is no annotation {key!r}", node)
    _set(s, target, key, None)
