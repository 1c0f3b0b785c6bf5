from __future__ import annotations

import pytest

from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.program import MAGIC, DeviceFunction, DeviceProgram, KernelResources, Launch
from tunesmith.support.errors import RunError

PROGRAM = DeviceProgram(
    "cuda",
    "sm_90",
    b"\x7fELF\n\0\xff code\n",
    (
        DeviceFunction(
            "f",
            (ParamSpec("A", "float16", (4, 5)), ParamSpec("B", "bfloat16", (), written=True)),
            (4096, 0),
            (Launch("k0", (0, 2), (1, 2, 3), (32, 1, 1), 49152), Launch("k1", (3, 1), (7, 1, 1), (1, 8, 4))),
        ),
        DeviceFunction("g", (), (), ()),
    ),
    {"k1": KernelResources(32, 8, 16, 0), "k0": KernelResources(255, 0, 0, 1024)},
)


def test_round_trip() -> None:
    data = PROGRAM.to_bytes()
    assert data.startswith(MAGIC)
    assert DeviceProgram.from_bytes(data) == PROGRAM
    assert DeviceProgram.from_bytes(data).to_bytes() == data


def test_equal_programs_give_equal_bytes() -> None:
    other = DeviceProgram(PROGRAM.kind, PROGRAM.arch, PROGRAM.code, PROGRAM.functions, dict(reversed(PROGRAM.resources.items())))
    assert other.to_bytes() == PROGRAM.to_bytes()


def test_other_bytes_are_refused() -> None:
    for data in (b"", b"\x7fELF", PROGRAM.to_bytes()[1:]):
        with pytest.raises(RunError, match="are not a device program"):
            DeviceProgram.from_bytes(data)


def test_damaged_bytes_are_refused() -> None:
    data = PROGRAM.to_bytes()
    head = data.index(b"\n", len(MAGIC)) + 1
    for damaged in (
        data[: len(MAGIC)],
        data[: head + 20],
        MAGIC + b"x" + data[len(MAGIC) :],
        MAGIC + b"-1\n",
        MAGIC + b"2\n[]",
        data.replace(b'"grid":[1,2,3]', b'"grid":[1,2,0]'),
        data.replace(b'"grid":[1,2,3]', b'"grid":[1,3333'[:14]),
        data.replace(b'"arguments":[0,2]', b'"arguments":[0,4]'),
        data.replace(b'"arguments":[0,2]', b'"arguments":[0,x]'),
        data.replace(b'"shared_bytes":49152', b'"shared_bytes":-9152'),
        data.replace(b'"written"', b'"wrotten"'),
    ):
        assert damaged != data
        with pytest.raises(RunError, match="is damaged.*Build it again"):
            DeviceProgram.from_bytes(damaged)
