"""Provide OpenCL devices (CPUs and GPUs of any vendor) through pyopencl.

GPU programs are tested and measured with it on machines without a GPU: Intel's CPU runtime is installed with pip and needs no root
access.  A stream is an in-order command queue with profiling, and a mark is a marker command with its recorded end time.

Kernel objects store their arguments between calls, so each thread has its own.  pyopencl's disk cache is disabled, because a search
builds thousands of programs only once each.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from tunesmith.runtime import dlpack
from tunesmith.runtime.device.device import DeviceAttributes
from tunesmith.runtime.device.driver import Driver, DriverError
from tunesmith.runtime.device.driver_backed import DriverDeviceAPI
from tunesmith.runtime.device.program import Dim3
from tunesmith.support.errors import MissingExtraError
from tunesmith.support.temporary_folder import temporary_folder

T = TypeVar("T")

_VENDORS = "OCL_ICD_VENDORS"
"""Environment variable of the ICD loader: a folder with one file per runtime, which contains the path of its library."""
_SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")


def find_runtime() -> Path | None:
    """The library of Intel's CPU runtime, if it was installed with pip (package `intel-opencl-rt`); else None."""
    try:
        files = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(f.locate())).resolve() for f in files if f.name == "libintelocl.so"]
    return found[0] if found and found[0].is_file() else None


@contextmanager
def _vendors() -> Iterator[None]:
    """Let the ICD loader find the runtimes of the system, with Intel's in place of PoCL.

    Intel's runtime builds programs faster, and two LLVM versions in one process may conflict.  If the environment variable is set, it
    takes precedence.
    """
    library = find_runtime()
    if library is None or _VENDORS in os.environ:
        yield
        return
    with temporary_folder("tunesmith-opencl-") as folder:
        (folder / "intel.icd").write_text(f"{library}\n")
        for file in sorted(_SYSTEM_VENDORS.glob("*.icd")):
            text = file.read_text(errors="replace")
            if "pocl" not in text and "intelocl" not in text:
                (folder / file.name).write_text(text)
        os.environ[_VENDORS] = str(folder)
        try:
            yield
        finally:
            del os.environ[_VENDORS]


def import_opencl() -> Any:
    """Import pyopencl and let it enumerate its runtimes.

    Raises:
        MissingExtraError: pyopencl is not installed.
    """
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    os.environ.setdefault("POCL_KERNEL_CACHE", "0")
    try:
        with _vendors():
            import pyopencl

            try:
                pyopencl.get_platforms()  # the loader reads the folder only once, here
            except pyopencl.Error:
                pass  # no runtime is installed
    except ImportError as error:
        raise MissingExtraError("pyopencl", "opencl", "running OpenCL code") from error
    return pyopencl


class _Device:
    """A device with its context and its default queue."""

    def __init__(self, cl: Any, device: Any) -> None:
        self.cl, self.device = cl, device
        self.context = cl.Context([device])
        self.queue = self.create_queue()

    def create_queue(self) -> Any:
        """A queue whose commands are timed."""
        return self.cl.CommandQueue(self.context, properties=self.cl.command_queue_properties.PROFILING_ENABLE)


class _Code:
    """A built program, and its kernels by name, separate for each thread."""

    def __init__(self, program: Any, names: tuple[str, ...]) -> None:
        self.program, self.names = program, names
        self.threads = threading.local()

    @property
    def kernels(self) -> dict[str, Any]:
        """The kernels of this thread."""
        found: dict[str, Any] = self.threads.__dict__
        return found


class OpenClDriver(Driver):
    """The driver interface on pyopencl, which is imported when the first device is used."""

    alignment = 128
    """Size in bytes of the largest OpenCL vector, 16 doubles."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._buffers: dict[int, Any] = {}
        self._memory: dict[int, int] = {}
        """`cl_mem` of each buffer -> its number."""
        self._foreign: dict[int, int] = {}
        """Number of each buffer of another library -> number of its imports."""
        self._numbers = count(1)
        self._contexts: dict[int, _Device] = {}

    @cached_property
    def _cl(self) -> Any:
        with self._lock:
            return import_opencl()

    @cached_property
    def _devices(self) -> list[Any]:
        """GPUs, then CPUs, then others; each group in the order of platforms and their devices."""
        cl = self._cl
        try:
            found = [d for p in cl.get_platforms() for d in p.get_devices()]
        except cl.Error:
            return []
        ranks = [0 if d.type & cl.device_type.GPU else 1 if d.type & cl.device_type.CPU else 2 for d in found]
        return [d for _, _, d in sorted(zip(ranks, range(len(found)), found, strict=True), key=lambda x: x[:2])]

    def count(self) -> int:
        try:
            return len(self._devices)
        except MissingExtraError:
            return 0

    def missing(self) -> str:
        try:
            _ = self._cl
        except MissingExtraError as error:
            return str(error)
        return "no OpenCL runtime has a device. Install a CPU runtime with:  pip install 'tunesmith[opencl]'"

    def attributes(self, index: int) -> DeviceAttributes:
        d = self._devices[index]
        x, y, z = [int(n) for n in d.max_work_item_sizes[:3]]
        return DeviceAttributes(
            name=d.name.strip(),
            compute_units=d.max_compute_units,
            clock_hz=d.max_clock_frequency * 1_000_000 or None,
            memory_bytes=d.global_mem_size,
            l2_cache_bytes=d.global_mem_cache_size or None,
            max_threads_per_block=d.max_work_group_size,
            max_thread_dimensions=(x, y, z),
            max_shared_memory_per_block=d.local_mem_size,
            max_shared_memory_per_block_optin=d.local_mem_size,
            compute_version=".".join(d.version.split()[1:2]),
            driver_version=d.driver_version,
        )

    def enter(self, index: int) -> object:
        return None  # every OpenCL object refers to its context

    def leave(self, entered: Any) -> None:
        return None

    def allocate(self, index: int, nbytes: int) -> int:
        cl, here = self._cl, self._device(index)
        buffer = self._try(lambda: cl.Buffer(here.context, cl.mem_flags.READ_WRITE, nbytes))
        # Runtimes allocate lazily; migrating the buffer reports out of memory here.
        self._try(lambda: cl.enqueue_migrate_mem_objects(here.queue, [buffer], cl.mem_migration_flags.CONTENT_UNDEFINED).wait())
        with self._lock:
            return self._number(buffer)

    def _number(self, buffer: Any) -> int:
        number = next(self._numbers)
        self._buffers[number], self._memory[buffer.int_ptr] = buffer, number
        return number

    def export(self, memory: int) -> int:
        data: int = self._buffer(memory).int_ptr
        return data

    def foreign_memory(self, index: int, data: int, nbytes: int) -> int:
        with self._lock:
            number = self._memory.get(data)
            if number is None:
                buffer = self._try(lambda: self._cl.Buffer.from_int_ptr(data))
                if self._try(lambda: buffer.context) != self._device(index).context:
                    raise DriverError("INVALID_CONTEXT", "the memory is of another OpenCL context: copy the array through the host")
                number = self._number(buffer)
                self._foreign[number] = 0
            if number in self._foreign:
                self._foreign[number] += 1
        if self._buffer(number).size < nbytes:
            self.drop_foreign_memory(number)
            raise DriverError("INVALID_BUFFER_SIZE", f"the memory has fewer than {nbytes} bytes")
        return number

    def drop_foreign_memory(self, memory: int) -> None:
        with self._lock:
            if memory not in self._foreign:
                return  # memory of this driver, which was exported and imported again
            self._foreign[memory] -= 1
            if not self._foreign[memory]:
                del self._foreign[memory]
                buffer = self._buffers.pop(memory)
                del self._memory[buffer.int_ptr]
                self._try(buffer.release)

    def free(self, memory: int) -> None:
        with self._lock:
            buffer = self._buffers.pop(memory)
            del self._memory[buffer.int_ptr]
        self._try(buffer.release)  # the runtime keeps it until pending commands have finished

    def copy_in(self, address: int, target: int, offset: int, nbytes: int, stream: Any) -> None:
        host, buffer = _bytes_at(address, nbytes), self._buffer(target)
        self._try(lambda: self._cl.enqueue_copy(stream, buffer, host, dst_offset=offset, is_blocking=True))

    def copy_out(self, source: int, offset: int, address: int, nbytes: int, stream: Any) -> None:
        host, buffer = _bytes_at(address, nbytes), self._buffer(source)
        self._try(lambda: self._cl.enqueue_copy(stream, host, buffer, src_offset=offset, is_blocking=True))

    def copy_within(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int, stream: Any) -> None:
        pair = self._buffer(target), self._buffer(source)
        self._try(lambda: self._cl.enqueue_copy(stream, *pair, byte_count=nbytes, src_offset=source_offset, dst_offset=target_offset))

    def copy_between(
        self, source: tuple[int, int], source_offset: int, target: tuple[int, int], target_offset: int, nbytes: int, stream: Any
    ) -> None:
        # Each device has its own context, so the bytes are copied through the host.
        between = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(between)
        self.copy_out(source[1], source_offset, address, nbytes, stream)
        self.copy_in(address, target[1], target_offset, nbytes, self._device(target[0]).queue)

    def default_stream(self, index: int) -> object:
        return self._device(index).queue

    def create_stream(self, index: int) -> object:
        return self._try(self._device(index).create_queue)

    def foreign_stream(self, index: int, address: int) -> object:
        queue = self._try(lambda: self._cl.CommandQueue.from_int_ptr(address))
        if not queue.properties & self._cl.command_queue_properties.PROFILING_ENABLE:
            raise DriverError("INVALID_QUEUE_PROPERTIES", "the command queue was created without profiling, which marks need")
        return queue

    def free_stream(self, stream: Any) -> None:
        return None  # released with its last reference

    def synchronise(self, stream: Any) -> None:
        self._try(stream.finish)

    def record(self, mark: Any, stream: Any) -> object:
        marker = self._try(lambda: self._cl.enqueue_marker(stream))
        self._try(stream.flush)
        return marker

    def wait(self, mark: Any, stream: Any) -> None:
        self._try(lambda: self._cl.enqueue_barrier(stream, wait_for=[mark]))
        self._try(stream.flush)

    def elapsed(self, start: Any, stop: Any) -> float:
        def seconds() -> float:
            start.wait()
            stop.wait()
            return (stop.profile.end - start.profile.end) * 1e-9

        return self._try(seconds)

    def free_mark(self, mark: Any) -> None:
        return None

    def load(self, index: int, code: bytes, options: str) -> object:
        cl, here = self._cl, self._device(index)
        try:
            # Warning filters are global, and some compilers are not thread safe.
            with self._lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = cl.Program(here.context, code.decode()).build(options=options.split())
                names = tuple(sorted(name for name in program.kernel_names.split(";") if name))
        except (cl.Error, UnicodeDecodeError) as error:
            raise DriverError(_name(error), f"the program does not build:\n{error}") from error
        return _Code(program, names)

    def unload(self, code: Any) -> None:
        return None  # kernels in flight keep the program

    def kernel(self, code: Any, name: str) -> object:
        found = code.kernels.get(name)
        if found is None:
            if name not in code.names:
                raise DriverError("INVALID_KERNEL_NAME", f"the code has no kernel {name!r}. It has: {', '.join(code.names)}")
            found = code.kernels[name] = self._try(lambda: self._cl.Kernel(code.program, name))
        return found

    def parameter_count(self, kernel: Any) -> int | None:
        n: int = kernel.num_args
        return n

    def launch(self, kernel: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[int], stream: Any) -> None:
        cl = self._cl
        given = [self._buffer(a) for a in arguments]
        if shared_bytes:
            given.append(cl.LocalMemory(shared_bytes))
        everything = tuple([g * b for g, b in zip(grid, block, strict=True)])

        def start() -> None:
            kernel.set_args(*given)
            cl.enqueue_nd_range_kernel(stream, kernel, everything, block)
            stream.flush()

        self._try(start)

    def _device(self, index: int) -> _Device:
        found = self._contexts.get(index)
        if found is None:
            with self._lock:
                found = self._contexts.get(index) or self._try(lambda: _Device(self._cl, self._devices[index]))
                self._contexts[index] = found
        return found

    def _buffer(self, memory: int) -> Any:
        found = self._buffers.get(memory)
        if found is None:
            raise DriverError("INVALID_MEM_OBJECT", f"{memory:#x} is not memory of a device, or was freed before")
        return found

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (self._cl.Error, MemoryError) as error:
            raise DriverError(_name(error), str(error)) from error


class OpenClDeviceAPI(DriverDeviceAPI):
    """Devices of all OpenCL runtimes; GPUs are numbered before CPUs."""

    dlpack_type = dlpack.OPENCL
    has_addresses = False

    def __init__(self) -> None:
        super().__init__("opencl", OpenClDriver)

    def _extra_arguments(self, shared_bytes: int) -> int:
        return 1 if shared_bytes else 0


OPENCL = OpenClDeviceAPI()
"""The device API of kind "opencl"."""


def _bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(address)


def _name(error: Exception) -> str:
    """OpenCL name of an error, from a pyopencl message such as `clCreateBuffer failed: OUT_OF_HOST_MEMORY`."""
    _, _, rest = str(error).partition("failed: ")
    return rest.split()[0].rstrip(":,.") if rest else type(error).__name__
