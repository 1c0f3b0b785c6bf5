"""Check the arguments of device functions, and locate their memory on the device or the host.

Error messages are worded as in `runtime.checker.argument_checker`, which makes the same checks for CPU functions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.runtime import dlpack
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import ALIGNMENT, DeviceArray
from tunesmith.runtime.device.device import Allocation, Device, cpu
from tunesmith.runtime.dlpack import TensorView
from tunesmith.runtime.lazy_negation import is_negated, negation
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
    """The current stream of torch or CuPy if an argument is an array of theirs on the device, else the default stream."""
    if device.kind == "cuda":
        for argument in arguments:
            address = _current_stream(argument)
            if address is not None:
                try:
                    return CallStream(device.api.foreign_stream(device.index, address) if address else 0, address)
                except RunError:  # the driver does not support foreign streams
                    break
    return CallStream(0, None)


def _current_stream(array: Any) -> int | None:
    """Address of the current stream of a CUDA array's library, which is loaded because it created the array."""
    library = type(array).__module__.partition(".")[0]
    module: Any = sys.modules.get(library)
    if library == "torch" and getattr(array, "is_cuda", False):
        return int(module.cuda.current_stream(array.device).cuda_stream)
    if library == "cupy" and hasattr(array, "__dlpack__"):
        return int(module.cuda.get_current_stream().ptr)
    return None


class Signature:
    """Name and parameters of a device function.

    Args:
        name: name of the function.
        params: its parameters.
        device: the device that runs it.
    """

    def __init__(self, name: str, params: Sequence[ParamSpec], device: Device) -> None:
        self.name, self.params, self.device = name, params, device

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.name}: {p}' for p in self.params)})"

    def operands(self, arguments: Sequence[object], stream: CallStream) -> list[Operand]:
        """Check the arguments.

        Raises:
            RunError: an argument is invalid; the message names the argument, the expected and the actual value.
        """
        if len(arguments) != len(self.params):
            raise RunError(f"{self.name}: expected {len(self.params)} argument(s), got {len(arguments)}; signature: {self}")
        found = [self._operand(i, argument, stream) for i, argument in enumerate(arguments)]
        self._refuse_overlaps(found)
        return found

    def _operand(self, i: int, argument: object, stream: CallStream) -> Operand:
        if isinstance(argument, DeviceArray):
            self._check(i, argument.dtype, argument.shape)
            if argument.device != self.device:
                raise self._refusal(i, f"got memory of {argument.device}: pass an array on {self.device} or the host")
            return Operand(argument.allocation, argument, ordered=stream.handle == 0)
        view = self._view(i, argument, stream)
        self._check(i, view.dtype, view.shape)
        if not dlpack.contiguous(view.shape, view.strides):
            hint = "it must be contiguous and row-major, pass a copy (numpy.ascontiguousarray)"
            raise self._refusal(i, f"got strides {list(view.strides or ())} (in elements): {hint}")
        spec, on_host = self.params[i], view.device[0] == dlpack.CPU
        if not on_host and (self.device.kind, view.device) != ("cuda", (dlpack.CUDA, self.device.index)):
            kind, index = view.device
            raise self._refusal(
                i, f"got memory of DLPack device type {kind}, index {index}: pass an array on {self.device} or the host (device type 1)"
            )
        if spec.nbytes and not view.address:
            raise self._refusal(i, "got a null pointer")
        if spec.nbytes and not on_host and view.address % ALIGNMENT:
            raise self._refusal(i, f"got the address {view.address:#x}, which is not a multiple of {ALIGNMENT}: pass a copy")
        memory = Allocation(cpu() if on_host else self.device, view.address, spec.nbytes)
        known = None if on_host else _current_stream(argument)
        return Operand(memory, view, ordered=known is not None and known == stream.address)

    def _view(self, i: int, argument: Any, stream: CallStream) -> TensorView:
        """A view of an argument of any library."""
        kind = f"{type(argument).__module__}.{type(argument).__name__}".removeprefix("builtins.")
        if isinstance(argument, np.ndarray):
            if self.params[i].written and not argument.flags.writeable:
                raise self._refusal(i, "got a read-only array, and it is written: pass a writable copy")
            # Not through DLPack, which refuses read-only arrays; operands may be read-only.
            strides = None if argument.flags.c_contiguous else tuple([s // argument.itemsize for s in argument.strides])
            name = argument.dtype.name if argument.dtype.isnative else argument.dtype.str
            return TensorView(argument.ctypes.data, (dlpack.CPU, 0), name, argument.shape, strides, argument)
        if not hasattr(argument, "__dlpack__") or not hasattr(argument, "__dlpack_device__"):
            raise self._refusal(i, f"got a value of type {kind}: pass an array (numpy, torch or any other with DLPack)")
        if is_negated(argument):
            raise negation(f"{self.name}: argument {i} ({self.params[i].name})", argument)
        try:
            on_gpu = int(argument.__dlpack_device__()[0]) == dlpack.CUDA
            return dlpack.read(argument, stream.number if on_gpu else None)
        except Exception as error:  # libraries raise exceptions of any type
            raise self._refusal(i, f"got a {kind} that cannot be passed through DLPack: {error}") from error

    def _check(self, i: int, dtype: str, shape: tuple[int, ...]) -> None:
        if dtype != self.params[i].dtype:
            raise self._refusal(i, f"got dtype {dtype}")
        if shape != self.params[i].shape:
            raise self._refusal(i, f"got shape {list(shape)}")

    def _refuse_overlaps(self, operands: Sequence[Operand]) -> None:
        """Refuse aliases: kernels assume that pointers do not alias, and aliased host arrays would be copied back over each other."""
        for i, a in enumerate(operands):
            for j, b in enumerate(operands[:i]):
                if (self.params[i].written or self.params[j].written) and _overlap(a.memory, b.memory):
                    shared = f"got memory that it shares with argument {j} ({self.params[j].name})"
                    raise self._refusal(i, f"{shared}, and one of the two is written: pass separate arrays")

    def _refusal(self, i: int, got: str) -> RunError:
        return RunError(f"{self.name}: argument {i} ({self.params[i].name}): expected {self.params[i]}, {got}")


def _overlap(a: Allocation, b: Allocation) -> bool:
    """Whether two allocations share bytes.  OpenCL handles are not addresses, but equal or distinct: allocations are never split."""
    if a.device.kind != b.device.kind or not a.nbytes or not b.nbytes:
        return False
    if a.device.kind == "opencl":
        return a.handle == b.handle
    return a.handle < b.handle + b.nbytes and b.handle < a.handle + a.nbytes
