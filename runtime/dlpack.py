"""Read and write DLPack capsules: exchange arrays with any library without importing it.

Offsets are those of `DLTensor` in the stable C ABI of DLPack 0.x: {data 0, device type 8, id 12, ndim 16, type code 20, bits 21, lanes 22,
shape 24, strides 32, byte_offset 40}.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU, CUDA, OPENCL = 1, 2, 4
"""Device types."""
KINDS = {"cpu": CPU, "cuda": CUDA, "opencl": OPENCL}
"""Device kinds of tunesmith -> device types."""

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
"""Capsule names; module constants, because a capsule keeps only a pointer to its name."""
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _Tensor(ctypes.Structure):
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

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True, slots=True)
class TensorView:
    """An array as described by DLPack.

    Attributes:
        address: address of the first element.
        device: DLPack device type and index.
        dtype: as in `support.dtype`; unsupported types such as `complex64` as their library spells them.
        shape: extents.
        strides: in elements; None if the array is contiguous and its strides are omitted.
        owner: keeps the memory alive.
    """

    address: int
    device: tuple[int, int]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    owner: object


def read(array: Any, stream: int | None = None) -> TensorView:
    """A view of the array, which keeps its memory alive.

    Args:
        array: has `__dlpack__`.
        stream: for CUDA arrays, the DLPack stream number (1 is the default stream): work pending on the array completes before any work
            enqueued on this stream afterwards.
    Raises:
        Any exception of the array's library, if the array cannot be exported.
    """
    capsule = array.__dlpack__() if stream is None else array.__dlpack__(stream=stream)
    t = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[: t.ndim]) if t.ndim else ()
    strides = tuple(t.strides[: t.ndim]) if t.ndim and t.strides else None
    word = _CODES.get(t.code, f"DLPack code {t.code} ")
    dtype = "bool" if word == "bool" and t.bits == 8 else f"{word}{t.bits}"
    dtype = f"{dtype}x{t.lanes}" if t.lanes != 1 else dtype
    device = (t.device_type, t.device_index)
    return TensorView((t.data or 0) + t.byte_offset, device, dtype, shape, strides, capsule)


_API = ctypes.PyDLL(None)
_exported: dict[int, tuple[object, ...]] = {}
"""Address of a managed tensor -> objects that keep it alive until its consumer calls the deleter."""


def _release(address: int, _exported: dict[int, tuple[object, ...]] = _exported) -> None:
    _exported.pop(address, None)


def _destroy_capsule(capsule: int, _exported: dict[int, tuple[object, ...]] = _exported, api: Any = _API) -> None:
    """Release a capsule that was never consumed; a consumer would have renamed it."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if api.PyCapsule_IsValid(ctypes.c_void_p(capsule), name):
            api.PyCapsule_GetPointer.restype = ctypes.c_void_p
            _exported.pop(api.PyCapsule_GetPointer(ctypes.c_void_p(capsule), name), None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_release)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy_capsule)
for _callback in (_deleter, _destructor):
    # Consumers may outlive this module at process exit and call these functions then.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


def write(address: int, device: tuple[int, int], dtype: str, shape: tuple[int, ...], owner: object, versioned: bool = False) -> object:
    """A capsule of a contiguous array.

    Args:
        address: address of the first element.
        device: DLPack device type and index.
        dtype: a scalar type as in `support.dtype`.
        shape: extents.
        owner: keeps the memory alive; referenced until the consumer releases the array, or the capsule if there is no consumer.
        versioned: use the struct of DLPack 1.0 instead of 0.x.
    """
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.insert(0, steps[0] * max(extent, 1))
    strides = (ctypes.c_int64 * len(steps))(*steps)
    managed: _Managed | _ManagedVersioned = _ManagedVersioned() if versioned else _Managed()
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = 1, 0
    code, bits = _typed(dtype)
    managed.tensor = _Tensor(address, *device, len(shape), code, bits, 1, extents, strides, 0)
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    _exported[ctypes.addressof(managed)] = (managed, extents, strides, owner)
    name = _VERSIONED if versioned else _PLAIN
    return _new_capsule(ctypes.addressof(managed), name, ctypes.cast(_destructor, ctypes.c_void_p))


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
