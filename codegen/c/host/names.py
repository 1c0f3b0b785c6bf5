"""Name the parameters, buffers and variables of a kernel in C, as in the program where that is possible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tunesmith.codegen.c.names import identifier, unused

_KEYWORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
    short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL asm typeof unix linux i386
    alignas alignof constexpr nullptr static_assert thread_local typeof_unqual stdin stdout stderr errno noreturn
    first last extent threads task context workspace own overflow report free malloc aligned_alloc main run_parallel shared_bytes
    private_bytes""".split()
)
_RESERVED = re.compile(
    r"(u?int|b?float|bool)\d*(x\d+)?(_u|_t)?|[lmv]\d+|_\w*|(ts|omp|GOMP|tunesmith|atomic|memory_order)_\w*|INT\d+_\w+|[A-Z]\w*_C"
    r"|\w+_t|[A-Z][A-Z0-9_]{2,}|\w+_of_bits_\w+"
)
_HELPERS = re.compile(
    r"(load|store|gather|scatter|splat|first|negative|ramp|select|add|sub|mul|min|max|sqrt|abs|floor|ceil|trunc|round|copysign|fma|floordiv"
    r"|mod|shl|shr|ldexp|exponent|reduce|from|to)_\w*"
)
"""Names of types, functions and temporaries that printed code defines or uses, and of macros, which are capital letters."""


class Names:
    """The names that are taken in a kernel, by scope."""

    def __init__(self) -> None:
        self._taken = set(_KEYWORDS)
        self._loops: set[str] = set()
        self._scopes: list[list[str]] = [[]]

    def take(self, name: str) -> str:
        """A C name that resembles a name, and is not in use; it is in use until the scope ends."""
        base = identifier(name).replace("_kernel", "_k")  # names with _kernel are those of kernels, their loops and their data
        reserved = _RESERVED.fullmatch(base) or _HELPERS.fullmatch(base)
        found = unused(f"x_{base.lstrip('_')}" if reserved else base, self._taken)
        self._scopes[-1].append(found)
        return found

    def loop(self, kernel: str, name: str) -> str:
        """A name for the function of a parallel loop; with the suffix `_share` it is that of the function that threads call."""
        base = identifier(name)
        base = f"x_{base}" if base.startswith("kernel") else base
        found, n = f"{kernel}_{base}", 1
        taken = self._loops | {f"{kernel}_arena", f"{kernel}_busy"}
        while taken & {found, f"{found}_share"}:
            found, n = f"{kernel}_{base}_{n}", n + 1
        self._loops |= {found, f"{found}_share"}
        return found

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names that are taken here are free again afterwards."""
        self._scopes.append([])
        yield
        self._taken.difference_update(self._scopes.pop())
