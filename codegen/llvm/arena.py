"""Lay out the scratch memory of a kernel: one block with a shared part, then one private part per thread.

A block of constant size is static memory of the kernel, up to `STATIC_BYTES` for all kernels of an object, because code addresses its
data with 32-bit offsets.  If it is larger, or a buffer has a dynamic size, the whole block is allocated on the heap at the start of each
call, so that a kernel whose allocation fails has done nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.llvm.sizes import CheckedSizes
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv
from tunesmith.support.errors import BuildError

STATIC_BYTES = 768 << 20
"""Limit of static scratch memory of an object; constants of a library may take another GB of the 2 GB that code can address."""
LARGEST_BYTES = 1 << 47
"""Address space of a process."""
PAGE, LINE = 4096, 64
STAGGER = 17 * LINE
"""Difference between the page offsets of consecutive scratch buffers."""
SHARED, PRIVATE, WORKSPACE = "<shared>", "<private>", "<workspace>"
"""Placeholders in the text for sizes known at the end of a kernel."""
SHARED_BYTES, PRIVATE_BYTES = "%arena.shared", "%arena.private"
"""LLVM names of the sizes in a kernel with a dynamic arena."""
_MOST = 2**63 - 1


class Arena:
    """Layout of scratch buffers.

    Args:
        kernel: name of the kernel.
        threads: number of private parts.
        dynamic: whether some buffer has a dynamic size.
    """

    def __init__(self, kernel: str, threads: int, dynamic: bool) -> None:
        self.kernel, self.threads, self.dynamic = kernel, threads, dynamic
        self.heap = dynamic
        self.shared = ZERO
        self.private = ZERO
        self._reserved: list[tuple[Poly, int, bool]] = []
        self._largest = (0, "")

    def reserve(self, name: str, size: Poly, private: bool) -> Poly:
        """The offset in the arena of a scratch buffer of `size` bytes, which is never negative.

        Each buffer starts in a page of its own, at a different page offset: a store and a later load whose addresses agree in the last
        12 bits alias in the CPU's store buffer, and rows of 4 KB are common.
        """
        at = len(self._reserved) * STAGGER % PAGE + STAGGER // 2 // LINE * LINE
        self._reserved.append((size, at, private))
        if size.const is not None:
            self._largest = max(self._largest, (size.const * (self.threads if private else 1), name), key=lambda x: x[0])
        padded = ceildiv(size + at, PAGE) * PAGE
        start = self.private if private else self.shared
        if private:
            self.private = start + padded
        else:
            self.shared = start + padded
        return start + at

    @property
    def used(self) -> bool:
        """Whether anything was reserved."""
        return bool(self._reserved)

    @property
    def nbytes(self) -> int:
        """The size of a block of constant size."""
        return self.shared.as_int() + self.private.as_int() * self.threads

    @property
    def detail(self) -> str:
        """Text about the largest buffer, if the size is constant."""
        nbytes, name = self._largest
        return f"; the largest is {name}, {nbytes} bytes" if nbytes and not self.dynamic else ""

    def filled(self, text: str) -> str:
        """The text of a function with placeholders replaced by the sizes."""
        if not self.dynamic:
            text = text.replace(SHARED, str(self.shared.as_int())).replace(PRIVATE, str(self.private.as_int()))
        return text.replace(WORKSPACE, "%ws" if self.used else "null")

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
        if self.nbytes >= LARGEST_BYTES:
            raise BuildError(
                f"{self.kernel.removesuffix('_kernel')}: intermediate buffers take {self.nbytes} bytes{self.detail}: more than a process "
                "can address. Compute them where they are used (compute_at, compute_inline), or reduce the problem size"
            )
        self.heap = self.nbytes > static_left
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
        for size, at, private in self._reserved:
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
