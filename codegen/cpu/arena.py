"""Lay out the scratch memory of a kernel: one block with a shared part, then one private part per thread.

A block of constant size is static memory of the kernel, up to `STATIC_BYTES` for all kernels of an object, because code addresses its
data with 32-bit offsets.  If it is larger, or a buffer has a dynamic size, the whole block is allocated on the heap at the start of each
call, so that a kernel whose allocation fails has done nothing yet.
"""

from __future__ import annotations

from tunesmith.ir.poly import ZERO, Poly, ceildiv
from tunesmith.support.errors import BuildError

STATIC_BYTES = 768 << 20
"""Limit of static scratch memory of an object; constants of a library may take another GB of the 2 GB that code can address."""
STACK_BYTES = 256 * 1024
"""Limit of the register buffers of a function: buffers that do not become values in registers are on the stack of a thread, which may be
as small as 1 MB.  A buffer beyond the limit is placed in the arena, like scratch memory."""
LARGEST_BYTES = 1 << 47
"""Address space of a process."""
PAGE, LINE = 4096, 64
STAGGER = 17 * LINE
"""Difference between the page offsets of consecutive scratch buffers."""
SHARED, PRIVATE = "<shared>", "<private>"
"""Placeholders in the text for sizes known at the end of a kernel."""


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
        self.reserved: list[tuple[Poly, int, bool]] = []
        self._largest = (0, "")

    def reserve(self, name: str, size: Poly, private: bool) -> Poly:
        """The offset in the arena of a scratch buffer of `size` bytes, which is never negative.

        Each buffer starts in a page of its own, at a different page offset: a store and a later load whose addresses agree in the last
        12 bits alias in the CPU's store buffer, and rows of 4 KB are common.
        """
        at = len(self.reserved) * STAGGER % PAGE + STAGGER // 2 // LINE * LINE
        self.reserved.append((size, at, private))
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
        return bool(self.reserved)

    @property
    def nbytes(self) -> int:
        """The size of a block of constant size."""
        return self.shared.as_int() + self.private.as_int() * self.threads

    @property
    def detail(self) -> str:
        """Text about the largest buffer, if the size is constant."""
        nbytes, name = self._largest
        return f"; the largest is {name}, {nbytes} bytes" if nbytes and not self.dynamic else ""

    def place(self, static_left: int) -> None:
        """Choose static memory or the heap, once all buffers are reserved.

        Args:
            static_left: bytes left for a static block.
        Raises:
            BuildError: the arena exceeds the address space of a process.
        """
        if self.dynamic or not self.used:
            return
        if self.nbytes >= LARGEST_BYTES:
            raise BuildError(
                f"{self.kernel.removesuffix('_kernel')}: intermediate buffers take {self.nbytes} bytes{self.detail}: more than a process "
                "can address. Compute them where they are used (compute_at, compute_inline), or reduce the problem size"
            )
        self.heap = self.nbytes > static_left

    def filled(self, text: str) -> str:
        """The text of a function with placeholders replaced by the sizes."""
        if self.dynamic:
            return text
        return text.replace(SHARED, str(self.shared.as_int())).replace(PRIVATE, str(self.private.as_int()))
