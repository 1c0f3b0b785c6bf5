"""Detect out-of-bounds writes of candidate code, with arrays between inaccessible guard pages.

An array ends at an inaccessible page, or up to 63 bytes before it for alignment: writes past the end or far before the start are
segmentation faults.  The bytes between the array and the guard pages hold a pattern that is checked after the run.  Inputs are sealed: any
write to them is a segmentation fault.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.runtime.arrays import storage_dtype, tensor
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import RunError

Array = npt.NDArray[Any]

ALIGNMENT = 64
"""Alignment of the first element in bytes: a cache line, and the widest vector."""

_FENCE = 1 << 16
"""Inaccessible bytes on either side: wider than the stride of most runaway loops.  Costs address space only."""
_HUGE = 4 << 20
"""Size from which numpy requests huge pages; candidates are timed on memory like that of a user."""
_PATTERN = 0xA5
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
"""DLPack type code and bits."""


class GuardedArray:
    """Memory for one argument of a compiled function.

    Args:
        dtype: element type.
        shape: extents.

    Attributes:
        data: the elements as a numpy array; bfloat16, which numpy lacks, as uint16 bits.

    Raises:
        RunError: memory is exhausted.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        size = math.prod(shape) * dtypes.nbytes(dtype)
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE
        try:
            self._memory = mmap.mmap(-1, pages + 2 * _FENCE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise RunError(f"cannot allocate {size} bytes for {dtype}{list(shape)}: {error.strerror or error}") from error
        everything = np.frombuffer(self._memory, np.uint8)
        self._inside = everything[_FENCE : _FENCE + pages]
        if pages >= _HUGE:
            self._memory.madvise(mmap.MADV_HUGEPAGE, _FENCE, pages)
        self._protect(everything.ctypes.data, _FENCE, 0)
        self._protect(self._inside.ctypes.data + pages, _FENCE, 0)
        start = (pages - size) // ALIGNMENT * ALIGNMENT
        self._before, self._after = self._inside[:start], self._inside[start + size :]
        self._sealed = False
        self._reset_pattern()
        self.data: Array = self._inside[start : start + size].view(storage_dtype(dtype)).reshape(shape)

    def seal(self) -> None:
        """Make the array read-only: further writes are segmentation faults."""
        self._protect(self._inside.ctypes.data, self._inside.nbytes, mmap.PROT_READ)
        self._sealed = True

    def damaged(self) -> bool:
        """True if the pattern around the array was overwritten since the last call.  The pattern is restored."""
        if self._sealed or not (np.any(self._before != _PATTERN) or np.any(self._after != _PATTERN)):
            return False
        self._reset_pattern()
        return True

    def store(self, values: Array) -> None:
        """Set the elements; values for a bfloat16 array are float32."""
        self.data[...] = to_bfloat16(values) if self.dtype == "bfloat16" else values

    def load(self) -> Array:
        """The elements; those of a bfloat16 array as float32, otherwise a view of the memory."""
        return from_bfloat16(self.data) if self.dtype == "bfloat16" else self.data

    def argument(self) -> object:
        """The array as an argument of a compiled function; valid during the lifetime of this object."""
        return argument_of(self.dtype, self.data)

    def _reset_pattern(self) -> None:
        self._before[...] = _PATTERN
        self._after[...] = _PATTERN

    @staticmethod
    def _protect(address: int, size: int, access: int) -> None:
        if _LIBC.mprotect(address, size, access) != 0:
            raise RunError(f"cannot protect {size} bytes at {address:#x}: error {ctypes.get_errno()}")


def round_to(dtype: str, values: Array) -> Array:
    """Values rounded to the dtype, in numpy's representation (bfloat16 as float32)."""
    return from_bfloat16(to_bfloat16(values)) if dtype == "bfloat16" else values.astype(storage_dtype(dtype))


def argument_of(dtype: str, data: Array) -> object:
    """The storage array as an argument of a compiled function."""
    return tensor(data, dtype) if dtype == "bfloat16" else data


def to_bfloat16(values: Array) -> Array:
    """Bits of the nearest bfloat16 values, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    """Values of bfloat16 bits, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
