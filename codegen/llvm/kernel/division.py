"""Emit floor division of integers in LLVM IR, as in index arithmetic and numpy; LLVM's own division truncates."""

from __future__ import annotations

from collections.abc import Callable


def divided(op: str, ty: str, a: str, b: str, unsigned: bool, emit: Callable[[str], str], usual: bool = False) -> str:
    """The value of `a // b` (floordiv) or `a % b` (mod), both 0 for b = 0; the minimum integer divided by -1 is itself.

    Args:
        op: floordiv or mod.
        ty: LLVM type of both operands, an integer or a vector of integers.
        a: dividend.
        b: divisor.
        unsigned: whether the operands are unsigned.
        emit: appends an instruction and returns its result.
        usual: b is known to be neither 0 nor, if signed, -1, for which CPUs raise a signal.
    """
    if not usual:
        return _total(op, ty, a, b, unsigned, emit)
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


def _total(op: str, ty: str, a: str, b: str, unsigned: bool, emit: Callable[[str], str]) -> str:
    """As `divided`, for any divisor: divide by 1 instead of 0 and -1, then select."""
    lanes, _, element = ty.strip("<>").rpartition(" x ")
    bit = f"<{lanes} x i1>" if lanes else "i1"

    def all_lanes(value: int) -> str:
        return "<" + ", ".join([f"{element} {value}"] * int(lanes)) + ">" if lanes else str(value)

    zero = emit(f"icmp eq {ty} {b}, {all_lanes(0)}")
    minus = "" if unsigned else emit(f"icmp eq {ty} {b}, {all_lanes(-1)}")
    unusual = zero if unsigned else emit(f"or {bit} {zero}, {minus}")
    divisor = emit(f"select {bit} {unusual}, {ty} {all_lanes(1)}, {ty} {b}")
    r = divided(op, ty, a, divisor, unsigned, emit, usual=True)
    if op == "mod":
        return r
    if not unsigned:
        r = emit(f"select {bit} {minus}, {ty} {emit(f'sub {ty} {all_lanes(0)}, {a}')}, {ty} {r}")
    return emit(f"select {bit} {zero}, {ty} {all_lanes(0)}, {ty} {r}")


def positively_divided(op: str, n: str, m: str, number: int | None, nonnegative: Callable[[], bool], emit: Callable[[str], str]) -> str:
    """`n // m` (floordiv) or `n % m` (mod) of i64, for m >= 1.

    Args:
        op: floordiv or mod.
        n: dividend.
        m: divisor.
        number: value of the divisor, if known.
        nonnegative: returns whether the dividend is known to be >= 0.
        emit: appends an instruction and returns its result.
    """
    if number is not None and number & (number - 1) == 0:
        return emit(f"ashr i64 {n}, {number.bit_length() - 1}" if op == "floordiv" else f"and i64 {n}, {number - 1}")
    if nonnegative():
        return emit(f"{'udiv' if op == 'floordiv' else 'urem'} i64 {n}, {m}")
    if op == "floordiv":
        q, r = emit(f"sdiv i64 {n}, {m}"), emit(f"srem i64 {n}, {m}")
        return emit(f"add i64 {q}, {emit(f'ashr i64 {r}, 63')}")
    r = emit(f"srem i64 {n}, {m}")
    fix = emit(f"select i1 {emit(f'icmp slt i64 {r}, 0')}, i64 {m}, i64 0")
    return emit(f"add i64 {r}, {fix}")
