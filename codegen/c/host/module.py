"""Assemble the text of a C file: headers, thread support, types and small functions, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.ir.target.target import Target
from tunesmith.runtime.thread_support import THREADS


@dataclass(slots=True)
class CModule:
    """A C file under construction.

    Attributes:
        target: the target.
        exported: whether other objects may call the kernels.
        static: bytes of static scratch memory of the kernels so far.
        prelude: the types and small functions that the kernels use.
        functions: definitions, in order.
        parallel: whether a kernel has a parallel loop.
        atomic: whether a kernel has static scratch memory.
    """

    target: Target
    exported: bool = True
    static: int = 0
    prelude: Prelude = field(default_factory=Prelude)
    functions: list[str] = field(default_factory=list)
    parallel: bool = False
    atomic: bool = False

    def text(self, threads: str, head: Sequence[str] = (), includes: Sequence[str] = ()) -> str:
        """The file.

        Args:
            threads: definitions that parallel loops call: `LOADED`, or those of `codegen.c.host.threads`.
            head: lines of the comment at the start.
            includes: headers besides those that all files include, with their brackets or quotes.
        """
        headers = ["<stdbool.h>", "<stddef.h>", "<stdint.h>", "<stdlib.h>", *(["<stdatomic.h>"] if self.atomic else []), *includes]
        parts = [
            "\n".join([f"/* {head[0]}", *[f" * {line}".rstrip() for line in head[1:]], " */"]) if head else "",
            "\n".join([*(['#pragma GCC diagnostic ignored "-Wpsabi"'] if head else []), *[f"#include {h}" for h in sorted(headers)]]),
            threads if self.parallel else "",
            self.prelude.text(),
            *self.functions,
        ]
        return "\n\n".join([p for p in parts if p]) + "\n"


LOADED = f"""\
int32_t {THREADS}(int32_t most);
void GOMP_parallel(void (*body)(void *), void *context, unsigned threads, unsigned flags);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
static inline void run_parallel(void (*body)(void *), void *context, int threads) {{
  GOMP_parallel(body, context, (unsigned)threads, 0);
}}"""
"""What parallel loops call in code that this process loads: the thread support of `runtime.thread_support`, and libgomp, whichever
compiler is used."""
