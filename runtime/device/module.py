"""Compiled functions of a device in this process: `module["matmul"](a, b, c)` with arrays of the host, of the device, of torch or CuPy.

What lies on the device is used where it is, on the stream that its library uses now, and the call returns while the device works.  Arrays
of the host are copied there and, where they are written, back: such a call waits.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from tunesmith.runtime.device.arguments import CallStream, Operand, Signature, call_stream
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import DEVICES, Allocation, Device, DeviceLost
from tunesmith.runtime.device.program import MAGIC, DeviceFunction, DeviceProgram
from tunesmith.runtime.timing import Samples
from tunesmith.support import atomic_file
from tunesmith.support.errors import RunError, UserError

_MOST_COPIES = 1024
"""Sets of arguments to rotate over: those of small functions would take longer to make than to time."""


class DeviceModule:
    """The functions of a program, on one device.  Threads may call them at the same time.

    Args:
        program: what to load; it is loaded when the first function is called.
        index: which device of the program's kind.
    """

    def __init__(self, program: DeviceProgram, index: int = 0) -> None:
        self.program = program
        self.device = Device(program.kind, index)
        self._api = DEVICES.get(program.kind)
        self._functions = {f.name: f for f in program.functions}
        self._lock = threading.Lock()
        self._code: int | None = None

    @staticmethod
    def load(path: str | PathLike[str], index: int = 0) -> DeviceModule:
        """The module of a program that `save` wrote.

        Args:
            path: of the file.
            index: which device of the program's kind.
        Raises:
            RunError: there is no such file, or it holds no such program.
        """
        file = Path(fspath(path))
        try:
            with open(file, "rb") as opened:
                data = opened.read(len(MAGIC))
                if data != MAGIC:
                    raise RunError(f"{file} holds no program for a device: it does not begin as one. Write one with module.save(path)")
                data += opened.read()
        except OSError as error:
            raise RunError(f"cannot read the program {file}: {error.strerror}") from error
        except ValueError as error:  # a null in the path, or a lone surrogate
            raise RunError(f"cannot read the program {str(file)!r}: {error}") from error
        return DeviceModule(DeviceProgram.from_bytes(data), index)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the program to a file, which `load` and `tunesmith.load_module` take; equal programs are equal bytes.

        Args:
            path: where it goes; a file there is replaced as a whole, never half-written.
        Returns:
            The path.
        Raises:
            RunError: it cannot be written.
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
        found = self._functions.get(name)
        if found is None:
            raise RunError(f"the module (on {self.device}) has no function {name!r}. It has: {', '.join(self.functions)}")
        return DeviceCallable(self, found)

    @property
    def code(self) -> int:
        """The loaded code, as the device's API names it.

        Raises:
            RunError: the device is not there, or does not take the code.
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
        name: str,
        *arguments: object,
        repeats: int = 7,
        min_ms: float = 2.0,
        warmup: int = 3,
        flush_bytes: int = 0,
    ) -> Samples:
        """Time one function by the device's own clock: marks before and after many launches in a row.

        Calls are started one by one: what is shorter than starting it, some 10 us from Python, shows the time of the start.

        Args:
            name: the function.
            arguments: its arguments, which it overwrites as any call would; arrays of the host are copied first.
            repeats: samples.
            min_ms: a sample is the mean of so many calls in a row that they take this long together.
            warmup: untimed calls first.
            flush_bytes: calls in a row use copies of the arguments in turn, which take so many bytes together: more than the caches hold
                for a function that should find nothing there.  0: the same memory again and again.
        Returns:
            Seconds of one call in each sample.
        Raises:
            RunError: there is no such function, it does not take the arguments, or there is no room for the copies.
        """
        if repeats < 1 or min_ms < 0 or warmup < 0 or flush_bytes < 0:
            values = f"repeats={repeats}, min_ms={min_ms}, warmup={warmup}, flush_bytes={flush_bytes}"
            raise UserError(f"cannot time {name} with {values}: repeats start at 1, the others at 0")
        clock = _Clock(self.device, self._rotation(name, arguments, flush_bytes))
        try:
            if warmup:
                clock.sample(warmup)
            number = clock.number(min_ms * 1e-3)
            return Samples(tuple([clock.sample(number) for _ in range(repeats)]), clean=True, foreign=0.0, number=number)
        finally:
            clock.close()

    def _rotation(self, name: str, arguments: Sequence[object], flush_bytes: int) -> list[BoundCall]:
        """The same call on as many sets of arguments as take `flush_bytes`, and one more: what comes again has been away for that long."""
        function, index = self[name], self.device.index
        stream = call_stream(self.device, arguments)
        operands = function.signature.operands(arguments, stream)
        nbytes = sum(o.memory.nbytes for o in operands)
        sets = 1 + (-(-flush_bytes // nbytes) if nbytes else 0)
        self._api.synchronise(index, stream.handle)
        calls = []
        for i in range(min(sets, _MOST_COPIES)):
            given = zip(arguments, operands, function.signature.params, strict=True)
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

    __slots__ = ("_api", "_device", "_function", "_module", "name", "signature")

    def __init__(self, module: DeviceModule, function: DeviceFunction) -> None:
        self.name = function.name
        self._module, self._function, self._device = module, function, module.device
        self._api = module.device.api
        self.signature = Signature(function.name, function.params, module.device)

    def __call__(self, *arguments: object) -> None:
        """Run the function.

        It returns when results are there if any argument is the host's, or of a library whose stream is not known; otherwise work on the
        device's default stream, or on the current stream of torch or CuPy, comes after it.

        Raises:
            RunError: an argument is not what the function takes, or the device refuses.
            DeviceLost: the device takes nothing more from this process.
        """
        stream = call_stream(self._device, arguments)
        operands = self.signature.operands(arguments, stream)
        index, wait = self._device.index, not all(o.ordered for o in operands)
        if wait and stream.handle:
            self._api.synchronise(index)  # arrays of ours are filled on the default stream
        scratch: list[Allocation] = []
        try:
            memory = self._copied_in(operands, stream, scratch)
            for nbytes in self._function.workspaces:
                scratch.append(self._api.allocate_workspace(index, nbytes, stream.handle))
                memory.append(scratch[-1])
            self.launch(memory, stream.handle)
            for operand, place, param in zip(operands, memory, self._function.params, strict=False):
                if operand.on_host and param.written:
                    self._api.copy(place, operand.memory, param.nbytes, stream=stream.handle)
            if wait:
                self._api.synchronise(index, stream.handle)
        finally:
            for allocation in scratch:
                self._api.free_workspace(allocation)

    def bind(self, *arguments: object) -> BoundCall:
        """A call with these arguments, checked once, for callers that run the function many times on the same memory.

        Args:
            arguments: DeviceArrays, or arrays of others on the device.
        Raises:
            RunError: an argument is not what the function takes, or lies with the host.
        """
        stream = call_stream(self._device, arguments)
        operands = self.signature.operands(arguments, stream)
        for i, operand in enumerate(operands):
            if operand.on_host:
                raise RunError(
                    f"{self.name}: argument {i} ({self._function.params[i].name}) lies with the host, and a bound call copies nothing: "
                    f"pass DeviceArray.from_numpy({self._device}, a)"
                )
        return BoundCall(self, operands, stream, self._function.workspaces)

    def launch(self, memory: Sequence[Allocation], stream: int) -> None:
        """Start all kernels on memory of the device: parameters, then workspaces."""
        code, index = self._module.code, self._device.index
        for x in self._function.launches:
            self._api.launch(index, code, x.kernel, [memory[n] for n in x.arguments], x.grid, x.block, x.shared_bytes, stream)

    def _copied_in(self, operands: Sequence[Operand], stream: CallStream, scratch: list[Allocation]) -> list[Allocation]:
        """Where the arguments are on the device.  Those that are written are copied too: a function may write only some of the elements."""
        memory = []
        for operand in operands:
            place = operand.memory
            if operand.on_host:
                place = self._api.allocate_workspace(self._device.index, operand.memory.nbytes, stream.handle)
                scratch.append(place)
                self._api.copy(operand.memory, place, operand.memory.nbytes, stream=stream.handle)
            memory.append(place)
        return memory

    def __repr__(self) -> str:
        return f"<function {self.signature} on {self._device}>"


class BoundCall:
    """A call that is only launches.  It keeps its arguments, and workspaces of its own until it is gone."""

    __slots__ = ("__weakref__", "_function", "_keep", "_memory", "stream")

    def __init__(self, function: DeviceCallable, operands: Sequence[Operand], stream: CallStream, workspaces: Sequence[int]) -> None:
        device = function.signature.device
        self.stream = stream.handle
        """The stream that it runs on: the one that was current when it was bound."""
        self._function, self._keep = function, operands
        scratch = [device.api.allocate_workspace(device.index, n, stream.handle) for n in workspaces]
        self._memory = [*[o.memory for o in operands], *scratch]
        weakref.finalize(self, _give_back, device, scratch).atexit = False

    def __call__(self) -> None:
        """Put the launches into the stream.  Raises RunError when the device refuses."""
        self._function.launch(self._memory, self.stream)


class _Clock:
    """Two marks around calls in turn."""

    def __init__(self, device: Device, calls: Sequence[BoundCall]) -> None:
        self._api, self._index, self._calls = device.api, device.index, calls
        self._stream = calls[0].stream
        self._marks = [self._api.create_event(self._index) for _ in range(2)]
        self._next = 0

    def sample(self, number: int) -> float:
        """Seconds of one call, mean over `number` of them."""
        start, stop = self._marks
        self._api.record_event(self._index, start, self._stream)
        for i in range(self._next, self._next + number):
            self._calls[i % len(self._calls)]()
        self._api.record_event(self._index, stop, self._stream)
        self._next += number
        return self._api.elapsed(self._index, start, stop) / number

    def number(self, least: float) -> int:
        """Calls that take `least` seconds."""
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
        return  # it went with the device


def _give_back(device: Device, scratch: Sequence[Allocation]) -> None:
    for allocation in scratch:
        device.api.free_workspace(allocation)
