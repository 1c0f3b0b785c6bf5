"""Print floor division of integers as C helpers, with or without results for the divisors 0 and -1."""

from __future__ import annotations

from tunesmith.codegen.c.dialect import Dialect
from tunesmith.support import dtype as dt


def floor_division(op: str, kind: str, dialect: Dialect, usual: bool) -> tuple[str, str]:
    """Name and definition of a division helper of two integers.

    Args:
        op: floordiv or mod.
        kind: dtype of both operands.
        dialect: the C dialect.
        usual: the divisor is neither 0 nor, if signed, -1, for which C has no defined result.  Otherwise both operations give 0 for
            divisor 0, and the minimum integer divided by -1 is itself.
    """
    t = dialect.types[kind]
    name = f"ts_{op}_{kind}" if usual else f"ts_{op}_any_{kind}"
    guards = ""
    if not usual:
        guards = "if (b == 0) return 0; "
        if not dt.is_unsigned(kind):
            word = dialect.types["uint64" if kind == "int64" else "uint32"]
            guards += f"if (b == -1) return {f'({t})(({word})0 - ({word})a)' if op == 'floordiv' else '0'}; "
    if dt.is_unsigned(kind):
        body = f"return a {'/' if op == 'floordiv' else '%'} b;"
    elif op == "mod":
        body = f"{t} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r;"
    else:
        body = f"{t} q = a / b; return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;"
    return name, f"TS_INLINE {t} {name}({t} a, {t} b) {{ {guards}{body} }}"
