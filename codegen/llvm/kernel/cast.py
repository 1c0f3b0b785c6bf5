"""Emit casts between types in LLVM IR; bfloat16 is held as its 16 bits in an integer and computed as float32.

LLVM's bfloat type is rounded, even after a select, by a compiler-runtime function that is not loaded, or, on CPUs with an instruction for
it, by one that flushes denormal numbers.  Integer arithmetic gives the same result on every CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.llvm.text import llvm_type, vector_literal
from tunesmith.ir.expr import Binary, Call, Cast, Expr, cast
from tunesmith.support import dtype as dt

Emit = Callable[[str], str]
"""Emits an instruction and returns the name of its result."""

_QUIET_NAN = 0x7FC0


def convert(op: Emit, value: str, src: str, dst: str) -> str:
    """Convert `value` of type `src` to type `dst` with the same number of lanes.

    bfloat16 converts to and from every other type through float32, as in numpy and the interpreter: a float64 is rounded twice.
    """
    if src == dst:
        return value
    single = dt.vector("float32", dt.lanes(src))
    if dt.element(src) == "bfloat16":
        return convert(op, _extend(op, value, dt.lanes(src)), single, dst)
    if dt.element(dst) == "bfloat16":
        return _round(op, convert(op, value, src, single), dt.lanes(src))
    a, b = llvm_type(src), llvm_type(dst)
    sf, df = dt.is_float(src), dt.is_float(dst)
    signless = dt.is_unsigned(src) or dt.element(src) == "bool"
    if dt.element(dst) == "bool":
        return op(f"{'fcmp une' if sf else 'icmp ne'} {a} {value}, zeroinitializer")
    if sf and df:
        kind = "fpext" if dt.bits(dst) > dt.bits(src) else "fptrunc"
    elif sf:
        kind = "fptoui" if dt.is_unsigned(dst) else "fptosi"
    elif df:
        kind = "uitofp" if signless else "sitofp"
    elif dt.element(src) == "bool" or dt.bits(dst) > dt.bits(src):
        kind = "zext" if signless else "sext"
    elif a == b:
        return value
    else:
        kind = "trunc"
    out = op(f"{kind} {a} {value} to {b}")
    # An out-of-range cast is poison, and LLVM 22 fails an assertion when it folds its minimum with 0.
    return op(f"freeze {b} {out}") if kind == "fptoui" else out


def rounded_operand(e: Cast) -> Expr | None:
    """x if a cast converts `round(x)` to an integer of at most 32 bits, for which processors have one instruction; else None."""
    if type(e.a) is not Call or e.a.name != "round" or dt.element(e.a.dtype) not in ("float32", "float64") or not dt.is_int(e.dtype):
        return None
    return e.a.args[0] if dt.bits(e.dtype) <= (16 if dt.is_unsigned(e.dtype) else 32) else None


def in_float32(e: Binary | Call) -> Expr:
    """An operation on bfloat16 as one on float32; a floating-point result is rounded."""

    def wide(dtype: str) -> str:
        return dt.vector("float32", dt.lanes(dtype)) if dt.element(dtype) == "bfloat16" else dtype

    if isinstance(e, Binary):
        return cast(e.dtype, Binary(e.op, *[cast(wide(x.dtype), x) for x in (e.a, e.b)]))
    return cast(e.dtype, Call(e.name, tuple([cast(wide(x.dtype), x) for x in e.args]), wide(e.dtype)))


def _extend(op: Emit, value: str, lanes: int) -> str:
    """bfloat16 to float32: shift the bits to the upper half."""
    half, word, single, _ = _types(lanes)
    upper = op(f"shl {word} {op(f'zext {half} {value} to {word}')}, {_number(16, 'i32', lanes)}")
    return op(f"bitcast {word} {upper} to {single}")


def _round(op: Emit, value: str, lanes: int) -> str:
    """float32 to the nearest bfloat16, ties to even; every NaN becomes the same quiet NaN."""
    half, word, single, test = _types(lanes)
    bits = op(f"bitcast {single} {value} to {word}")
    shift = _number(16, "i32", lanes)
    odd = op(f"and {word} {op(f'lshr {word} {bits}, {shift}')}, {_number(1, 'i32', lanes)}")
    up = op(f"add {word} {op(f'add {word} {bits}, {odd}')}, {_number(0x7FFF, 'i32', lanes)}")
    near = op(f"trunc {word} {op(f'lshr {word} {up}, {shift}')} to {half}")
    nan = op(f"fcmp uno {single} {value}, {value}")
    return op(f"select {test} {nan}, {half} {_number(_QUIET_NAN, 'i16', lanes)}, {half} {near}")


def _types(lanes: int) -> list[str]:
    """LLVM types with these lanes: 16-bit integer, 32-bit integer, float32 and bool."""
    return [llvm_type(dt.vector(t, lanes)) for t in ("int16", "int32", "float32", "bool")]


def _number(value: int, element: str, lanes: int) -> str:
    return str(value) if lanes == 1 else vector_literal([str(value)] * lanes, element)
