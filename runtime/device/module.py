"""Load and call compiled device functions: `module["matmul"](a, b, c)` with host, device, torch or CuPy arrays.

Device arrays are used in place, on the current stream of their library, and the call is asynchronous.  Host arrays are copied to the
device and, if written, back: such a call is synchronous.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from tunesmith.runtime.compiled import Compiled
from tunesmith.runtime.device.arguments import CallStream, Operand, Signature, call_stream
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import DEVICES, Allocation, Device, DeviceLost, KernelLaunch
from tunesmith.runtime.device.program import MAGIC, DeviceFunction, DeviceProgram
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.runtime.ffi_callback import ffi_function
from tunesmith.runtime.timing import Samples
from tunesmith.support import atomic_file
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import RunError, UserError

_MOST_COPIES = 1024
"""Limit of argument sets in a rotation; for small functions, more sets would take longer to create than to time."""


class DeviceModule(Compiled):
    """The functions of a program on one device.  Thread safe.

    Args:
        program: the program; it is loaded onto the device when the first function is called.
        index: device number within the kind of the program; by default the current device of this thread.
    """

    def __init__(self, program: DeviceProgram, index: int | None = None) -> None:
        self.program = program
        self._api = DEVICES.get(program.kind)
        self.device = Device(program.kind, self._api.current_device() if index is None else index)
        self._functions = {f.name: f for f in program.functions}
        self._lock = threading.Lock()
        self._code: int | None = None

    @staticmethod
    def load(path: str | PathLike[str], index: int | None = None) -> DeviceModule:
        """Load a program that was written by `save`.

        Args:
            path: the file.
            index: device number within the kind of the program; by default the current device of this thread.
        Raises:
            RunError: the file does not exist, or is not a device program.
        """
        file = Path(fspath(path))
        try:
            with open(file, "rb") as opened:
                data = opened.read(len(MAGIC))
                if data != MAGIC:
                    raise RunError(f"{file} is not a device program: it has no program header. Write one with module.save(path)")
                data += opened.read()
        except OSError as error:
            raise RunError(f"cannot read the program {file}: {error.strerror}") from error
        except ValueError as error:  # a null in the path, or a lone surrogate
            raise RunError(f"cannot read the program {str(file)!r}: {error}") from error
        return DeviceModule(DeviceProgram.from_bytes(data), index)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the program to a file for `load` and `tunesmith.load_module`; equal programs give equal bytes.

        Args:
            path: the file; an existing file is replaced atomically.
        Returns:
            The path.
        Raises:
            RunError: the file cannot be written.
        """
        if not isinstance(path, (str, PathLike)):
            raise RunError(f"cannot write the program: a path is a text or a Path, not {path!r:.100}")
        try:
            atomic_file.write_bytes(atomic_file.place_of(path), self.program.to_bytes())
        except OSError as error:
            raise RunError(f"cannot write the program {os.fspath(path)!r}: {error.strerror}") from error
        return Path(path)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of all functions, sorted."""
        return tuple(sorted(self._functions))

    def __getitem__(self, name: str) -> DeviceCallable:
        """The function `name`.

        Raises:
            RunError: there is no such function.
        """
        return DeviceCallable(self, self._functions[self.function_name(name)])

    def bind(self, *arguments: object, name: str | None = None) -> BoundCall:
        """Bind a function to its arguments, which are checked once, for repeated calls on the same device memory.

        Args:
            arguments: arguments of the function, in order: DeviceArrays, or tensors of other libraries on the device.
            name: name of the function; optional if there is only one.
        Raises:
            RunError: there are several functions, or none of this name; an argument is invalid, or is in host memory.
        """
        return self[self.function_name(name)].bind(*arguments)

    def export_library(self, path: str | PathLike[str]) -> Path:
        """Refuse: a loaded program is written by `save`; libraries are made from compiled modules.

        Raises:
            RunError: always.
        """
        raise RunError(
            f"cannot export {path}: {self!r} was loaded from a program, and libraries are made where functions are compiled. Write "
            "the program again with module.save(path), which tunesmith.load_module loads"
        )

    @property
    def code(self) -> int:
        """Handle of the loaded code in the device API.

        Raises:
            RunError: the device does not exist, or does not accept the code.
        """
        if self._code is None:
            with self._lock:
                if self._code is None:
                    self._code = self._load()
        return self._code

    def _load(self) -> int:
        index = self.device.index
        try:
            code = self._api.load_code(index, self.program.code)
        except DeviceLost:
            raise
        except RunError as error:
            if not self.program.arch:
                raise
            version = self._api.attributes(index).compute_version
            raise RunError(f"{error}. The code is for {self.program.arch}, and {self.device} has compute capability {version}") from error
        weakref.finalize(self, _unload, self.device, code).atexit = False
        return code

    def time(
        self,
        *arguments: object,
        name: str | None = None,
        repeats: int = 7,
        min_ms: float = 2.0,
        warmup: int = 3,
        flush_bytes: int = 0,
    ) -> Samples:
        """Time one function with device events before and after a sequence of launches.

        Each call is launched separately: a function shorter than a launch from Python, about 10 us, measures as the launch time.

        Args:
            arguments: arguments of the function; outputs are overwritten as in any call, host arrays are copied first.
            name: name of the function; optional if there is only one.
            repeats: number of samples.
            min_ms: minimal duration of a sample, which is the mean over consecutive calls.
            warmup: number of untimed calls at the start.
            flush_bytes: consecutive calls rotate over copies of the arguments with this total size: choose more than the cache size to
                time with cold caches.  0 reuses the same memory.
        Returns:
            Seconds per call of each sample.
        Raises:
            RunError: there are several functions, or none of this name, an argument is invalid, or there is not enough memory for the
                copies.
        """
        name = self.function_name(name)
        repeats = as_count("repeats", repeats)
        warmup, flush_bytes = as_count("warmup", warmup, 0), as_count("flush_bytes", flush_bytes, 0)
        if not isinstance(min_ms, (int, float)) or not 0 <= min_ms < math.inf:
            raise UserError(f"min_ms={min_ms!r:.200}: expected a finite number of milliseconds, from 0")
        timer = _EventTimer(self.device, self._rotation(name, arguments, flush_bytes))
        try:
            if warmup:
                timer.sample(warmup)
            number = timer.number(min_ms * 1e-3)
            return Samples(tuple([timer.sample(number) for _ in range(repeats)]), clean=True, foreign=0.0, number=number)
        finally:
            timer.close()

    def _rotation(self, name: str, arguments: Sequence[object], flush_bytes: int) -> list[BoundCall]:
        """Bound calls on argument sets of `flush_bytes` in total plus one, so that `flush_bytes` are accessed before a set is reused."""
        function, index = self[name], self.device.index
        stream = call_stream(self.device, arguments)
        operands = function.signature.operands(arguments, stream)
        nbytes = sum(o.memory.nbytes for o in operands)
        sets = 1 + (-(-flush_bytes // nbytes) if nbytes else 0)
        self._api.synchronise(index, stream.handle)
        calls = []
        for i in range(min(sets, _MOST_COPIES)):
            given = zip(arguments, operands, self._functions[name].params, strict=True)
            calls.append(function.bind(*[a if i == 0 and not o.on_host else self._copied(o, p.dtype, p.shape) for a, o, p in given]))
        return calls

    def _copied(self, operand: Operand, dtype: str, shape: Sequence[int]) -> DeviceArray:
        copy = DeviceArray(self.device, shape, dtype)
        self._api.copy(operand.memory, copy.allocation, copy.nbytes)
        self._api.synchronise(self.device.index)
        return copy

    def __repr__(self) -> str:
        return f"<module of {', '.join(self.functions)} (on {self.device})>"


class DeviceCallable:
    """A function of a module.  Call it with one array for each parameter; results are written to the output arrays."""

    __slots__ = ("_api", "_device", "_ffi", "_function", "_module", "name", "signature")

    def __init__(self, module: DeviceModule, function: DeviceFunction) -> None:
        self.name = function.name
        self._module, self._function, self._device = module, function, module.device
        self._api = module.device.api
        self.signature = Signature(function.name, function.params, module.device)
        self._ffi: tvm_ffi.Function | None = None

    @property
    def ffi(self) -> tvm_ffi.Function:
        """The function for C++ and other languages, through TVM-FFI; CUDA tensors are used on the stream that TVM-FFI has set."""
        if self._ffi is None:
            self._ffi = ffi_function(DeviceCallable(self._module, self._function))
        return self._ffi

    def __call__(self, *arguments: object) -> None:
        """Run the function.

        The call is synchronous if any argument is a host array, or of a library whose stream is unknown.  Otherwise it is asynchronous, in
        order on the default stream of the device or on the current stream of torch or CuPy.

        Raises:
            RunError: an argument is invalid, or the device refuses the launch.
            DeviceLost: the device accepts no further work from this process.
        """
        stream = call_stream(self._device, arguments)
        operands = self.signature.operands(arguments, stream)
        index, wait = self._device.index, not all(o.ordered for o in operands)
        if wait and stream.handle:
            self._api.synchronise(index)  # DeviceArrays are filled on the default stream
        scratch: list[Allocation] = []
        try:
            memory = self._copied_in(operands, stream, scratch)
            for nbytes in self._function.workspaces:
                scratch.append(self._api.allocate_workspace(index, nbytes, stream.handle))
                memory.append(scratch[-1])
            self.launch(memory, stream.handle)
            for operand, allocation, param in zip(operands, memory, self._function.params, strict=False):
                if operand.on_host and param.written:
                    self._api.copy(allocation, operand.memory, param.nbytes, stream=stream.handle)
            if wait:
                self._api.synchronise(index, stream.handle)
        finally:
            for allocation in scratch:
                self._api.free_workspace(allocation)

    def bind(self, *arguments: object) -> BoundCall:
        """Bind the function to checked arguments, for callers that run it many times on the same memory.

        Args:
            arguments: DeviceArrays, or device arrays of other libraries.
        Raises:
            RunError: an argument is invalid, or is a host array.
        """
        stream = call_stream(self._device, arguments)
        operands = self.signature.operands(arguments, stream)
        for i, operand in enumerate(operands):
            if operand.on_host:
                raise RunError(
                    f"{self.name}: argument {i} ({self._function.params[i].name}) is in host memory, and bound calls do not copy: "
                    f"pass DeviceArray.from_numpy({self._device}, a)"
                )
        return BoundCall(self, operands, stream, self._function.workspaces)

    def launches(self, memory: Sequence[Allocation]) -> list[KernelLaunch]:
        """The launches of all kernels on device memory: parameters, followed by workspaces."""
        code = self._module.code
        return [
            KernelLaunch(code, x.kernel, [memory[n] for n in x.arguments], x.grid, x.block, x.shared_bytes) for x in self._function.launches
        ]

    def launch(self, memory: Sequence[Allocation], stream: int) -> None:
        """Launch all kernels on device memory: parameters, followed by workspaces."""
        for x in self.launches(memory):
            self._api.launch(self._device.index, *x, stream)

    def _copied_in(self, operands: Sequence[Operand], stream: CallStream, scratch: list[Allocation]) -> list[Allocation]:
        """Device memory of the arguments.  Written host arrays are copied too, because a function may write only some of the elements."""
        memory = []
        for operand in operands:
            allocation = operand.memory
            if operand.on_host:
                allocation = self._api.allocate_workspace(self._device.index, operand.memory.nbytes, stream.handle)
                scratch.append(allocation)
                self._api.copy(operand.memory, allocation, operand.memory.nbytes, stream=stream.handle)
            memory.append(allocation)
        return memory

    def __repr__(self) -> str:
        return f"<function {self.signature} on {self._device}>"


class BoundCall:
    """A call bound to checked arguments, so that it only launches kernels.  Keeps its arguments and workspaces alive."""

    __slots__ = ("__weakref__", "_function", "_keep", "_memory", "stream")

    def __init__(self, function: DeviceCallable, operands: Sequence[Operand], stream: CallStream, workspaces: Sequence[int]) -> None:
        device = function.signature.device
        self.stream = stream.handle
        """The stream of the launches: the current stream at the time of binding."""
        self._function, self._keep = function, operands
        scratch = [device.api.allocate_workspace(device.index, n, stream.handle) for n in workspaces]
        self._memory = [*[o.memory for o in operands], *scratch]
        weakref.finalize(self, _free_workspaces, device, scratch).atexit = False

    @property
    def device(self) -> Device:
        """The device that runs the kernels."""
        return self._function.signature.device

    def launches(self) -> list[KernelLaunch]:
        """The launches of the kernels, for graphs."""
        return self._function.launches(self._memory)

    def __call__(self) -> None:
        """Launch the kernels on the stream.  RunError if the device refuses."""
        self._function.launch(self._memory, self.stream)


class _EventTimer:
    """Time rotating calls with two events."""

    def __init__(self, device: Device, calls: Sequence[BoundCall]) -> None:
        self._api, self._index, self._calls = device.api, device.index, calls
        self._stream = calls[0].stream
        self._marks = [self._api.create_event(self._index) for _ in range(2)]
        self._next = 0

    def sample(self, number: int) -> float:
        """Seconds per call, mean over `number` calls."""
        start, stop = self._marks
        self._api.record_event(self._index, start, self._stream)
        for i in range(self._next, self._next + number):
            self._calls[i % len(self._calls)]()
        self._api.record_event(self._index, stop, self._stream)
        self._next += number
        return self._api.elapsed(self._index, start, stop) / number

    def number(self, least: float) -> int:
        """Number of calls that take at least `least` seconds."""
        number = 1
        while True:
            taken = self.sample(number) * number
            if taken >= least:
                return number
            number = max(number + 1, math.ceil(number * min(100.0, 1.05 * least / max(taken, 1e-7))))

    def close(self) -> None:
        for mark in self._marks:
            self._api.free_event(self._index, mark)


def _unload(device: Device, code: int) -> None:
    try:
        device.api.unload_code(device.index, code)
    except DeviceLost:
        return  # the code is lost with the device


def _free_workspaces(device: Device, scratch: Sequence[Allocation]) -> None:
    for allocation in scratch:
        device.api.free_workspace(allocation)
