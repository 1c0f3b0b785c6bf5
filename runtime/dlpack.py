"""Read and write DLPack capsules: exchange arrays with any library without importing it.

Both protocols are supported: the capsules of DLPack 1.0, which have a version and flags, and those of 0.x.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

CPU, CUDA, OPENCL = 1, 2, 4
"""Device types."""
READ_ONLY, IS_COPY = 1, 2
"""Flags of DLPack 1.0."""

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
"""Capsule names; module constants, because a capsule keeps only a pointer to its name."""
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


class Tensor(ctypes.Structure):
    """DLTensor of the stable C ABI."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack 0.x."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


@dataclass(frozen=True, slots=True)
class TensorView:
    """An array as described by DLPack.

    Attributes:
        address: address of the first element; the handle of the memory if it has no addresses (OpenCL).
        device: DLPack device type and index.
        dtype: as in `support.dtype`; unsupported types such as `complex64` as their library spells them.
        shape: extents.
        strides: in elements; None if the array is contiguous and its strides are omitted.
        owner: keeps the memory alive.
        read_only: the elements must not be written.
        offset: bytes from the start of memory without addresses to the first element; else 0.
    """

    address: int
    device: tuple[int, int]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    owner: object
    read_only: bool = False
    offset: int = 0


def read(array: Any, stream: int | None = None) -> TensorView:
    """A view of the array, which keeps its memory alive.

    Args:
        array: has `__dlpack__`.
        stream: for CUDA arrays, the DLPack stream number (1 is the default stream): work pending on the array completes before any work
            enqueued on this stream afterwards.
    Raises:
        Any exception of the array's library, if the array cannot be exported.
    """
    options: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a library older than DLPack 1.0
        capsule = array.__dlpack__(**options)
    if not _is_valid(capsule, _VERSIONED):
        return view(Tensor.from_address(_pointer(capsule, _PLAIN)), capsule)
    managed = _ManagedVersioned.from_address(_pointer(capsule, _VERSIONED))
    if managed.major != 1:
        raise BufferError(f"its capsule has version {managed.major}.{managed.minor} of DLPack, and 1.x or 0.x can be read")
    return view(managed.tensor, capsule, bool(managed.flags & READ_ONLY))


def view(t: Tensor, owner: object, read_only: bool = False) -> TensorView:
    """A view of the tensor of a C caller, whose memory `owner` keeps alive."""
    ndim = max(t.ndim, 0)
    shape = tuple(t.shape[:ndim]) if ndim and t.shape else ()
    strides = tuple(t.strides[:ndim]) if ndim and t.strides else None
    device = (t.device_type, t.device_index)
    address, offset = (t.data or 0, t.byte_offset) if t.device_type == OPENCL else ((t.data or 0) + t.byte_offset, 0)
    return TensorView(address, device, _dtype(t), shape, strides, owner, read_only, offset)


def numpy_view(array: np.ndarray) -> TensorView:
    """A view of a numpy array, also of one that DLPack refuses: read-only, byte-swapped, or of bfloat16."""
    strides = None if array.flags.c_contiguous else tuple([s // array.itemsize for s in array.strides])
    dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
    return TensorView(array.ctypes.data, (CPU, 0), dtype, array.shape, strides, array, not array.flags.writeable)


def _dtype(t: Tensor) -> str:
    word = _CODES.get(t.code, f"DLPack code {t.code} ")
    dtype = "bool" if word == "bool" and t.bits == 8 else f"{word}{t.bits}"
    return f"{dtype}x{t.lanes}" if t.lanes != 1 else dtype


class _Memory:
    """Memory that numpy makes an array of: the array refers to this object, and so to the owner of the memory."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str, owner: object, read_only: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, read_only), "shape": shape, "typestr": dtype, "version": 3}


def write(
    address: int,
    device: tuple[int, int],
    dtype: str,
    shape: tuple[int, ...],
    owner: object,
    versioned: bool = False,
    flags: int = 0,
) -> object:
    """A capsule of a contiguous array.

    It is numpy's capsule of the same number of bytes, with the address, device and type of this array.  numpy releases it in native code:
    consumers and Python's garbage collector do so also while an exception is raised, when no function in Python may run.

    Args:
        address: address of the first element.
        device: DLPack device type and index.
        dtype: a scalar type as in `support.dtype`.
        shape: extents.
        owner: keeps the memory alive; referenced until the consumer releases the array, or the capsule if there is no consumer.
        versioned: use the struct of DLPack 1.0 instead of 0.x.  numpy 2.0 has only that of 0.x.
        flags: READ_ONLY and IS_COPY, for DLPack 1.0.
    Raises:
        BufferError: the array is read-only, and numpy 2.0 cannot say so.
    """
    code, bits = _typed(dtype)
    array = np.asarray(_Memory(address, shape, f"=u{bits // 8}", owner, bool(flags & READ_ONLY)))
    versioned = versioned and np.lib.NumpyVersion(np.__version__) >= "2.1.0"
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    managed: _Managed | _ManagedVersioned
    if versioned:
        managed = _ManagedVersioned.from_address(_pointer(capsule, _VERSIONED))
        managed.flags = flags
    else:
        managed = _Managed.from_address(_pointer(capsule, _PLAIN))
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_index, tensor.code, tensor.bits = address, *device, code, bits
    return capsule


def _typed(dtype: str) -> tuple[int, int]:
    """DLPack type code and bits of a type."""
    if dtype == "bool":
        return 6, 8
    word = dtype.rstrip("0123456789")
    codes = {name: code for code, name in _CODES.items()}
    return codes[word], int(dtype.removeprefix(word))


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether the layout is compact and row-major; strides of extents 1 are ignored."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True
