"""Drive CUDA devices through PyCUDA.

PyCUDA wraps only a part of the driver: foreign streams cannot be used, and the number of kernel parameters is unknown.  Its errors are
strings, from which lost devices are detected.  A context cannot be current in several threads, so calls are serialised by a lock, and its
objects can be freed only while their context is current, so freeing is deferred to the next call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from tunesmith.runtime.device import cuda_driver
from tunesmith.runtime.device.device import DeviceAttributes
from tunesmith.runtime.device.driver import Driver, DriverError
from tunesmith.runtime.device.program import Dim3
from tunesmith.support.errors import MissingExtraError

T = TypeVar("T")

_DEFAULT_SHARED_BYTES = 48 << 10

_NAMES = {
    "an illegal memory access was encountered": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "the launch timed out and was terminated": "CUDA_ERROR_LAUNCH_TIMEOUT",
    "unspecified launch failure": "CUDA_ERROR_LAUNCH_FAILED",
    "device-side assert triggered": "CUDA_ERROR_ASSERT",
    "hardware stack error": "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "an illegal instruction was encountered": "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "misaligned address": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "operation not supported on global/shared address space": "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "invalid program counter": "CUDA_ERROR_INVALID_PC",
    "context is destroyed": "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "uncorrectable ECC error encountered": "CUDA_ERROR_ECC_UNCORRECTABLE",
    "uncorrectable NVLink error detected during the execution": "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "out of memory": "CUDA_ERROR_OUT_OF_MEMORY",
    "invalid argument": "CUDA_ERROR_INVALID_VALUE",
    "device kernel image is invalid": "CUDA_ERROR_INVALID_IMAGE",
    "no kernel image is available for execution on the device": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "named symbol not found": "CUDA_ERROR_NOT_FOUND",
}
"""Text of `cuGetErrorString` -> name of the error."""


class _Code:
    """A loaded CUDA module, and its kernels by name."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.kernels: dict[str, _Kernel] = {}


class _Kernel:
    """A CUDA function, and its limit of dynamic shared memory."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.shared_limit = _DEFAULT_SHARED_BYTES


class PyCudaDriver(Driver):
    """PyCUDA calls, with memory as addresses and errors raised as DriverError."""

    alignment = cuda_driver.ALIGNMENT

    _context_lock = threading.RLock()
    _contexts: ClassVar[dict[int, Any]] = {}
    """Primary contexts, retained until the process ends."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._dropped: list[Any] = []
        """Objects to free while a context is current."""

    @cached_property
    def _cuda(self) -> Any:
        try:
            import pycuda.driver as driver
        except ImportError as error:  # also if libcuda is missing, to which the module is linked
            if "libcuda" in str(error):
                raise DriverError("ImportError", str(error)) from error
            raise MissingExtraError("pycuda", "pycuda", "running CUDA code by TUNESMITH_CUDA_DRIVER=pycuda") from error
        return driver

    @cached_property
    def _state(self) -> tuple[int, str]:
        """Number of devices, and the reason if there are none."""
        hint = "NVIDIA's driver is needed, `nvidia-smi` shows whether it works"
        try:
            self._try(self._cuda.init)
            return self._try(self._cuda.Device.count), "CUDA starts and finds no device: look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"
        except MissingExtraError as error:
            return 0, str(error)
        except DriverError as error:
            return 0, f"CUDA does not start: {error}. {hint}"

    def count(self) -> int:
        return self._state[0]

    def missing(self) -> str:
        return self._state[1]

    def attributes(self, index: int) -> DeviceAttributes:
        cuda = self._cuda
        device = cuda.Device(index)

        def get(name: str) -> int:
            known = getattr(cuda.device_attribute, name, None)  # older versions lack some attributes
            return 0 if known is None else int(device.get_attribute(known))

        return self._try(lambda: cuda_driver.attributes(get, device.name().strip(), cuda.mem_get_info(), cuda.get_driver_version()))

    def enter(self, index: int) -> object:
        self._context_lock.acquire()
        try:
            self._try(self._context(index).push)
        except BaseException:
            self._context_lock.release()
            raise
        self._dropped.clear()
        return self._contexts[index]

    def leave(self, entered: Any) -> None:
        try:
            entered.pop()
        except self._cuda.Error:
            return  # the device is lost, which the previous call has reported
        finally:
            self._context_lock.release()

    def allocate(self, index: int, nbytes: int) -> int:
        memory = self._try(lambda: self._cuda.mem_alloc(nbytes))
        self._memory[int(memory)] = memory
        return int(memory)

    def free(self, memory: int) -> None:
        self._try(self._memory.pop(memory).free)

    def copy_in(self, address: int, target: int, offset: int, nbytes: int, stream: Any) -> None:
        self._try(lambda: self._cuda.memcpy_htod_async(target + offset, _bytes_at(address, nbytes), stream))

    def copy_out(self, source: int, offset: int, address: int, nbytes: int, stream: Any) -> None:
        self._try(lambda: self._cuda.memcpy_dtoh_async(_bytes_at(address, nbytes), source + offset, stream))

    def copy_within(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int, stream: Any) -> None:
        self._try(lambda: self._cuda.memcpy_dtod_async(target + target_offset, source + source_offset, nbytes, stream))

    def copy_between(
        self, source: tuple[int, int], source_offset: int, target: tuple[int, int], target_offset: int, nbytes: int, stream: Any
    ) -> None:
        to, start = self._context(target[0]), self._context(source[0])
        self._try(lambda: self._cuda.memcpy_peer_async(target[1] + target_offset, source[1] + source_offset, nbytes, to, start, stream))

    def default_stream(self, index: int) -> object:
        return None

    def create_stream(self, index: int) -> object:
        return self._try(lambda: self._cuda.Stream(cuda_driver.NON_BLOCKING))

    def foreign_stream(self, index: int, address: int) -> object:
        raise DriverError("NOT_SUPPORTED", "PyCUDA does not support foreign streams: unset TUNESMITH_CUDA_DRIVER to use them")

    def free_stream(self, stream: Any) -> None:
        self._dropped.append(stream)

    def synchronise(self, stream: Any) -> None:
        if stream is not None:
            self._try(stream.synchronize)
            return
        mark = self.record(None, None)
        self._try(lambda: mark.synchronize())  # type: ignore[attr-defined]

    def record(self, mark: Any, stream: Any) -> object:
        return self._try(lambda: (mark if mark is not None else self._cuda.Event()).record(stream))

    def wait(self, mark: Any, stream: Any) -> None:
        if stream is not None:
            self._try(lambda: stream.wait_for_event(mark))
            return
        self._try(mark.synchronize)  # PyCUDA has no object for the default stream: the host waits

    def elapsed(self, start: Any, stop: Any) -> float:
        self._try(stop.synchronize)
        milliseconds: float = self._try(lambda: start.time_till(stop))
        return milliseconds * 1e-3

    def free_mark(self, mark: Any) -> None:
        self._dropped.append(mark)

    def load(self, index: int, code: bytes, options: str) -> object:
        if options:
            text = f"compiled code takes no options, got {options!r}: pass them to the compiler"
            raise DriverError("CUDA_ERROR_INVALID_VALUE", text)
        return _Code(self._try(lambda: self._cuda.module_from_buffer(code + b"\0")))

    def unload(self, code: Any) -> None:
        # Wait for the whole context, because the streams of kernels in flight are not recorded.
        self._try(self._cuda.Context.synchronize)
        self._dropped.append(code)

    def kernel(self, code: Any, name: str) -> object:
        found = code.kernels.get(name)
        if found is None:
            try:
                function = self._try(lambda: code.module.get_function(name))
            except DriverError as error:
                raise error if error.lost else DriverError(error.name, f"the code has no kernel {name!r}") from error
            found = code.kernels[name] = _Kernel(function)
        return found

    def parameter_count(self, kernel: Any) -> int | None:
        return None

    def launch(self, kernel: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[int], stream: Any) -> None:
        if shared_bytes > kernel.shared_limit:
            attribute = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._try(lambda: kernel.function.set_attribute(attribute, shared_bytes))
            kernel.shared_limit = shared_bytes
        packed = struct.pack(f"{len(arguments)}Q", *arguments)
        self._try(lambda: kernel.function._launch_kernel(grid, block, packed, shared_bytes, stream))

    def _context(self, index: int) -> Any:
        found = self._contexts.get(index)
        if found is None:
            with self._context_lock:
                found = self._contexts.get(index) or self._try(lambda: self._cuda.Device(index).retain_primary_context())
                self._contexts[index] = found
        return found

    def _try(self, call: Callable[[], T]) -> T:
        cuda = self._cuda
        try:
            return call()
        except cuda.Error as error:
            # `cuMemAlloc failed: out of memory`, optionally followed by ` - ` and further text.
            text = str(error).partition("failed: ")[2].partition(" - ")[0].strip() or str(error)
            name = _NAMES.get(text, type(error).__name__)
            raise DriverError(name, text, name in cuda_driver.LOST) from error


def _bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(address)
