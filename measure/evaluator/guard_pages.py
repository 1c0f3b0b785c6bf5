"""Arrays between guards: what candidate code writes outside its own output is noticed, and can hurt no other array.

The memory of an array ends at a page that cannot be touched (or up to 63 bytes before it, to be aligned), so that running
past the end is a segmentation fault, and so is running far below the start.  The few bytes between are filled with a
pattern that is compared after the run.  Inputs are sealed: any write to them is a segmentation fault, too.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.runtime.arrays import storage_dtype
from tunesmith.support import dtype as dtypes
from tunesmith.support.errors import RunError

Array = npt.NDArray[Any]

ALIGNMENT = 64
"""Bytes, of the first element: a cache line, and the widest vector."""

_FENCE = 1 << 16
"""Bytes on either side that cannot be touched: wider than the step of most loops that run away.  Address space only."""
_HUGE = 4 << 20
"""From this size on numpy asks for huge pages; measured memory is like the memory of a user."""
_PATTERN = 0xA5
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_BFLOAT16 = (4, 16)
"""DLPack's code and bits."""


class GuardedArray:
    """Memory for one argument of a compiled function.

    Args:
        dtype: element type.
        shape: extents.

    Attributes:
        data: the elements as a numpy array; bfloat16, which numpy does not know, as the uint16 of its bits.

    Raises:
        RunError: there is not enough memory.
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
        self._mend()
        self.data: Array = self._inside[start : start + size].view(storage_dtype(dtype)).reshape(shape)

    def seal(self) -> None:
        """From now on a write to it is a segmentation fault."""
        self._protect(self._inside.ctypes.data, self._inside.nbytes, mmap.PROT_READ)
        self._sealed = True

    def damaged(self) -> bool:
        """Whether somebody wrote next to the array since the last call.  The guards are mended."""
        if self._sealed or not (np.any(self._before != _PATTERN) or np.any(self._after != _PATTERN)):
            return False
        self._mend()
        return True

    def store(self, values: Array) -> None:
        """Fill it; values of a bfloat16 array are float32."""
        self.data[...] = to_bfloat16(values) if self.dtype == "bfloat16" else values

    def load(self) -> Array:
        """Its values; those of a bfloat16 array as float32.  A view of the memory where that is possible."""
        return from_bfloat16(self.data) if self.dtype == "bfloat16" else self.data

    def argument(self) -> object:
        """What a compiled function takes for it; valid while this object lives."""
        return argument_of(self.dtype, self.data)

    def _mend(self) -> None:
        self._before[...] = _PATTERN
        self._after[...] = _PATTERN

    @staticmethod
    def _protect(address: int, size: int, access: int) -> None:
        if _LIBC.mprotect(address, size, access) != 0:
            raise RunError(f"cannot protect {size} bytes at {address:#x}: error {ctypes.get_errno()}")


def round_to(dtype: str, values: Array) -> Array:
    """The nearest values that an element of the type can hold, as numpy holds them (bfloat16 in float32)."""
    return from_bfloat16(to_bfloat16(values)) if dtype == "bfloat16" else values.astype(storage_dtype(dtype))


def argument_of(dtype: str, data: Array) -> object:
    """What a compiled function takes for an array of this storage; valid while the array lives."""
    return _BFloat16Tensor(data) if dtype == "bfloat16" else data


def to_bfloat16(values: Array) -> Array:
    """Bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    """The values of bfloat16 bits, in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class _Tensor(ctypes.Structure):
    """`DLManagedTensor` of DLPack 0.x, its `DLTensor` laid out flat."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CPU = 1
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new_capsule.restype = ctypes.py_object


class _BFloat16Tensor:
    """The bits of bfloat16 elements, offered through DLPack.  Whoever takes it must not outlive it."""

    def __init__(self, bits: Array) -> None:
        self._bits = bits
        self._shape = (ctypes.c_int64 * max(1, bits.ndim))(*bits.shape)
        self._tensor = _Tensor(
            bits.ctypes.data, _CPU, 0, bits.ndim, *_BFLOAT16, 1, ctypes.cast(self._shape, ctypes.c_void_p), None, 0, None, None
        )

    def __dlpack__(self, **_: object) -> object:
        return _new_capsule(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0
