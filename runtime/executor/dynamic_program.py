"""Run programs whose shapes depend on the elements of tensors: memory is allocated, and calls are prepared, while the program runs.

A program whose shapes depend on the shapes of the inputs alone is bound in advance instead (`bound_program`), which costs less per call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tunesmith.runtime.arrays import empty, nbytes, placed, storage_dtype, tensor, typed
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device, DeviceLost
from tunesmith.runtime.executor.bound_program import COPY, Functions
from tunesmith.runtime.executor.device_memory import HOST, Array, DeviceConstants, copier, kind_of_memory
from tunesmith.runtime.executor.index_program import evaluate
from tunesmith.runtime.executor.vm_code import Code, Instruction
from tunesmith.support.errors import RunError

Shape = tuple[int, ...]
Watch = Callable[[int, Callable[[], object], "Tensor | None", Sequence["Tensor"]], None]
"""Takes the number of a step, its call, an operand or result on a device if there is one, and its results; it must make the call."""


class Tensor:
    """A register: an array, its element type, and the form in which compiled functions take it, made when it is needed first."""

    __slots__ = ("_argument", "array", "block", "dtype")

    def __init__(self, array: Array, dtype: str, block: Array | None = None) -> None:
        self.array, self.dtype, self.block = array, dtype, block
        self._argument: object = None

    @property
    def argument(self) -> object:
        """The argument of a compiled function of the host."""
        if self._argument is None:
            assert isinstance(self.array, np.ndarray)
            self._argument = tensor(self.array, self.dtype)
        return self._argument

    @property
    def device(self) -> str:
        """The kind of device that holds the array."""
        return kind_of_memory(self.array)

    def view(self, shape: Shape) -> Tensor:
        """The same elements in another shape."""
        made = self.array.view(shape, self.dtype) if isinstance(self.array, DeviceArray) else self.array.reshape(shape)
        return Tensor(made, self.dtype)


class Blocks:
    """Blocks of memory that a run takes and gives back; those that a whole run did not take are released after it."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, int], list[tuple[Array, int]]] = {}
        self._run = 0

    def take(self, device: str, size: int) -> Array:
        """A block of at least `size` bytes."""
        rounded = _rounded(size)
        free = self._free.get((device, rounded))
        if free:
            return free.pop()[0]
        return empty(rounded) if device == HOST else DeviceArray(Device(device), (rounded,), "uint8")

    def give(self, block: Array) -> None:
        """Give a block back."""
        self._free.setdefault((kind_of_memory(block), block.nbytes), []).append((block, self._run))

    def end_run(self) -> None:
        """Release the blocks that were not in use during the last run."""
        self._free = {key: kept for key, free in self._free.items() if (kept := [f for f in free if f[1] == self._run])}
        self._run += 1


class DynamicProgram:
    """A program of the virtual machine with sizes that are read from tensors.

    Args:
        code: the program.
        constants: storage of the constants.
        functions: by name, as in `bound_program.BoundProgram`.
        devices: constants on each device.
        output_shapes: given the sizes, the shape of an output.
    """

    def __init__(
        self,
        code: Code,
        constants: Sequence[np.ndarray],
        functions: Functions,
        devices: Mapping[str, DeviceConstants],
        shape_of: Callable[[Sequence[Any], Mapping[str, int], str], Shape],
    ) -> None:
        self._code, self._constants, self._devices, self._shape_of = code, constants, devices, shape_of
        self._functions = functions
        self._calls = {at: n for n, at in enumerate([at for at, ins in enumerate(code.body) if ins[0] in ("call", "copy")])}
        self._blocks = Blocks()
        self._sizes: dict[str, int] = {}
        self._inputs: Sequence[Array] = ()
        self._given: Sequence[Array | None] = ()
        self.outputs: list[Array] = []

    def with_sizes(self, sizes: Mapping[str, int]) -> DynamicProgram:
        """The program itself, for inputs with these sizes."""
        self._sizes = dict(sizes)
        return self

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        """Bind the program to these arrays, already checked by the caller; an output without an array is allocated by each run."""
        self._inputs, self._given = inputs, outputs

    def run(self) -> None:
        """Run the program; its results are in `outputs` afterwards.

        Raises:
            RunError: a function rejected its arguments or failed, or a size that is read is negative.
        """
        self._execute(None)

    @property
    def functions(self) -> list[str]:
        """Name of the function of each step."""
        return [self._code.body[at][1] if self._code.body[at][0] == "call" else COPY for at in self._calls]

    def profile(self, repeats: int) -> list[list[float]]:
        """Run the program `repeats` times; the seconds of each execution of each step.  Errors as in `run`."""
        taken: list[list[float]] = [[] for _ in self._calls]

        def timed(n: int, call: Callable[[], object], on_device: Tensor | None, results: Sequence[Tensor]) -> None:
            start = time.perf_counter_ns()
            call()
            if on_device is not None:
                self._wait(on_device.device)
            taken[n].append((time.perf_counter_ns() - start) * 1e-9)

        for _ in range(repeats):
            self._execute(timed)
        return taken

    def trace(self) -> list[tuple[int, tuple[np.ndarray, ...]]]:
        """Run the program once; the number of each step that ran, in order, with copies of its results.  Errors as in `run`."""
        found: list[tuple[int, tuple[np.ndarray, ...]]] = []

        def kept(n: int, call: Callable[[], object], on_device: Tensor | None, results: Sequence[Tensor]) -> None:
            call()
            arrays = [(r.array.numpy() if isinstance(r.array, DeviceArray) else r.array.copy(), r.dtype) for r in results]
            found.append((n, tuple([typed(a, d) for a, d in arrays])))

        self._execute(kept)
        return found

    def _execute(self, watch: Watch | None) -> None:
        run = _Run(self, dict(self._sizes), watch)
        try:
            run.all()
        finally:
            self._blocks.end_run()
        self.outputs = run.outputs

    def _wait(self, device: str) -> None:
        api = Device(device).api
        api.synchronise(0, api.current_stream(0))


class _Run:
    """One run: the registers and the sizes that are known so far."""

    def __init__(self, program: DynamicProgram, sizes: dict[str, int], watch: Watch | None) -> None:
        self._program, self._code, self._sizes, self._watch = program, program._code, sizes, watch
        self._registers: dict[int, Tensor] = {}
        self._made: dict[int, Tensor] = {}

    @property
    def outputs(self) -> list[Array]:
        """The outputs in the memory that the caller expects them in."""
        return [self._delivered(i, self._made[i]) for i in range(len(self._code.outputs))]

    def all(self) -> None:
        body, at = self._code.body, 0
        while True:
            ins = body[at]
            op = ins[0]
            at += 1
            if op == "if":
                if not self._scalar(ins[1], at - 1):
                    at = ins[2]
            elif op in ("goto", "again"):
                at = ins[1]
            elif op == "ret":
                return
            elif op == "read":
                found = self._scalar(ins[2], at - 1)
                if found < 0:
                    raise RunError(f"the size {ins[1]} is read from a tensor, which must be at least 0, and is {found}")
                self._sizes[ins[1]] = found
            elif op in ("call", "copy"):
                self._step(at - 1, ins)
            elif op == "free":
                self._free(ins[1])
            elif op not in ("size", "check", "require", "place"):
                made = self._tensor(ins, f"instruction {at - 1} ({op})")
                self._free(ins[1])  # of the iteration before
                self._registers[ins[1]] = made

    def _free(self, r: int) -> None:
        freed = self._registers.pop(r, None)
        if freed is not None and freed.block is not None:
            self._program._blocks.give(freed.block)

    def _register(self, r: int, at: int) -> Tensor:
        if r not in self._registers:
            raise RunError(f"instruction {at} of the program uses register {r}, which was not defined on the way there. Build it again")
        return self._registers[r]

    def _scalar(self, r: int, at: int) -> Any:
        found = self._register(r, at).array
        if not isinstance(found, np.ndarray) or found.size != 1:
            raise RunError(f"instruction {at} of the program does not read one element of host memory")
        return found.item()

    def _shape(self, shape: Sequence[Any], what: str) -> Shape:
        try:
            return self._program._shape_of(shape, self._sizes, what)
        except KeyError as error:
            raise RunError(f"{what} of the program uses the size {error}, which was not read on the way there. Build it again") from None

    def _tensor(self, ins: Instruction, what: str) -> Tensor:
        """The tensor that an instruction defines."""
        op, r, *rest = ins
        program, device = self._program, self._code.devices.get(r, HOST)
        if op == "input":
            return self._input(rest[0], device)
        if op == "output":
            return self._output(rest[0], device, what)
        if op == "view":
            source, shape = self._register(rest[0], 0), self._shape(rest[1], what)
            if nbytes(source.dtype, shape) != nbytes(source.dtype, source.array.shape):
                raise RunError(f"{what} of the program: {list(shape)} is not a view of {list(source.array.shape)}")
            return source.view(shape)
        shape = self._shape(rest[-1], what)
        if op == "constant":
            number, dtype = rest[0], rest[1]
            if device != HOST:
                return Tensor(program._devices[device].array(number, dtype).view(shape, dtype), dtype)
            return Tensor(program._constants[number].view(storage_dtype(dtype)).reshape(shape), dtype)
        return self._allocated(rest[0], shape, device)

    def _allocated(self, dtype: str, shape: Shape, device: str) -> Tensor:
        block = self._program._blocks.take(device, nbytes(dtype, shape))
        array = block.view(shape, dtype) if isinstance(block, DeviceArray) else placed(block, 0, dtype, shape)
        return Tensor(array, dtype, block)

    def _input(self, number: int, device: str) -> Tensor:
        array, dtype = self._program._inputs[number], self._code.inputs[number].dtype
        if kind_of_memory(array) == device:
            return Tensor(array, dtype)
        made = self._allocated(dtype, tuple(array.shape), device)
        copier(array, made.array, wait=device == HOST)()
        return made

    def _output(self, number: int, device: str, what: str) -> Tensor:
        """New memory for an output, or the array of the caller."""
        spec, given = self._code.outputs[number], self._program._given[number]
        shape = self._shape(spec.shape, what)
        if given is not None and kind_of_memory(given) == device:
            made = Tensor(given, spec.dtype)
        elif device == HOST:
            made = Tensor(np.empty(shape, storage_dtype(spec.dtype)), spec.dtype)
        else:
            made = Tensor(DeviceArray(Device(device), shape, spec.dtype), spec.dtype)
        self._made[number] = made
        return made

    def _delivered(self, number: int, made: Tensor) -> Array:
        """An output, copied to the array of the caller, or to the memory of the inputs, if it was computed in other memory."""
        given, inputs = self._program._given[number], self._program._inputs
        if given is made.array:
            return given
        wanted = next((a.device.kind for a in inputs if isinstance(a, DeviceArray)), HOST) if given is None else kind_of_memory(given)
        if given is None and wanted == made.device:
            return made.array
        if given is None:
            shape = tuple(made.array.shape)
            given = np.empty(shape, storage_dtype(made.dtype)) if wanted == HOST else DeviceArray(Device(wanted), shape, made.dtype)
        copier(made.array, given, wait=True)()
        return given

    def _step(self, at: int, ins: Instruction) -> None:
        if ins[0] == "copy":
            results, operands = [self._register(ins[1], at)], [self._register(ins[2], at)]
            call = _copy_call(operands[0], results[0])
        else:
            operands, results = [[self._register(r, at) for r in group] for group in (ins[2], ins[3])]
            call = self._call(ins[1], [*operands, *results], ins[4], at)
        try:
            if self._watch is None:
                call()
            else:
                on_device = next((t for t in (*operands, *results) if t.device != HOST), None)
                self._watch(self._program._calls[at], call, on_device, results)
        except DeviceLost:
            raise
        except Exception as error:  # functions raise exceptions of any type
            raise RunError(f"a call of the program failed: {error}") from error

    def _call(self, name: str, tensors: Sequence[Tensor], sizes: Sequence[Any], at: int) -> Callable[[], object]:
        function = self._program._functions[name]
        try:
            numbers = [evaluate(e, self._sizes) for e in sizes]
        except KeyError as error:
            raise RunError(f"instruction {at} of the program uses the size {error}, which was not read. Build it again") from None
        compiled = getattr(function, "ffi", None) if all(t.device == HOST for t in tensors) else None
        if compiled is not None:
            return lambda: compiled(*[t.argument for t in tensors], *numbers)
        return lambda: function(*[t.array for t in tensors], *numbers)


def _copy_call(source: Tensor, target: Tensor) -> Callable[[], object]:
    a, b = source.array, target.array
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return partial(np.copyto, b, a.reshape(b.shape))
    return copier(a, b, wait=HOST in (source.device, target.device))


def _rounded(size: int) -> int:
    """The size, rounded up to an eighth of its power of two, so that tensors of similar sizes share blocks."""
    step = max(64, 1 << max(size.bit_length() - 4, 0))
    return -(-max(size, 1) // step) * step
