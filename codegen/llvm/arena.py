"""Emit the scratch memory of a kernel in LLVM IR: its allocation at the start, and its release at the end."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.cpu.arena import PAGE, Arena
from tunesmith.codegen.llvm.sizes import CheckedSizes
from tunesmith.ir.poly import Var

SHARED_BYTES, PRIVATE_BYTES = "%arena.shared", "%arena.private"
"""LLVM names of the sizes in a kernel with a dynamic arena."""
WORKSPACE = "<workspace>"
"""Placeholder in the text for the name of the block, which is known at the end of a kernel."""
_MOST = 2**63 - 1


class LlvmArena(Arena):
    """An arena, with the LLVM IR that allocates it."""

    def filled(self, text: str) -> str:
        """The text of a function with placeholders replaced by the sizes and the name of the block."""
        return super().filled(text).replace(WORKSPACE, "%ws" if self.used else "null")

    def acquire(self, env: Mapping[Var, str], declares: set[str], globals_: list[str], static_left: int, before: str) -> list[str]:
        """Instructions at the start of the kernel, up to the label `entry`.

        Args:
            env: LLVM names of the dynamic sizes.
            declares: receives the required declarations.
            globals_: receives the static block.
            static_left: bytes left for a static block.
            before: label of the block that these lines continue.
        Raises:
            BuildError: the arena exceeds the address space of a process.
        """
        if not self.used:
            return ["  br label %entry", "entry:"]
        declares |= {"declare ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)"}
        if self.dynamic:
            return self._from_heap(env, declares, before)
        self.place(static_left)
        return self._block_from_heap() if self.heap else self._static(globals_)

    def release(self) -> list[str]:
        """Instructions at the end of the kernel, before it returns."""
        if not self.used:
            return []
        if self.heap:
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
        """Take the static block, or heap memory if another thread is running the same kernel."""
        n, total = self.kernel, self.nbytes
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

    def _block_from_heap(self) -> list[str]:
        """Allocate a block of constant size on the heap; the kernel returns its size if that fails."""
        return [
            f"  %ws = call ptr @aligned_alloc(i64 {PAGE}, i64 {self.nbytes})",
            "  %none = icmp eq ptr %ws, null",
            "  br i1 %none, label %refused, label %entry",
            "refused:",
            f"  ret i64 {self.nbytes}",
            "entry:",
        ]

    def _from_heap(self, env: Mapping[Var, str], declares: set[str], before: str) -> list[str]:
        """Allocate the block on the heap; the kernel returns its size if that fails.

        The sizes are summed with overflow checks, so that the offsets of `reserve` do not overflow.
        """
        sizes = CheckedSizes(env, "room", declares)
        parts: dict[bool, list[str]] = {False: [], True: []}
        for size, at, private in self.reserved:
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
            f"  %wanted = phi i64 [ {_MOST}, %{before} ], [ {total}, %take ]",
            "  ret i64 %wanted",
            "entry:",
        ]
