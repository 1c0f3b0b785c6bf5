from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.executor.executable import Executable
from tunesmith.runtime.module import load_executable
from tunesmith.support.errors import RunError
from tunesmith.support.seeds import stream


def pick(rng: np.random.Generator, things: Sequence[Any]) -> Any:
    """A random element."""
    return things[int(rng.integers(len(things)))]


PROGRAM = {"version": 1, "inputs": [], "text": "\u00e4"}


def sample() -> Executable:
    constants = (
        ("w", np.arange(6, dtype="float32").reshape(2, 3)),
        ("scalar", np.array(7, "int64")),
        ("empty", np.zeros((0, 3), "bool")),
        ("mask", np.array([True, False])),
    )
    return Executable("graph", PROGRAM, constants, b"\x7fELF code")


def resealed(data: bytes) -> bytes:
    """The bytes with correct length and digest, as an attacker would forge them."""
    data = data[:56] + struct.pack("<Q", len(data)) + data[64:]
    return data[:16] + hashlib.sha256(data[48:]).digest() + data[48:]


def with_header(data: bytes, change: Any) -> bytes:
    """The executable with another header."""
    length = struct.unpack_from("<Q", data, 48)[0]
    header = json.loads(data[64 : 64 + length])
    change(header)
    text = json.dumps(header).encode()
    padded = text + bytes(-(64 + len(text)) % 64)
    payload = data[-(-(64 + length) // 64) * 64 :]
    return resealed(data[:48] + struct.pack("<QQ", len(text), 0) + padded + payload)


def test_round_trip() -> None:
    first = sample()
    data = first.to_bytes()
    again = Executable.from_bytes(data)
    assert (again.kind, again.program, again.data) == (first.kind, first.program, first.data)
    assert [name for name, _ in again.constants] == ["w", "scalar", "empty", "mask"]
    for (_, a), (_, b) in zip(first.constants, again.constants, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)
    assert again.to_bytes() == data
    assert again.digest == first.digest == sample().digest
    assert repr(again) == "<executable graph: 4 constants of 34 bytes, 9 bytes of code>"


def test_no_code_is_not_empty_code() -> None:
    for code in (None, b""):
        assert Executable.from_bytes(Executable("vm", PROGRAM, (), code).to_bytes()).data == code


def test_objects_of_external_code_generators_and_their_libraries() -> None:
    for code in (None, b"code"):
        first = Executable("vm", PROGRAM, sample().constants, code, (b"one", b"", b"three"), ("libblas.so", "/opt/lib.so"))
        again = Executable.from_bytes(first.to_bytes())
        assert (again.data, again.objects, again.libraries) == (code, (b"one", b"", b"three"), ("libblas.so", "/opt/lib.so"))
        assert again.to_bytes() == first.to_bytes() and again.digest != sample().digest


def test_equal_executables_give_equal_bytes() -> None:
    shuffled = Executable("graph", dict(reversed(PROGRAM.items())), sample().constants, sample().data)
    strided = ("w", np.repeat(sample().constants[0][1], 2, axis=1)[:, ::2].astype(">f4"))
    assert shuffled.to_bytes() == sample().to_bytes()
    assert Executable("graph", PROGRAM, (strided, *sample().constants[1:]), sample().data).to_bytes() == sample().to_bytes()
    assert Executable("vm", PROGRAM, sample().constants, sample().data).digest != sample().digest


def test_constants_are_aligned_in_the_bytes() -> None:
    data = np.frombuffer(sample().to_bytes(), np.uint8)
    for _, array in Executable.from_bytes(data.data).constants:
        assert not array.nbytes or (array.ctypes.data - data.ctypes.data) % 64 == 0


def test_torn_and_foreign_bytes() -> None:
    data = sample().to_bytes()
    for end in (0, 10, 63):
        with pytest.raises(RunError, match="the model is not data that tunesmith wrote"):
            Executable.from_bytes(data[:end], "the model")
    for other in (data[:-1], data + b"\0", data[:64]):
        with pytest.raises(RunError, match=r"the executable is torn: it should have \d+ bytes, and has \d+"):
            Executable.from_bytes(other)
    with pytest.raises(RunError, match="does not start with 'tunesmith-data-1'"):
        Executable.from_bytes(b"PK" + data[2:])


@pytest.mark.parametrize("seed", range(3))
def test_any_changed_byte_is_detected(seed: int) -> None:
    data, rng = sample().to_bytes(), stream(seed, "executable")
    for _ in range(100):
        changed = bytearray(data)
        changed[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        with pytest.raises(RunError):
            Executable.from_bytes(bytes(changed))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "is of version 2, and this tunesmith reads version 1"),
        ("kind", "tape", "is of the kind 'tape'; known are graph, vm, aot"),
        ("kind", 3, "kind: expected a text, got 3"),
        ("program", [], "holds no program of version 1"),
        ("program", {"version": 9}, "holds no program of version 1"),
        ("constants", {}, "constants: expected a list"),
        ("constants", [7], "constant 0 has no 'offset'"),
        ("constants", [{"name": "w", "dtype": "float32", "shape": [2**50], "offset": 0}], "constant 0: a tensor of .* does not fit"),
        ("constants", [{"name": "w", "dtype": "float32", "shape": [4], "offset": -64}], "constant 0: offset: expected an integer from 0"),
        ("constants", [{"name": "w", "dtype": "O", "shape": [4], "offset": 0}], "constant 0: 'O' is no element type"),
        ("constants", [{"name": 1, "dtype": "int8", "shape": [4], "offset": 0}], "constant 0: expected a text"),
        ("code", 10**6, "length of the code: expected an integer from 0 to"),
        ("code", True, "length of the code: expected an integer"),
        ("objects", [10**6], "length of the code: expected an integer from 0 to"),
        ("objects", [None], "length of the code: expected an integer"),
        ("objects", 1, "objects: expected a list"),
        ("libraries", "libblas.so", "libraries: expected a list"),
        ("libraries", [1], "a library: expected a text"),
    ],
)
def test_hostile_headers(key: str, value: object, message: str) -> None:
    data = with_header(sample().to_bytes(), lambda header: header.update({key: value}))
    with pytest.raises(RunError, match=message):
        Executable.from_bytes(data)


def test_headers_that_are_not_json() -> None:
    data = bytearray(sample().to_bytes())
    data[64] = ord("[")
    with pytest.raises(RunError, match="its header is not JSON"):
        Executable.from_bytes(resealed(bytes(data)))
    deep = b"[" * 100_000
    with pytest.raises(RunError, match="its header is not JSON"):
        Executable.from_bytes(resealed(sample().to_bytes()[:48] + struct.pack("<QQ", len(deep), 0) + deep))
    with pytest.raises(RunError, match="its header is not a JSON object"):
        Executable.from_bytes(resealed(sample().to_bytes()[:48] + struct.pack("<QQ", 2, 0) + b"[]" + bytes(62)))
    with pytest.raises(RunError, match="its header extends beyond its end"):
        Executable.from_bytes(resealed(sample().to_bytes()[:48] + struct.pack("<QQ", 10**6, 0) + bytes(64)))
    for text in (b"\xff\xff", b'{"a": NaN'):
        with pytest.raises(RunError):
            Executable.from_bytes(resealed(sample().to_bytes()[:48] + struct.pack("<QQ", len(text), 0) + text))


VALUES = [
    0,
    1,
    -1,
    2**31,
    2**62,
    2**63,
    2**80,
    1.5,
    True,
    None,
    "x",
    "n",
    "arena",
    "input",
    [],
    [0],
    {},
    "dense",
    "(copy)",
    "ret",
    ["goto", 0],
]


def mutated(data: Any, rng: np.random.Generator) -> None:
    """Replace, delete or duplicate one random value of JSON data."""
    spots: list[tuple[Any, Any]] = []
    stack = [data]
    while stack:
        at = stack.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        spots += [(at, key) for key in keys]
        stack += [at[key] for key in keys if isinstance(at[key], (dict, list))]
    at, key = spots[int(rng.integers(len(spots)))]
    action = int(rng.integers(4))
    if action == 0 and isinstance(at, list):
        at.insert(key, json.loads(json.dumps(at[key])))
    elif action == 1:
        del at[key]
    elif action == 2 and type(at[key]) is int:
        at[key] += pick(rng, [-64, -1, 1, 64])
    else:
        at[key] = pick(rng, VALUES)


@pytest.mark.parametrize("kind", ["graph", "vm", "sized"])
@pytest.mark.parametrize("seed", range(3))
def test_hostile_programs(kind: str, seed: int, model: Any, sized_model: Executable) -> None:
    """Mutated programs with valid digests are refused with RunError, or run; they never crash or raise another exception."""
    executable = sized_model if kind == "sized" else getattr(model, kind)
    data, rng = executable.to_bytes(), stream(seed, "executable")
    x = np.ones((4, 8), "float32")
    refused = 0
    for _ in range(100):
        hostile = with_header(data, lambda header: [mutated(header, rng) for _ in range(pick(rng, [1, 1, 2, 4]))])
        try:
            load_executable(Executable.from_bytes(hostile))(x)
        except RunError:
            refused += 1
    assert 50 < refused < 100
