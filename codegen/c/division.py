"""Division of integers that rounds down, as C: helpers with a value for every divisor, and those for divisors that are not 0 and not -1."""

from __future__ import annotations

from tunesmith.codegen.c.dialect import Dialect
from tunesmith.support import dtype as dt


def floor_division(op: str, kind: str, dialect: Dialect, usual: bool) -> tuple[str, str]:
    """The name and the definition of a function of two integers.

    Args:
        op: floordiv or mod.
        kind: their type.
        dialect: of C.
        usual: the divisor is neither 0 nor, when signed, -1, for which C has no result; else both results are 0 for 0, and the least
            number divided by -1 is itself.
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
