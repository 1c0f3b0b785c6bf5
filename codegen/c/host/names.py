"""Name the parameters, buffers and variables of a kernel in C, as in the program where that is possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tunesmith.codegen.c.names import identifier, unused

_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
    short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL asm typeof unix linux
    first last extent threads task context workspace own overflow report free malloc aligned_alloc main run_parallel
    float32_of_bits_uint32 uint32_of_bits_float32""".split()
)
_RESERVED = re.compile(
    r"(u?int|b?float|bool)\d*(x\d+)?(_u|_t)?|[lv]\d+|_\w*|(ts|omp|GOMP|tunesmith|atomic|memory_order)_\w*|INT\d+_\w+|[A-Z]\w*_C"
)
_HELPERS = re.compile(
    r"(load|store|gather|scatter|splat|first|negative|ramp|select|add|sub|mul|min|max|sqrt|abs|floor|ceil|trunc|round|copysign|fma|floordiv"
    r"|mod|shl|shr|ldexp|exponent|reduce|from|to)_\w*"
)
"""Names of types, functions and temporaries that printed code defines or uses."""


class Names:
    """The names that are taken in a kernel, by scope."""

    def __init__(self) -> None:
        self._taken = set(_KEYWORDS)
        self._scopes: list[list[str]] = [[]]

    def take(self, name: str) -> str:
        """A C name that resembles a name, and is not in use; it is in use until the scope ends."""
        base = identifier(name)
        reserved = _RESERVED.fullmatch(base) or _HELPERS.fullmatch(base)
        found = unused(f"x_{base.lstrip('_')}" if reserved else base, self._taken)
        self._scopes[-1].append(found)
        return found

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are taken here are free again afterwards."""
        self._scopes.append([])
        yield
        self._taken.difference_update(self._scopes.pop())
