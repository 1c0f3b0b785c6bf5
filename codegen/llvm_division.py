"""Division of integers that rounds down, as index arithmetic does it and numpy: LLVM's own rounds towards zero."""

from __future__ import annotations

from collections.abc import Callable


def divided(op: str, ty: str, a: str, b: str, unsigned: bool, emit: Callable[[str], str]) -> str:
    """The value of `a // b` (floordiv) or `a % b` (mod).

    Args:
        op: floordiv or mod.
        ty: LLVM type of both, an integer or a vector of them.
        a: dividend.
        b: divisor.
        unsigned: whether they are.
        emit: appends an instruction and names its result.
    """
    if unsigned:
        return emit(f"{'udiv' if op == 'floordiv' else 'urem'} {ty} {a}, {b}")
    q, r = emit(f"sdiv {ty} {a}, {b}"), emit(f"srem {ty} {a}, {b}")
    wrong = emit(f"icmp slt {ty} {emit(f'xor {ty} {r}, {b}')}, zeroinitializer")
    nonzero = emit(f"icmp ne {ty} {r}, zeroinitializer")
    bit = ty.replace(ty.split()[-1].rstrip(">"), "i1") if ty.startswith("<") else "i1"
    fix = emit(f"and {bit} {wrong}, {nonzero}")
    if op == "floordiv":
        return emit(f"add {ty} {q}, {emit(f'sext {bit} {fix} to {ty}')}")
    return emit(f"add {ty} {r}, {emit(f'select {bit} {fix}, {ty} {b}, {ty} zeroinitializer')}")
