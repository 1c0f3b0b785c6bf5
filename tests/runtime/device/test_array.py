"""Device arrays, exchanged with other libraries through DLPack without a copy."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime import dlpack
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Allocation, Device, cpu
from tunesmith.support.errors import RunError

TYPES = ("float16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint64")


@pytest.mark.parametrize("dtype", TYPES)
def test_numpy_shares_the_memory(dtype: str) -> None:
    before = len(dlpack._exported)
    x = np.arange(6).reshape(2, 3).astype(dtype)
    array = DeviceArray.from_numpy(cpu(), x)
    seen = np.from_dlpack(array)  # type: ignore[arg-type]
    assert seen.dtype == x.dtype and seen.tolist() == x.tolist() and seen.ctypes.data == array.allocation.handle
    array.fill(x[::-1].copy())
    assert seen.tolist() == x[::-1].tolist()
    back = DeviceArray.from_dlpack(seen)
    assert back.allocation.handle == array.allocation.handle and (back.dtype, back.shape) == (dtype, (2, 3))
    del array, seen
    gc.collect()
    assert back.numpy().tolist() == x[::-1].tolist(), "who looks at the memory keeps it"
    del back
    gc.collect()
    assert len(dlpack._exported) == before


def test_torch_shares_the_memory_including_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(8).reshape(2, 4).to(torch.bfloat16)
    array = DeviceArray.from_numpy(cpu(), x, "bfloat16")
    seen = torch.from_dlpack(array)
    assert seen.dtype == torch.bfloat16 and torch.equal(seen, x)
    seen += 1
    assert torch.equal(torch.from_dlpack(DeviceArray.from_dlpack(seen)), x + 1)
    assert array.numpy().dtype == np.uint16 and torch.equal(torch.from_dlpack(array), x + 1)


def test_tensors_with_a_lazy_negation_are_refused() -> None:
    torch = pytest.importorskip("torch")
    x = torch._neg_view(torch.ones(4))
    for make in (DeviceArray.from_dlpack, lambda a: DeviceArray.from_numpy(cpu(), a)):
        with pytest.raises(RunError, match=r"resolve_neg\(\) first"):
            make(x)


def test_capsules() -> None:
    array = DeviceArray.from_numpy(cpu(), np.zeros((0, 3), np.float32))
    before = len(dlpack._exported)
    assert array.__dlpack_device__() == (1, 0)
    for version, name in ((None, '"dltensor"'), ((0, 8), '"dltensor"'), ((1, 0), '"dltensor_versioned"'), ((1, 2), '"dltensor_versioned"')):
        capsule = array.__dlpack__(max_version=version)
        assert name in repr(capsule) and len(dlpack._exported) == before + 1
        del capsule  # without a consumer
        gc.collect()
        assert len(dlpack._exported) == before
    assert np.from_dlpack(array).shape == (0, 3)  # type: ignore[arg-type]
    scalar = DeviceArray.from_numpy(cpu(), np.array(3, np.int32))
    copied = np.from_dlpack(scalar, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else np.from_dlpack(scalar).copy()  # type: ignore
    scalar.fill(np.array(4, np.int32))
    assert int(copied) == 3 and int(np.from_dlpack(scalar)) == 4  # type: ignore[arg-type]
    with pytest.raises(BufferError, match=r"is requested on DLPack device \(2, 0\): copy it to the host with .numpy\(\)"):
        scalar.__dlpack__(dl_device=(2, 0))


def test_arrays_that_cannot_be_passed_are_refused() -> None:
    array = object.__new__(DeviceArray)
    array.shape, array.dtype, array.allocation = (2,), "float32", Allocation(Device("opencl", 1), 7, 8)
    assert array.__dlpack_device__() == (4, 1)
    with pytest.raises(BufferError, match=r"memory of opencl\(1\) cannot be passed through DLPack: copy it to the host with .numpy\(\)"):
        array.__dlpack__()

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

        def __dlpack__(self, **_: Any) -> object:
            raise ValueError("not today")

    class Broken(Elsewhere):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    cases: list[tuple[object, str]] = [
        ([1.0], "from_dlpack takes arrays that support DLPack .*, not a list"),
        (np.zeros((4, 4), np.float32).T[::2], r"with strides \[.*\] \(in elements\) is not contiguous and row-major: pass a copy"),
        (np.zeros(9, np.int8)[1:], "is not a multiple of 16: pass a copy"),
        (np.zeros(4, np.complex64), "of .*64 cannot be taken over"),
        (Elsewhere(), "on DLPack's device type 10 cannot be taken over: copy it to the host"),
        (Broken(), "cannot be passed through DLPack: not today"),
    ]
    for given, message in cases:
        with pytest.raises(RunError, match=message):
            DeviceArray.from_dlpack(given)


def test_process_exit_with_shared_arrays() -> None:
    code = """
import sys, numpy as np
from tunesmith.runtime.device.device import cpu
from tunesmith.runtime.device.array import DeviceArray
array = DeviceArray.from_numpy(cpu(), np.zeros(4, np.float32))
sys.kept, sys.capsule = np.from_dlpack(array), array.__dlpack__()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
