"""The scratch memory of a kernel: one block with a part that all threads share, then a part for each thread.

Of constant size it is static memory of the kernel.  Where a buffer's size comes with the call, the block is taken from the heap at
the start of each call, all of it at once, so that a kernel that is refused memory has not begun.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.llvm_sizes import CheckedSizes
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv

PAGE, LINE = 4096, 64
STAGGER = 17 * LINE
"""Distance between the places of scratch buffers within their pages."""
SHARED, PRIVATE, WORKSPACE = "<shared>", "<private>", "<workspace>"
"""Stand in the text for sizes that are known at the end of a kernel."""
SHARED_BYTES, PRIVATE_BYTES = "%arena.shared", "%arena.private"
"""Names of the sizes in a kernel that takes its block from the heap."""
_MOST = 2**63 - 1


class Arena:
    """Places for scratch buffers.

    Args:
        kernel: name of the kernel.
        threads: how many private parts there are.
        dynamic: whether the size of some buffer is no number.
    """

    def __init__(self, kernel: str, threads: int, dynamic: bool) -> None:
        self.kernel, self.threads, self.dynamic = kernel, threads, dynamic
        self.shared = ZERO
        self.private = ZERO
        self._rooms: list[tuple[Poly, int, bool]] = []

    def reserve(self, size: Poly, private: bool) -> Poly:
        """The place of a scratch buffer of so many bytes, never negative, in the arena.

        Each starts in a page of its own, and each at another distance from the page's start: a store and a later load
        whose addresses agree in the last 12 bits look like one address to the processor, and rows of 4 KB are common.
        """
        at = len(self._rooms) * STAGGER % PAGE + STAGGER // 2 // LINE * LINE
        self._rooms.append((size, at, private))
        room = ceildiv(size + at, PAGE) * PAGE
        start = self.private if private else self.shared
        if private:
            self.private = start + room
        else:
            self.shared = start + room
        return start + at

    @property
    def used(self) -> bool:
        """Whether anything was reserved."""
        return bool(self._rooms)

    def filled(self, text: str) -> str:
        """The text of a function with the sizes put in."""
        if not self.dynamic:
            text = text.replace(SHARED, str(self.shared.as_int())).replace(PRIVATE, str(self.private.as_int()))
        return text.replace(WORKSPACE, "%ws" if self.used else "null")

    def acquire(self, env: Mapping[Var, str], declares: set[str], globals_: list[str]) -> list[str]:
        """The start of the kernel, up to the label `entry`."""
        if not self.used:
            return ["  br label %entry", "entry:"]
        declares |= {"declare ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)"}
        return self._from_heap(env, declares) if self.dynamic else self._static(globals_)

    def release(self) -> list[str]:
        """The end of the kernel, before it returns."""
        if not self.used:
            return []
        if self.dynamic:
            return ["  call void @free(ptr %ws)"]
        return [
            "  br i1 %own, label %give, label %drop",
            "give:",
            f"  store atomic i8 0, ptr @{self.kernel}.busy release, align 1",
            "  br label %end",
            "drop:",
            "  call void @free(ptr %ws)",
            "  br label %end",
            "end:",
        ]

    def _static(self, globals_: list[str]) -> list[str]:
        """Take the static block, or, when another thread is inside the same kernel, memory of our own."""
        n, total = self.kernel, self.shared.as_int() + self.private.as_int() * self.threads
        globals_.append(f"@{n}.arena = internal global [{total} x i8] zeroinitializer, align {PAGE}\n@{n}.busy = internal global i8 0")
        return [
            "  br label %try",
            "try:",
            f"  %seen = cmpxchg ptr @{n}.busy, i8 0, i8 1 acquire monotonic",
            "  %own = extractvalue { i8, i1 } %seen, 1",
            "  br i1 %own, label %have, label %more",
            "more:",
            f"  %heap = call ptr @aligned_alloc(i64 {PAGE}, i64 {total})",
            "  %none = icmp eq ptr %heap, null",
            "  br i1 %none, label %try, label %have",
            "have:",
            f"  %ws = phi ptr [ @{n}.arena, %try ], [ %heap, %more ]",
            "  br label %entry",
            "entry:",
        ]

    def _from_heap(self, env: Mapping[Var, str], declares: set[str]) -> list[str]:
        """Take the block from the heap; the kernel returns the bytes it was refused.

        The rooms are summed with every overflow noticed, so that the offsets inside, which `reserve` gives, are right.
        """
        sizes = CheckedSizes(env, "room", declares)
        parts: dict[bool, list[str]] = {False: [], True: []}
        for size, at, private in self._rooms:
            parts[private].append(sizes.rounded_up(sizes.total([sizes.value(size), str(at)]), PAGE))
        shared, private_bytes = sizes.total(parts[False]), sizes.total(parts[True])
        total = sizes.total([shared, sizes.product([private_bytes, str(self.threads)])])
        return [
            *sizes.lines,
            f"  {SHARED_BYTES} = add i64 {shared}, 0",
            f"  {PRIVATE_BYTES} = add i64 {private_bytes}, 0",
            f"  br i1 {sizes.bad}, label %refused, label %take",
            "take:",
            f"  %ws = call ptr @aligned_alloc(i64 {PAGE}, i64 {total})",
            "  %none = icmp eq ptr %ws, null",
            "  br i1 %none, label %refused, label %entry",
            "refused:",
            f"  %wanted = phi i64 [ {_MOST}, %start ], [ {total}, %take ]",
            "  ret i64 %wanted",
            "entry:",
        ]
