"""Make TVM-FFI functions of Python callables that take tensors, for callers in C, C++ and other languages of the same process.

`tvm_ffi.convert` would pass the `DLTensor*` of a C caller as an object that crashes the process if the pointer is null, or refers to a
null shape: the arguments are read here instead.  Layouts are those of TVM-FFI's stable C ABI, as in `runtime.checker.argument_checker`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tunesmith.runtime import dlpack
from tunesmith.runtime.checker.call_arguments import UnusableValue
from tunesmith.runtime.ffi import tvm_ffi

_TENSOR_POINTER, _TENSOR_OBJECT = 7, 70
"""Type indices of a bare `DLTensor*`, and of a tensor object, whose `DLTensor` follows a header."""
_HEADER = 24
_LIB: Any = tvm_ffi.LIB


class _Any(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _TypeInfo(ctypes.Structure):
    """The start of TVMFFITypeInfo."""

    _fields_ = (("index", ctypes.c_int32), ("depth", ctypes.c_int32), ("key", _Bytes))


_SafeCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Any), ctypes.c_int32, ctypes.c_void_p)
_get_type_info = ctypes.CFUNCTYPE(ctypes.POINTER(_TypeInfo), ctypes.c_int32)(("TVMFFIGetTypeInfo", _LIB))


def ffi_function(call: Callable[..., object]) -> tvm_ffi.Function:
    """A TVM-FFI function that calls `call` with a `TensorView` for each tensor, valid during the call, and `UnusableValue` for others.

    Its result is None.  Exceptions of the callable are errors of the caller, of the kind `RuntimeError` if it is an error of tunesmith.
    Calls from other threads wait for the interpreter lock.
    """

    def safe_call(_: object, arguments: Any, count: int, result: object) -> int:
        try:
            call(*[_argument(arguments[i]) for i in range(count)])
        except BaseException as error:  # one that left this function would be printed, and the call would succeed
            kind = type(error).__name__ if type(error).__module__ == "builtins" else "RuntimeError"
            _raise(kind, str(error))
            return -1
        return 0

    callback = _SafeCall(safe_call)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=callback)


def _argument(value: _Any) -> dlpack.TensorView | UnusableValue:
    if value.type not in (_TENSOR_POINTER, _TENSOR_OBJECT):
        info = _get_type_info(value.type)
        key = ctypes.string_at(info.contents.key.data, info.contents.key.size).decode(errors="replace")
        return UnusableValue(f"a value of type {key}: pass a tensor (numpy, torch or any other DLPack array)")
    if not value.value:
        return UnusableValue("a null pointer")
    tensor = dlpack.Tensor.from_address(value.value + (_HEADER if value.type == _TENSOR_OBJECT else 0))
    return dlpack.view(tensor, None) if tensor.ndim <= 0 or tensor.shape else UnusableValue("a null pointer")


def _raise(kind: str, message: str) -> None:
    """Set the error of this thread, without a trace of native frames, whose first collection takes half a second."""
    texts: Sequence[bytes] = (kind.encode(), message.encode(errors="replace"), b"")
    error = ctypes.c_void_p()
    if _LIB.TVMFFIErrorCreate(*[ctypes.byref(_Bytes(t, len(t))) for t in texts], ctypes.byref(error)) == 0:
        _LIB.TVMFFIErrorSetRaised(error)
        _LIB.TVMFFIObjectDecRef(error)
