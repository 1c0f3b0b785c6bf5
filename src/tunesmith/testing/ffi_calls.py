"""Call TVM-FFI functions as a C caller does, with valid and invalid arguments: the fuzzer of entry points.

A call is described by `RawTensor`, whose fields are passed as they are: null, of any rank, misaligned, on any device.  Layouts are those of
TVM-FFI's stable C ABI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.random import Generator

from tunesmith.runtime import dlpack
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.support import seeds

T = TypeVar("T")
_LIB: Any = tvm_ffi.LIB


class _Any(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


@dataclass(frozen=True)
class RawTensor:
    """The fields of a `DLTensor*` argument; `shape` and `strides` may be None, and `ndim` may differ from their length.

    Attributes:
        array: its memory, kept alive; None for a null pointer.
    """

    array: np.ndarray | None
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None = None
    ndim: int | None = None
    dtype: tuple[int, int, int] = (2, 32, 1)
    device: tuple[int, int] = (1, 0)
    byte_offset: int = 0


@dataclass(frozen=True)
class RawValue:
    """An argument that is no tensor, by its type index and its 64 bits: 0 None, 1 int, 2 bool, 3 float, 7 a null `DLTensor*`."""

    type: int
    bits: int = 0


def raw_of(array: np.ndarray) -> RawTensor:
    """The valid argument for an array."""
    codes = {"f": 2, "i": 0, "u": 1, "b": 6}
    return RawTensor(array, array.shape, dtype=(codes[array.dtype.kind], 8 * array.itemsize, 1))


def raw_call(function: tvm_ffi.Function, arguments: Sequence[RawTensor | RawValue]) -> str:
    """Call the function; the message of the error that it raised, or "" if it succeeded."""
    keep: list[object] = []
    values = (_Any * max(1, len(arguments)))()
    for i, argument in enumerate(arguments):
        if isinstance(argument, RawValue):
            values[i] = _Any(argument.type, 0, argument.bits)
            continue
        tensor = _tensor(argument, keep)
        values[i] = _Any(7, 0, ctypes.addressof(tensor))
    result = _Any(0, 0, None)
    handle = ctypes.c_void_p(function.__chandle__())
    if _LIB.TVMFFIFunctionCall(handle, values, ctypes.c_int32(len(arguments)), ctypes.byref(result)) == 0:
        return ""
    error = ctypes.c_void_p()
    _LIB.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
    assert error.value is not None, "the call failed and raised no error"
    # After a header of 24 bytes: kind {data, size}, message {data, size}.
    data, size = (ctypes.c_size_t.from_address(error.value + 24 + 16 + 8 * i).value for i in range(2))
    message = ctypes.string_at(data, size).decode()
    _LIB.TVMFFIObjectDecRef(error)
    return message


def _tensor(raw: RawTensor, keep: list[object]) -> dlpack.Tensor:
    numbers = [None if n is None else (ctypes.c_int64 * max(1, len(n)))(*n) for n in (raw.shape, raw.strides)]
    ndim = raw.ndim if raw.ndim is not None else len(raw.shape or ())
    data = None if raw.array is None else raw.array.ctypes.data
    tensor = dlpack.Tensor(data, *raw.device, ndim, *raw.dtype, *numbers, raw.byte_offset)
    keep += [tensor, numbers, raw.array]
    return tensor


Mutation = Callable[[Generator, list[Any]], int | None]
"""Changes the arguments in place; returns the number of the argument that is invalid now, None if their number is wrong."""


def _below(rng: Generator, limit: int) -> int:
    return int(rng.integers(limit))


def _pick(rng: Generator, options: Sequence[T]) -> T:
    return options[_below(rng, len(options))]


def _replaced(change: Callable[[Generator, RawTensor], RawTensor | RawValue]) -> Mutation:
    def mutate(rng: Generator, arguments: list[Any]) -> int:
        i = _below(rng, len(arguments))
        arguments[i] = change(rng, arguments[i])
        return i

    return mutate


def _other_rank(rng: Generator, t: RawTensor) -> RawTensor | RawValue:
    shape = t.shape or ()
    return replace(t, shape=_pick(rng, ((*shape, 1), (1, *shape), shape[1:] or (1, 1, 1), (1,) * 40)))


def _odd_strides(rng: Generator, t: RawTensor) -> RawTensor | RawValue:
    if t.shape is None or max(t.shape, default=1) < 2:
        return RawValue(0)
    axis = _pick(rng, [i for i, n in enumerate(t.shape) if n > 1])
    steps = [1]
    for extent in t.shape[:0:-1]:
        steps.insert(0, steps[0] * extent)
    steps[axis] += _pick(rng, (-5, -1, 1, 7, 1 << 40))
    return replace(t, strides=tuple(steps))


def _without_axis(rng: Generator, arguments: list[Any]) -> None:
    del arguments[_below(rng, len(arguments))]


def _one_more(rng: Generator, arguments: list[Any]) -> None:
    arguments.insert(_below(rng, len(arguments) + 1), _pick(rng, (RawValue(0), arguments[0])))


def _shared(rng: Generator, arguments: list[Any]) -> int:
    """The last argument, which is written, in the memory of another one."""
    arguments[-1] = replace(arguments[-1], array=arguments[_below(rng, len(arguments) - 1)].array)
    return len(arguments) - 1


MUTATIONS: dict[str, Mutation] = {
    "an argument is missing": _without_axis,
    "an argument is added": _one_more,
    "no tensor": _replaced(lambda rng, t: RawValue(_pick(rng, (0, 1, 2, 3)), _below(rng, 1 << 40))),
    "null tensor": _replaced(lambda rng, t: RawValue(7)),
    "null data": _replaced(lambda rng, t: replace(t, array=None)),
    "null shape": _replaced(lambda rng, t: replace(t, shape=None, ndim=_pick(rng, (1, 2, 3, 4, 40)))),
    "rank": _replaced(_other_rank),
    "negative rank": _replaced(lambda rng, t: replace(t, ndim=_pick(rng, (-1, -(1 << 31))))),
    "extent": _replaced(lambda rng, t: replace(t, shape=(*(t.shape or ())[:-1], _pick(rng, (-1, 0, 1 << 40, 3001))))),
    "strides": _replaced(_odd_strides),
    "type code": _replaced(lambda rng, t: replace(t, dtype=(_pick(rng, (3, 5, 7, 17, 255)), t.dtype[1], 1))),
    "bits": _replaced(lambda rng, t: replace(t, dtype=(t.dtype[0], _pick(rng, (0, 1, 4, 128, 255)), 1))),
    "lanes": _replaced(lambda rng, t: replace(t, dtype=(*t.dtype[:2], _pick(rng, (0, 2, 65535))))),
    "device": _replaced(lambda rng, t: replace(t, device=(_pick(rng, (0, 2, 4, 12, -7)), _pick(rng, (0, 3, -1))))),
    "misaligned": _replaced(lambda rng, t: replace(t, byte_offset=1) if t.dtype[1] > 8 else RawValue(0)),
    "shared memory": _shared,
}
"""Name -> a change that makes valid arguments invalid."""


def fuzz_function(
    function: tvm_ffi.Function,
    name: str,
    parameters: Sequence[str],
    valid: Callable[[], list[RawTensor]],
    seed: int,
    calls: int = 200,
    accepts: Sequence[str] = (),
) -> None:
    """Call a function with invalid arguments: each call fails with an error that names the function, and the argument if it is one.

    Args:
        function: the function.
        name: its name in messages.
        parameters: names of its parameters; the last one is written.
        valid: makes valid arguments, with fresh memory.
        seed: seed of the draws.
        calls: number of calls.
        accepts: names of the mutations that are valid arguments of this function, which are left out.
    """
    rng = seeds.stream(seed, "ffi arguments")
    kinds = sorted(set(MUTATIONS) - set(accepts))
    for n in range(calls):
        kind = kinds[n % len(kinds)]
        arguments: list[Any] = valid()
        if kind == "shared memory" and len(arguments) < 2:
            continue
        wrong = MUTATIONS[kind](rng, arguments)
        message = raw_call(function, arguments)
        expected = f"{name}: expected {len(parameters)} argument(s), got {len(arguments)}"
        if wrong is not None:
            expected = f"{name}: argument {wrong} ({parameters[wrong]}): expected "
        assert message.startswith(expected), f"{kind}: {message or 'no error'!r} does not start with {expected!r}"
