"""Support interpreted programs at run time: poisoned memory, checked vector lanes, race detection, errors with their location."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ceiling, quotient, remainder
from tunesmith.support import dtype as dt
from tunesmith.support.errors import RunError

Indices = tuple[int, ...]
Lanes = tuple[tuple[Any, ...], np.ndarray]
"""(numpy index of the active lanes, mask of the active lanes)."""

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "bitand": "&",
    "bitor": "|",
    "bitxor": "^",
    "and": "&",
    "or": "|",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
"""Operators of numpy by operation; those of other operations are functions of `runtime`."""


class InterpretError(RunError):
    """The interpreted program has undefined behaviour, or the arguments are wrong."""


class ProgramPoint:
    """A location in the program, for errors raised by generated code.

    Args:
        function: name of the function.
        path: loops and blocks that enclose the location.
        names: program variable of each Python name in scope.
        buffer: the buffer accessed there.
    """

    __slots__ = ("buffer", "function", "names", "path")

    def __init__(self, function: str, path: str, names: Mapping[str, str], buffer: Buffer | None) -> None:
        self.function, self.path, self.names, self.buffer = function, path, names, buffer

    def outside(self, what: str, index: Indices, shape: Indices) -> NoReturn:
        """Raise for an access out of range.  Called by generated code; the message shows its loop variables."""
        name = "?" if self.buffer is None else self.buffer.name
        where = f"{name}[{', '.join(map(str, index))}]"
        raise InterpretError(f"{what} {where} is out of range: the shape is {tuple(shape)}\n{self._where(sys._getframe(1))}")

    def binding(self, values: Indices, extents: Indices) -> NoReturn:
        """Raise for a block instance whose iteration variables are out of range."""
        text = f"the bindings {tuple(values)} are out of range: the extents are {tuple(extents)}; a guard is missing"
        raise InterpretError(f"{text}\n{self._where(sys._getframe(1))}")

    def indirect_index(self, value: int, extent: int) -> NoReturn:
        """Raise for an indirect index out of range."""
        raise InterpretError(f"the indirect index {value} is out of range: its extent is {extent}\n{self._where(sys._getframe(1))}")

    def _where(self, frame: Any) -> str:
        state = [f"{v} = {frame.f_locals[n]}" for n, v in self.names.items() if n in frame.f_locals]
        return f"in function {self.function}, at {self.path}{', where ' if state else ''}{', '.join(state)}"


def poison(array: np.ndarray) -> None:
    """Fill with the poison value: NaN, the bytes A5, or true."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    else:
        array.fill(np.frombuffer(b"\xa5" * array.dtype.itemsize, array.dtype)[0])


def poisoned(shape: Indices, kind: str | np.dtype) -> np.ndarray:
    """New poisoned memory."""
    if any(n < 0 for n in shape):
        raise InterpretError(f"a buffer has the shape {shape}")
    array = np.empty(shape, kind)
    poison(array)
    return array


def round_bfloat16(x: Any) -> Any:
    """Round a float32 scalar or array to the nearest bfloat16, ties to even; the result is stored as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    up = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.where(np.isnan(x), np.float32(np.nan), (up & np.uint32(0xFFFF0000)).view(np.float32))[()]


def reinterpret(x: Any, old: str, new: str) -> Any:
    """Reinterpret the bits as another type of the same width in all, such as int32 as uint8x4."""
    bits = np.ascontiguousarray(x).reshape(-1)
    if dt.element(old) == "bfloat16":
        bits = (bits.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if dt.element(new) == "bfloat16":
        out: Any = (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        out = bits.view(dt.to_numpy(new))
    return out if dt.lanes(new) > 1 else out[0]


def ramp(base: int, stride: int, lanes: int) -> np.ndarray:
    """base + lane * stride."""
    return np.int64(base) + np.int64(stride) * np.arange(lanes, dtype=np.int64)


def lanes(
    array: np.ndarray, point: ProgramPoint, what: str, index: Indices, count: int, stride: int, mask: int | None, active: np.ndarray | None
) -> Lanes:
    """The bounds-checked lanes of a vector access: the `mask` leading lanes that are `active`."""
    taking = np.ones(count, bool) if mask is None else np.arange(count) < mask
    if active is not None:
        taking = taking & active
    last = ramp(index[-1], stride, count)[taking]
    inside = all(0 <= i < n for i, n in zip(index[:-1], array.shape[:-1], strict=True))
    for i in last:
        if not (inside and 0 <= i < array.shape[-1]):
            point.outside(f"vector {what}", (*index[:-1], int(i)), array.shape)
    return (*index[:-1], last), taking


class Races:
    """Accesses in one execution of a loop whose iterations may run concurrently.

    Args:
        loop: the loop, for the message.
    """

    __slots__ = ("iteration", "loop", "readers", "writers")

    def __init__(self, loop: str) -> None:
        self.loop = loop
        self.iteration = 0
        self.writers: dict[tuple[Buffer, Indices], int] = {}
        self.readers: dict[tuple[Buffer, Indices], set[int]] = {}

    def read(self, b: Buffer, index: Indices) -> None:
        """Record a read of an element in the current iteration."""
        key = (b, index)
        writer = self.writers.get(key, self.iteration)
        if writer != self.iteration:
            self._fail(b, index, "written", writer, "read")
        self.readers.setdefault(key, set()).add(self.iteration)

    def write(self, b: Buffer, index: Indices) -> None:
        """Record a write of an element in the current iteration."""
        key = (b, index)
        writer = self.writers.setdefault(key, self.iteration)
        if writer != self.iteration:
            self._fail(b, index, "written", writer, "written")
        for reader in self.readers.get(key, ()):
            if reader != self.iteration:
                self._fail(b, index, "read", reader, "written")

    def read_lanes(self, b: Buffer, at: Lanes) -> None:
        """`read` each active lane."""
        for i in at[0][-1]:
            self.read(b, (*at[0][:-1], int(i)))

    def write_lanes(self, b: Buffer, at: Lanes) -> None:
        """`write` each active lane."""
        for i in at[0][-1]:
            self.write(b, (*at[0][:-1], int(i)))

    def _fail(self, b: Buffer, index: Indices, first: str, other: int, second: str) -> NoReturn:
        raise InterpretError(
            f"a race in {self.loop}: {b.name}[{', '.join(map(str, index))}] is {first} in iteration {other}"
            f" and {second} in iteration {self.iteration}, which may run concurrently"
        )


def _index_division(divide: Callable[[Any, Any], Any], plain: Callable[[int, int], int]) -> Callable[[Any, Any], Any]:
    """An index division on ints, or on arrays for thread-varying indices; the result is 0 if the divisor is 0."""

    def divided(x: Any, d: Any) -> Any:
        return divide(x, d) if isinstance(x, np.ndarray) or isinstance(d, np.ndarray) else plain(x, d)

    return divided


def _rounded_up(x: Any, d: Any) -> Any:
    return np.negative(np.floor_divide(np.negative(x), d))


def runtime() -> dict[str, Any]:
    """The namespace of generated code."""
    return {
        "Races": Races,
        "binary_floordiv": np.floor_divide,
        "binary_max": np.maximum,
        "binary_min": np.minimum,
        "binary_mod": np.mod,
        "binary_pow": np.power,
        "binary_shl": np.left_shift,
        "binary_shr": np.right_shift,
        "bool_": np.bool_,
        "full": np.full,
        "index_ceildiv": _index_division(_rounded_up, ceiling),
        "index_floordiv": _index_division(np.floor_divide, quotient),
        "index_mod": _index_division(np.mod, remainder),
        "int64": np.int64,
        "lanes": lanes,
        "logical_not": np.logical_not,
        "poison": poison,
        "poisoned": poisoned,
        "ramp": ramp,
        "reinterpret": reinterpret,
        "round_bfloat16": round_bfloat16,
        "zeros": np.zeros,
    }
