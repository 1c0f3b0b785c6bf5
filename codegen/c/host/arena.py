"""Print the scratch memory of a kernel in C: its allocation at the start, and its release at the end."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.codegen.c.host.sizes import CheckedSizes
from tunesmith.codegen.cpu.arena import PAGE, Arena
from tunesmith.ir.poly import Var

SHARED_BYTES, PRIVATE_BYTES = "shared_bytes", "private_bytes"
"""C names of the sizes in a kernel with a dynamic arena."""


class CArena(Arena):
    """An arena, with the C code that allocates it."""

    def globals(self) -> list[str]:
        """Definitions before the kernel: the static block, and whether a call is using it."""
        if not self.used or self.heap:
            return []
        return [
            f"static _Alignas({PAGE}) char {self.kernel}_arena[{self.nbytes}];",
            f"static atomic_flag {self.kernel}_busy = ATOMIC_FLAG_INIT;",
        ]

    def acquire(self, env: Mapping[Var, str], prelude: Prelude) -> list[str]:
        """Lines at the start of the kernel; it returns the size of an allocation that failed."""
        if not self.used:
            return []
        if self.dynamic:
            return self._from_heap(env, prelude)
        if self.heap:
            return [
                f"char *const workspace = aligned_alloc({PAGE}, {self.nbytes});",
                f"if (!workspace) return INT64_C({self.nbytes});",
            ]
        return [
            "bool own; /* whether this call uses the static block, or another thread does */",
            "char *workspace;",
            "do {",
            f"  own = !atomic_flag_test_and_set_explicit(&{self.kernel}_busy, memory_order_acquire);",
            f"  workspace = own ? {self.kernel}_arena : aligned_alloc({PAGE}, {self.nbytes});",
            "} while (!workspace);",
        ]

    def release(self) -> list[str]:
        """Lines at the end of the kernel."""
        if not self.used:
            return []
        if self.heap:
            return ["free(workspace);"]
        return [
            f"if (own) atomic_flag_clear_explicit(&{self.kernel}_busy, memory_order_release);",
            "else free(workspace);",
        ]

    def _from_heap(self, env: Mapping[Var, str], prelude: Prelude) -> list[str]:
        """Allocate a block whose size depends on the call; the sizes are summed with overflow checks."""
        sizes = CheckedSizes(env, "m", prelude)
        parts: dict[bool, list[str]] = {False: [], True: []}
        for size, at, private in self.reserved:
            parts[private].append(sizes.rounded_up(sizes.total([sizes.value(size), str(at)]), PAGE))
        shared, private_bytes = sizes.total(parts[False]), sizes.total(parts[True])
        total = sizes.total([shared, sizes.product([private_bytes, str(self.threads)])])
        return [
            "bool overflow = false;",
            *sizes.lines,
            "if (overflow) return INT64_MAX;",
            f"const int64_t {SHARED_BYTES} = {shared}, {PRIVATE_BYTES} = {private_bytes};",
            f"(void){SHARED_BYTES}, (void){PRIVATE_BYTES};",
            f"char *const workspace = aligned_alloc({PAGE}, {total});",
            f"if (!workspace) return {total};",
        ]
