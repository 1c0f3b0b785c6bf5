"""Check the arguments of device functions, and locate their memory on the device or the host.

Error messages are worded as in `runtime.checker.argument_checker`, which makes the same checks for CPU functions.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.runtime import dlpack
from tunesmith.runtime.arrays import nbytes
from tunesmith.runtime.checker.call_arguments import CallArguments
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import ALIGNMENT, DeviceArray
from tunesmith.runtime.device.device import Allocation, Device, cpu
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.support.errors import RunError


@dataclass(frozen=True, slots=True)
class Operand:
    """A checked argument.

    Attributes:
        memory: memory of its elements, on the device or the host.
        owner: keeps the memory alive.
        ordered: the stream of the call orders the call after earlier work on the argument and before later work on it, so that no
            synchronisation is needed.
    """

    memory: Allocation
    owner: object
    ordered: bool

    @property
    def on_host(self) -> bool:
        """Whether the memory is on the host, and must be copied."""
        return self.memory.device.kind == "cpu"


@dataclass(frozen=True, slots=True)
class CallStream:
    """The stream of a call.

    Attributes:
        handle: a stream of the device API.
        address: address of the current stream of the arguments' library; None if there is no such stream.
    """

    handle: int
    address: int | None

    @property
    def number(self) -> int:
        """DLPack stream number; 1 is the default stream."""
        return self.address or 1


def call_stream(device: Device, arguments: Sequence[object]) -> CallStream:
    """The stream of a call.

    That is the current stream of torch, CuPy or TVM-FFI if an argument is a tensor of theirs on the device, else the current stream of the
    device API in this thread.
    """
    if device.kind == "cuda":
        for argument in arguments:
            address = _current_stream(argument)
            if address is not None:
                try:
                    return CallStream(device.api.foreign_stream(device.index, address) if address else 0, address)
                except RunError:  # the driver does not support foreign streams
                    return CallStream(0, None)
    return CallStream(device.api.current_stream(device.index), None)


def _current_stream(array: Any) -> int | None:
    """Address of the current stream of a CUDA array's library, which is loaded because it created the array.

    For the tensor of a C caller, it is the stream that TVM-FFI has set.
    """
    if isinstance(array, TensorView):
        return _ffi_stream(array.device[1]) if array.device[0] == dlpack.CUDA else None
    library = type(array).__module__.partition(".")[0]
    module: Any = sys.modules.get(library)
    if library == "torch" and getattr(array, "is_cuda", False):
        return int(module.cuda.current_stream(array.device).cuda_stream)
    if library == "cupy" and hasattr(array, "__dlpack__"):
        return int(module.cuda.get_current_stream().ptr)
    return None


def _ffi_stream(index: int) -> int:
    """Address of the stream that TVM-FFI has set in this thread for a CUDA device; 0 is the default stream."""
    get = tvm_ffi.LIB.TVMFFIEnvGetStream
    get.restype = ctypes.c_void_p
    return get(ctypes.c_int32(dlpack.CUDA), ctypes.c_int32(index)) or 0


class Signature(CallArguments):
    """Name and parameters of a device function.

    Args:
        name: name of the function.
        params: its parameters.
        device: the device that runs it.
    """

    def __init__(self, name: str, params: Sequence[ParamSpec], device: Device) -> None:
        super().__init__(name, params)
        self.device = device

    def operands(self, arguments: Sequence[object], stream: CallStream) -> list[Operand]:
        """Check the arguments.

        Raises:
            RunError: an argument is invalid; the message names the argument, the expected and the actual value.
        """
        self.check_count(arguments)
        found = [self._operand(i, argument, stream) for i, argument in enumerate(arguments)]
        # Kernels assume that pointers do not alias, and aliased host arrays would be copied back over each other.
        for i, a in enumerate(found):
            for j, b in enumerate(found[:i]):
                if _overlap(a.memory, b.memory):
                    self.refuse_shared(i, j)
        return found

    def _operand(self, i: int, argument: object, stream: CallStream) -> Operand:
        if isinstance(argument, DeviceArray):
            self.check_type(i, argument.dtype, argument.shape)
            if argument.device != self.device:
                raise self.refusal(i, f"got memory of {argument.device}: pass an array on {self.device} or the host")
            if self.params[i].written and argument.read_only:
                raise self.refusal(i, "got a read-only array, and it is written: pass a writable copy")
            current = self.device.api.current_stream(self.device.index)
            return Operand(argument.allocation, argument, ordered=stream.handle == current)
        view = self.view(i, argument, stream.number)
        self.check_type(i, view.dtype, view.shape)
        self.check_layout(i, view)
        on_host = view.device[0] == dlpack.CPU
        api = self.device.api
        if not on_host and view.device != (api.dlpack_type, self.device.index):
            kind, index = view.device
            raise self.refusal(
                i, f"got memory of DLPack device type {kind}, index {index}: pass an array on {self.device} or the host (device type 1)"
            )
        self.check_address(i, view, 1 if on_host or not api.has_addresses else ALIGNMENT)
        size = nbytes(view.dtype, view.shape)
        if on_host:
            return Operand(Allocation(cpu(), view.address, size), view, ordered=False)
        known = _current_stream(argument)
        ordered = known is not None and known == stream.address
        if api.has_addresses:
            return Operand(Allocation(self.device, view.address, size), view, ordered)
        imported = DeviceArray.of_view(self.device, view)
        return Operand(imported.allocation, imported, ordered)


def _overlap(a: Allocation, b: Allocation) -> bool:
    """Whether two allocations share bytes.  OpenCL handles are not addresses, but equal or distinct: allocations are never split."""
    if a.device.kind != b.device.kind or not a.nbytes or not b.nbytes:
        return False
    if a.device.kind == "opencl":
        return a.handle == b.handle
    return a.handle < b.handle + b.nbytes and b.handle < a.handle + a.nbytes
