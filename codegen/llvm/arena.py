"""The scratch memory of a kernel: one block with a part that all threads share, then a part for each thread.

Of constant size it is static memory of the kernel, up to `STATIC_BYTES` for all kernels of an object: code reaches its data by 32-bit
distances.  Where it is larger, or a buffer's size comes with the call, the block is taken from the heap at the start of each call, all
of it at once, so that a kernel that is refused memory has not begun.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.codegen.llvm.sizes import CheckedSizes
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv
from tunesmith.support.errors import BuildError

STATIC_BYTES = 768 << 20
"""Static scratch memory of an object at most; constants of a library may take another GB of the 2 GB that code reaches."""
LARGEST_BYTES = 1 << 47
"""What a process can address."""
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
        self.heap = dynamic
        self.shared = ZERO
        self.private = ZERO
        self._rooms: list[tuple[Poly, int, bool]] = []
        self._largest = (0, "")

    def reserve(self, name: str, size: Poly, private: bool) -> Poly:
        """The place of a scratch buffer of so many bytes, never negative, in the arena.

        Each starts in a page of its own, and each at another distance from the page's start: a store and a later load
        whose addresses agree in the last 12 bits look like one address to the processor, and rows of 4 KB are common.
        """
        at = len(self._rooms) * STAGGER % PAGE + STAGGER // 2 // LINE * LINE
        self._rooms.append((size, at, private))
        if size.const is not None:
            self._largest = max(self._largest, (size.const * (self.threads if private else 1), name), key=lambda x: x[0])
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

    @property
    def nbytes(self) -> int:
        """The size of a block of constant size."""
        return self.shared.as_int() + self.private.as_int() * self.threads

    @property
    def detail(self) -> str:
        """What there is to say about a block of constant size."""
        nbytes, name = self._largest
        return f"; the largest is {name}, {nbytes} bytes" if nbytes and not self.dynamic else ""

    def filled(self, text: str) -> str:
        """The text of a function with the sizes put in."""
        if not self.dynamic:
            text = text.replace(SHARED, str(self.shared.as_int())).replace(PRIVATE, str(self.private.as_int()))
        return text.replace(WORKSPACE, "%ws" if self.used else "null")

    def acquire(self, env: Mapping[Var, str], declares: set[str], globals_: list[str], static_left: int, before: str) -> list[str]:
        """The start of the kernel, up to the label `entry`.

        Args:
            env: LLVM names of the sizes that come with the call.
            declares: takes the declarations that are needed.
            globals_: takes the static block.
            static_left: how large a static block may be.
            before: label of the block that these lines continue.
        Raises:
            BuildError: no process could have so much memory.
        """
        if not self.used:
            return ["  br label %entry", "entry:"]
        declares |= {"declare ptr @aligned_alloc(i64, i64)", "declare void @free(ptr)"}
        if self.dynamic:
            return self._from_heap(env, declares, before)
        if self.nbytes >= LARGEST_BYTES:
            raise BuildError(
                f"{self.kernel.removesuffix('_kernel')}: intermediate buffers take {self.nbytes} bytes{self.detail}: more than a process "
                "can address. Compute them where they are used (compute_at, compute_inline), or make the function smaller"
            )
        self.heap = self.nbytes > static_left
        return self._block_from_heap() if self.heap else self._static(globals_)

    def release(self) -> list[str]:
        """The end of the kernel, before it returns."""
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
        """Take the static block, or, when another thread is inside the same kernel, memory of our own."""
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
        """Take a block of constant size from the heap; the kernel returns the bytes it was refused."""
        return [
            f"  %ws = call ptr @aligned_alloc(i64 {PAGE}, i64 {self.nbytes})",
            "  %none = icmp eq ptr %ws, null",
            "  br i1 %none, label %refused, label %entry",
            "refused:",
            f"  ret i64 {self.nbytes}",
            "entry:",
        ]

    def _from_heap(self, env: Mapping[Var, str], declares: set[str], before: str) -> list[str]:
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
            f"  %wanted = phi i64 [ {_MOST}, %{before} ], [ {total}, %take ]",
            "  ret i64 %wanted",
            "entry:",
        ]
