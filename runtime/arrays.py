"""Convert between caller arrays, executor memory and tensors of compiled functions without copies.

Executors hold numpy arrays, the *storage*.  numpy has no bfloat16: its storage is uint16, and only DLPack gets the true type.
DLPack refuses read-only arrays, although operands are never written: they are passed as a second array at the same address.
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
"""In bytes: the size of a cache line and of the widest vector."""

_UINT16 = np.dtype("uint16")
_UINT, _BFLOAT = 1, 4
_CODE_OFFSET = 20
"""Offset of the type code in the `DLTensor` at the start of a capsule named dltensor."""
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _Recoded:
    """An array exported through DLPack with another type code of the same size."""

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
    """The numpy type that stores elements of a scalar type."""
    return _UINT16 if dtype == "bfloat16" else np.dtype(dtype)


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Size of a tensor in bytes."""
    return math.prod(shape) * dt.nbytes(dtype)


def aligned(size: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def empty(size: int) -> np.ndarray:
    """Uninitialised bytes at an aligned address.  RunError if the memory cannot be allocated."""
    try:
        block = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise RunError(f"the program needs {size} bytes for its intermediate tensors, which cannot be allocated: {error}") from error
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


def placed(memory: np.ndarray, offset: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """The storage of a tensor at an offset of a block of bytes.

    Raises:
        RunError: the tensor exceeds the block.
    """
    size = nbytes(dtype, shape)
    if not 0 <= offset <= memory.nbytes - size:
        raise RunError(f"a tensor of {size} bytes at offset {offset} does not fit into memory of {memory.nbytes} bytes")
    return memory[offset : offset + size].view(storage_dtype(dtype)).reshape(tuple(shape))


def typed(storage: np.ndarray, dtype: str) -> np.ndarray:
    """A storage array as a numpy array of its type: bfloat16 of ml_dtypes instead of uint16."""
    return storage.view(_bfloat16()) if dtype == "bfloat16" else storage


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    """An array of floats, rounded to the nearest bfloat16 (of ml_dtypes), ties to even."""
    with np.errstate(invalid="ignore", over="ignore"):
        return array.astype(_bfloat16())


def _bfloat16() -> np.dtype:
    import ml_dtypes  # at the first use, since modules without bfloat16 need no package for it

    return np.dtype(ml_dtypes.bfloat16)


def in_float32(array: np.ndarray) -> np.ndarray:
    """An array of bfloat16 (of ml_dtypes) as float32, the storage of interpreters; other arrays unchanged."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def writable(array: np.ndarray) -> np.ndarray:
    """The same elements in an array that is flagged writable; it must not be written."""
    if array.flags.writeable:
        return array
    return np.asarray(_Unlocked(array)) if array.nbytes else array.copy()


class _Unlocked:
    """The memory of a read-only array, as a writable numpy array interface."""

    def __init__(self, array: np.ndarray) -> None:
        self._keep = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def passable(value: object) -> object:
    """A DLPack-compatible alias of a numpy array that DLPack refuses (read-only, or bfloat16 of a package); other values unchanged.

    The alias of a read-only array must not be written.
    """
    if not isinstance(value, np.ndarray):
        return value
    dtype = value.dtype.name
    known = value.view(np.ndarray).view(np.uint16) if dtype == "bfloat16" else value
    if known is value and value.flags.writeable:
        return value
    return tensor(writable(known), dtype)


def at_address(address: int, size: int, keep: object) -> np.ndarray:
    """Memory of this process as an array of bytes, which keeps `keep` alive."""
    return np.asarray(_Memory(address, size, keep))


class _Memory:
    """Bytes at an address, as a numpy array interface."""

    def __init__(self, address: int, size: int, keep: object) -> None:
        self._keep = keep
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def tensor(array: np.ndarray, dtype: str) -> tvm_ffi.Tensor:
    """A view of storage, as an argument of a compiled function."""
    return tvm_ffi.from_dlpack(_Recoded(array, _BFLOAT) if dtype == "bfloat16" else array)


def storage(value: object, dtype: str) -> np.ndarray:
    """The storage of a caller's array: its own memory if contiguous, else a contiguous copy.

    Args:
        value: a numpy, torch or other DLPack array in CPU memory.
        dtype: the required element type.
    Raises:
        RunError: the value is not an array, or has another element type; the message does not name the argument.
    """
    array = value if type(value) is np.ndarray else _imported(value)
    expected = storage_dtype(dtype)
    if dtype == "bfloat16" and array.dtype.name == "bfloat16":
        array = array.view(np.uint16)  # the type was added to numpy by a package
    if array.dtype != expected or (expected is _UINT16 and _name_of(value) != dtype):
        raise RunError(f"expected {dtype}, got {_name_of(value)}. Convert it first: executors never convert elements")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C", copy=True)
    return writable(array)


def _name_of(value: object) -> str:
    return str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")


def _imported(value: object) -> np.ndarray:
    """A numpy array that shares the memory of an array of any library."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise RunError(f"expected an array (numpy, torch or any other with DLPack), got a value of type {kind}")
    if is_negated(value):
        raise negation(f"expected {_name_of(value)} without a lazy negation", value)
    try:
        return np.from_dlpack(_Recoded(value, _UINT) if _name_of(value) == "bfloat16" else value)
    except Exception as error:  # libraries raise exceptions of any type
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise RunError(f"this {kind} cannot be read through DLPack as CPU memory: {error}") from error
