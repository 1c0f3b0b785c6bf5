"""Arrays of callers, memory of executors, and what compiled functions take: three views of the same bytes, without copies.

Executors hold numpy arrays, the *storage*.  numpy has no bfloat16, so that its storage is uint16, and the true type is told to
DLPack only.  DLPack refuses read-only arrays, though operands are never written: they pass through a second array at their address.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.lazy_negation import is_negated, negation
from tunesmith.support import dtype as dt
from tunesmith.support.errors import RunError

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""

_UINT16 = np.dtype("uint16")
_UINT, _BFLOAT = 1, 4
_CODE_OFFSET = 20
"""Of the type code in a `DLTensor`, which a capsule named dltensor starts with."""
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _Recoded:
    """An array whose elements DLPack calls by another type code of the same size."""

    __slots__ = ("_array", "_code")

    def __init__(self, array: Any, code: int) -> None:
        self._array, self._code = array, code

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._array.__dlpack_device__()
        return device

    def __dlpack__(self, **_: object) -> object:
        capsule: object = self._array.__dlpack__()
        ctypes.c_uint8.from_address(_pointer(capsule, b"dltensor") + _CODE_OFFSET).value = self._code
        return capsule


@cache
def storage_dtype(dtype: str) -> np.dtype:
    """The numpy type that holds elements of a scalar type."""
    return _UINT16 if dtype == "bfloat16" else np.dtype(dtype)


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * dt.nbytes(dtype)


def aligned(size: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def empty(size: int) -> np.ndarray:
    """Uninitialised bytes at an aligned address.  RunError if there is not so much memory."""
    try:
        block = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise RunError(f"the program needs {size} bytes for its intermediate tensors, which cannot be had: {error}") from error
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


def placed(memory: np.ndarray, offset: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """The storage of a tensor that lies in a block of bytes.

    Raises:
        RunError: it does not lie in there.
    """
    size = nbytes(dtype, shape)
    if not 0 <= offset <= memory.nbytes - size:
        raise RunError(f"a tensor of {size} bytes at offset {offset} does not fit into memory of {memory.nbytes} bytes")
    return memory[offset : offset + size].view(storage_dtype(dtype)).reshape(tuple(shape))


def writable(array: np.ndarray) -> np.ndarray:
    """The same elements in an array that says it may be written, and is never to be written."""
    if array.flags.writeable:
        return array
    return np.asarray(_Unlocked(array)) if array.nbytes else array.copy()


class _Unlocked:
    """The memory of a read-only array, in the words of numpy's array interface."""

    def __init__(self, array: np.ndarray) -> None:
        self._keep = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def passable(value: object) -> object:
    """What DLPack passes in the place of a numpy array that it refuses, a read-only one or one of a package's bfloat16, and that will not
    be written if it is read-only; any other value as it is."""
    if not isinstance(value, np.ndarray):
        return value
    dtype = value.dtype.name
    known = value.view(np.ndarray).view(np.uint16) if dtype == "bfloat16" else value
    if known is value and value.flags.writeable:
        return value
    return tensor(writable(known), dtype)


def at_address(address: int, size: int, keep: object) -> np.ndarray:
    """Bytes that lie somewhere in this process; `keep` lives as long as they are used."""
    return np.asarray(_Memory(address, size, keep))


class _Memory:
    """Bytes at an address, in the words of numpy's array interface."""

    def __init__(self, address: int, size: int, keep: object) -> None:
        self._keep = keep
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def tensor(array: np.ndarray, dtype: str) -> tvm_ffi.Tensor:
    """What a compiled function takes: a view of storage."""
    return tvm_ffi.from_dlpack(_Recoded(array, _BFLOAT) if dtype == "bfloat16" else array)


def storage(value: object, dtype: str) -> np.ndarray:
    """The storage of a caller's array: its own memory if that is contiguous, else one contiguous copy.

    Args:
        value: a numpy, torch or other DLPack array in CPU memory.
        dtype: what its elements must be.
    Raises:
        RunError: it is no array, or has another element type; the message does not say which array.
    """
    array = value if type(value) is np.ndarray else _imported(value)
    wanted = storage_dtype(dtype)
    if dtype == "bfloat16" and array.dtype.name == "bfloat16":
        array = array.view(np.uint16)  # a package has added the type to numpy
    if array.dtype != wanted or (wanted is _UINT16 and _name_of(value) != dtype):
        raise RunError(f"expected {dtype}, got {_name_of(value)}. Convert it first: executors never convert elements")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C", copy=True)
    return writable(array)


def _name_of(value: object) -> str:
    return str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")


def _imported(value: object) -> np.ndarray:
    """A numpy array over the memory of any other array."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise RunError(f"expected an array (numpy, torch or any other with DLPack), got a value of type {kind}")
    if is_negated(value):
        raise negation(f"expected {_name_of(value)} as memory holds it", value)
    try:
        return np.from_dlpack(_Recoded(value, _UINT) if _name_of(value) == "bfloat16" else value)
    except Exception as error:  # each library raises what it likes
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise RunError(f"this {kind} cannot be read through DLPack as CPU memory: {error}") from error
