"""DLPack capsules, read: what an array of any library is and where it lies, without importing the library.

Offsets are those of `DLTensor` in the stable C ABI of DLPack 0.x: {data 0, device type 8, id 12, ndim 16, type code 20, bits 21, lanes 22,
shape 24, strides 32, byte_offset 40}.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

CPU, CUDA = 1, 2
"""Device types."""

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


@dataclass(frozen=True, slots=True)
class TensorView:
    """An array as DLPack tells it.

    Attributes:
        address: of its first element.
        device: DLPack's device type and index.
        dtype: as in `support.dtype`; `complex64` and others that are none of ours as their library would say it.
        shape: extents.
        strides: in elements; None where the array is contiguous and says no more.
        owner: keeps the memory.
    """

    address: int
    device: tuple[int, int]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    owner: object


def read(array: Any, stream: int | None = None) -> TensorView:
    """The array, whose memory lives as long as the view.

    Args:
        array: has `__dlpack__`.
        stream: of CUDA arrays, in DLPack's numbers (1 is the default stream): what was started for the array is done before what is put
            into this stream from now on.
    Raises:
        whatever the array's library raises when it cannot be passed.
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


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether elements follow each other in row-major order; strides of extents 1 do not count."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True
