"""Drive CUDA devices through `cuda.bindings.driver`, the low-level layer of NVIDIA's cuda-core.

cuda.core itself is not used for four reasons: it reports errors only as text, while a lost device must be distinguished from a refused
launch; it makes a device current in each thread permanently, which affects other libraries in the thread; it has no call to give a
kernel more than 48 KB of shared memory; and its import takes six times as long, in each measuring process.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tunesmith.runtime.device import cuda_driver
from tunesmith.runtime.device.device import DeviceAttributes
from tunesmith.runtime.device.driver import Driver, DriverError, PreparedLaunch
from tunesmith.runtime.device.program import Dim3
from tunesmith.support.errors import MissingExtraError

_DEFAULT_SHARED_BYTES = 48 << 10


class _Code:
    """A loaded CUDA module, and its kernels by name."""

    def __init__(self, index: int, module: Any) -> None:
        self.index, self.module = index, module
        self.kernels: dict[str, _Kernel] = {}


class _Kernel:
    """A CUDA function, its number of parameters, and its limit of dynamic shared memory."""

    def __init__(self, function: Any, parameters: int | None) -> None:
        self.function, self.parameters = function, parameters
        self.shared_limit = _DEFAULT_SHARED_BYTES


class _Graph(NamedTuple):
    """A graph, its nodes in the order of the launches, and the executable graph that was made of it."""

    graph: Any
    nodes: list[Any]
    executable: Any


class _Values:
    """The values of pointer arguments in the form that the driver takes.

    Attributes:
        address: of the array of pointers to the values.
    """

    def __init__(self, arguments: Sequence[int]) -> None:
        n = len(arguments)
        self._values = (ctypes.c_uint64 * n)(*arguments)
        first = ctypes.addressof(self._values)
        self._pointers = (ctypes.c_void_p * n)(*range(first, first + 8 * n, 8))
        self.address = ctypes.addressof(self._pointers)


class CudaCoreDriver(Driver):
    """CUDA driver calls, with errors raised as DriverError.  Streams are addresses; marks and kernels are objects of the package."""

    alignment = cuda_driver.ALIGNMENT
    has_graphs = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: dict[int, Any] = {}

    @cached_property
    def _cuda(self) -> Any:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise MissingExtraError("cuda-core", "cuda", "running CUDA code") from error
        return driver

    @cached_property
    def _state(self) -> tuple[int, str]:
        """Number of devices, and the reason if there are none."""
        try:
            cuda = self._cuda
        except MissingExtraError as error:
            return 0, str(error)
        hint = "It comes with NVIDIA's driver, `nvidia-smi` shows whether that works"
        try:
            (code,) = cuda.cuInit(0)
        except RuntimeError as error:  # the library is not found
            return 0, f"libcuda.so.1 cannot be loaded: {str(error).splitlines()[0]} {hint}"
        if code.value:
            return 0, f"CUDA does not start: {code.name}. {hint}"
        return self._call(cuda.cuDeviceGetCount), "CUDA starts and finds no device: look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"

    def count(self) -> int:
        return self._state[0]

    def missing(self) -> str:
        return self._state[1]

    def attributes(self, index: int) -> DeviceAttributes:
        cuda = self._cuda
        device = self._call(cuda.cuDeviceGet, index)

        def get(name: str) -> int:
            code: int = self._call(cuda.cuDeviceGetAttribute, getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
            return code

        name = self._call(cuda.cuDeviceGetName, 256, device).partition(b"\0")[0].decode().strip()
        return cuda_driver.attributes(get, name, self._call(cuda.cuMemGetInfo), self._call(cuda.cuDriverGetVersion))

    def enter(self, index: int) -> object:
        context, current = self._context(index), self._call(self._cuda.cuCtxGetCurrent)
        if int(current) == int(context):
            return False
        self._call(self._cuda.cuCtxPushCurrent, context)
        return True

    def leave(self, entered: Any) -> None:
        if entered:
            self._cuda.cuCtxPopCurrent()  # on a lost device this repeats the error of the previous call

    def allocate(self, index: int, nbytes: int) -> int:
        return int(self._call(self._cuda.cuMemAlloc, nbytes))

    def free(self, memory: int) -> None:
        self._call(self._cuda.cuMemFree, memory)

    def copy_in(self, address: int, target: int, offset: int, nbytes: int, stream: Any) -> None:
        self._call(self._cuda.cuMemcpyHtoDAsync, target + offset, address, nbytes, stream)

    def copy_out(self, source: int, offset: int, address: int, nbytes: int, stream: Any) -> None:
        self._call(self._cuda.cuMemcpyDtoHAsync, address, source + offset, nbytes, stream)

    def copy_within(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int, stream: Any) -> None:
        self._call(self._cuda.cuMemcpyDtoDAsync, target + target_offset, source + source_offset, nbytes, stream)

    def copy_between(
        self, source: tuple[int, int], source_offset: int, target: tuple[int, int], target_offset: int, nbytes: int, stream: Any
    ) -> None:
        contexts = [self._context(i) for i in (target[0], source[0])]
        places = target[1] + target_offset, contexts[0], source[1] + source_offset, contexts[1]
        self._call(self._cuda.cuMemcpyPeerAsync, *places, nbytes, stream)

    def default_stream(self, index: int) -> object:
        return 0

    def create_stream(self, index: int) -> object:
        return int(self._call(self._cuda.cuStreamCreate, cuda_driver.NON_BLOCKING))

    def foreign_stream(self, index: int, address: int) -> object:
        return address

    def free_stream(self, stream: Any) -> None:
        self._call(self._cuda.cuStreamDestroy, stream)

    def synchronise(self, stream: Any) -> None:
        self._call(self._cuda.cuStreamSynchronize, stream)

    def record(self, mark: Any, stream: Any) -> object:
        mark = mark if mark is not None else self._call(self._cuda.cuEventCreate, 0)
        self._call(self._cuda.cuEventRecord, mark, stream)
        return mark

    def wait(self, mark: Any, stream: Any) -> None:
        self._call(self._cuda.cuStreamWaitEvent, stream, mark, 0)

    def elapsed(self, start: Any, stop: Any) -> float:
        self._call(self._cuda.cuEventSynchronize, stop)
        milliseconds: float = self._call(self._cuda.cuEventElapsedTime, start, stop)
        return milliseconds * 1e-3

    def free_mark(self, mark: Any) -> None:
        self._call(self._cuda.cuEventDestroy, mark)

    def load(self, index: int, code: bytes, options: str) -> object:
        if options:
            text = f"compiled code takes no options, got {options!r}: pass them to the compiler"
            raise DriverError("CUDA_ERROR_INVALID_VALUE", text)
        # PTX is zero-terminated text; a cubin ignores a trailing zero.
        return _Code(index, self._call(self._cuda.cuModuleLoadData, code + b"\0"))

    def unload(self, code: Any) -> None:
        # Wait for the whole context, because the streams of kernels in flight are not recorded.
        self._call(self._cuda.cuCtxSynchronize)
        self._call(self._cuda.cuModuleUnload, code.module)

    def kernel(self, code: Any, name: str) -> object:
        found = code.kernels.get(name)
        if found is None:
            try:
                function = self._call(self._cuda.cuModuleGetFunction, code.module, name.encode())
            except DriverError as error:
                raise error if error.lost else DriverError(error.name, f"the code has no kernel {name!r}") from error
            found = code.kernels[name] = _Kernel(function, self._parameters(function))
        return found

    def parameter_count(self, kernel: Any) -> int | None:
        n: int | None = kernel.parameters
        return n

    def launch(self, kernel: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[int], stream: Any) -> None:
        self._allow_shared(kernel, shared_bytes)
        values = _Values(arguments)
        self._call(self._cuda.cuLaunchKernel, kernel.function, *grid, *block, shared_bytes, stream, values.address, 0)

    def create_graph(self, launches: Sequence[PreparedLaunch]) -> object:
        cuda = self._cuda
        graph = self._call(cuda.cuGraphCreate, 0)
        try:
            nodes: list[Any] = []
            for launch in launches:
                values, parameters = self._node(launch)
                before = nodes[-1:]
                nodes.append(self._call(cuda.cuGraphAddKernelNode, graph, before, len(before), parameters))
                del values  # the driver has copied them
            return _Graph(graph, nodes, self._call(cuda.cuGraphInstantiate, graph, 0))
        except BaseException:
            self._call(cuda.cuGraphDestroy, graph)
            raise

    def update_graph(self, graph: Any, position: int, launch: PreparedLaunch) -> None:
        values, parameters = self._node(launch)
        self._call(self._cuda.cuGraphExecKernelNodeSetParams, graph.executable, graph.nodes[position], parameters)
        del values  # the driver has copied them

    def launch_graph(self, graph: Any, stream: Any) -> None:
        self._call(self._cuda.cuGraphLaunch, graph.executable, stream)

    def free_graph(self, graph: Any) -> None:
        self._call(self._cuda.cuGraphExecDestroy, graph.executable)
        self._call(self._cuda.cuGraphDestroy, graph.graph)

    def _node(self, x: PreparedLaunch) -> tuple[_Values, Any]:
        """The values of the arguments, which must exist while the parameters of the node are used, and these."""
        self._allow_shared(x.kernel, x.shared_bytes)
        values, p = _Values(x.arguments), self._cuda.CUDA_KERNEL_NODE_PARAMS()
        p.func = x.kernel.function
        p.gridDimX, p.gridDimY, p.gridDimZ = x.grid
        p.blockDimX, p.blockDimY, p.blockDimZ = x.block
        p.sharedMemBytes = x.shared_bytes
        p.kernelParams = values.address
        return values, p

    def _allow_shared(self, kernel: Any, shared_bytes: int) -> None:
        """Raise the limit of dynamic shared memory of a kernel."""
        if shared_bytes > kernel.shared_limit:
            attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(self._cuda.cuFuncSetAttribute, kernel.function, attribute, shared_bytes)
            kernel.shared_limit = shared_bytes

    def _context(self, index: int) -> Any:
        """The primary context, retained until the process ends, as in torch."""
        found = self._contexts.get(index)
        if found is None:
            with self._lock:
                found = self._contexts.get(index)
                if found is None:
                    device = self._call(self._cuda.cuDeviceGet, index)
                    found = self._contexts[index] = self._call(self._cuda.cuDevicePrimaryCtxRetain, device)
        return found

    def _parameters(self, function: Any) -> int | None:
        """Number of kernel parameters; None for drivers before 12.4."""
        n, code = 0, self._cuda.CUresult
        while True:
            try:
                error = self._cuda.cuFuncGetParamInfo(function, n)[0]
            except RuntimeError:
                return None
            if error == code.CUDA_ERROR_INVALID_VALUE:
                return n
            if error != code.CUDA_SUCCESS:
                return None
            n += 1

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Call a driver function; return its results without the error code: None, a value, or a tuple."""
        error, *values = function(*arguments)
        if error.value:
            _, text = self._cuda.cuGetErrorString(error)
            raise DriverError(error.name, (text or b"").decode(), error.name in cuda_driver.LOST)
        return values[0] if len(values) == 1 else tuple(values) or None
