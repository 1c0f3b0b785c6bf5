"""Device arrays, exchanged with other libraries through DLPack without a copy."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime import dlpack
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cpu import CpuDeviceAPI, host_memory
from tunesmith.runtime.device.device import DEVICES, Allocation, Device, cpu
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.support.errors import RunError

TYPES = ("float16", "float32", "float64", "bool", "int8", "uint8", "int16", "int32", "int64", "uint64")


@pytest.mark.parametrize("dtype", TYPES)
def test_numpy_shares_the_memory(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    array = DeviceArray.from_numpy(cpu(), x)
    memory = weakref.ref(array)
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
    assert memory() is None


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
    before = sys.getrefcount(array)
    assert array.__dlpack_device__() == (1, 0)
    for version, name in ((None, '"dltensor"'), ((0, 8), '"dltensor"'), ((1, 0), '"dltensor_versioned"'), ((1, 2), '"dltensor_versioned"')):
        capsule = array.__dlpack__(max_version=version)
        assert name in repr(capsule) and sys.getrefcount(array) == before + 1
        del capsule  # without a consumer
        gc.collect()
        assert sys.getrefcount(array) == before
    assert np.from_dlpack(array).shape == (0, 3)  # type: ignore[arg-type]
    scalar = DeviceArray.from_numpy(cpu(), np.array(3, np.int32))
    copied = np.from_dlpack(scalar, copy=True) if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else np.from_dlpack(scalar).copy()  # type: ignore
    scalar.fill(np.array(4, np.int32))
    assert int(copied) == 3 and int(np.from_dlpack(scalar)) == 4  # type: ignore[arg-type]
    with pytest.raises(BufferError, match=r"is requested on DLPack device \(2, 0\): copy it to the host with .numpy\(\)"):
        scalar.__dlpack__(dl_device=(2, 0))


class PrivateCpu(CpuDeviceAPI):
    """Memory that other libraries cannot use."""

    kind = "private-cpu"
    dlpack_type = None

    def copy(
        self, source: Allocation, target: Allocation, nbytes: int, source_offset: int = 0, target_offset: int = 0, stream: int = 0
    ) -> None:
        ctypes.memmove(target.handle + target_offset, source.handle + source_offset, nbytes)


class SharedCpu(PrivateCpu):
    """Memory of a device type of its own, kDLExtDev."""

    kind = "shared-cpu"
    dlpack_type = 12


@pytest.fixture(scope="module")
def kinds() -> tuple[Device, Device]:
    DEVICES.register("private-cpu", PrivateCpu())
    DEVICES.register("shared-cpu", SharedCpu())
    return Device("private-cpu"), Device("shared-cpu")


def test_arrays_that_cannot_be_passed_are_refused(kinds: tuple[Device, Device]) -> None:
    array = DeviceArray.from_numpy(kinds[0], np.arange(3))
    for call in (array.__dlpack_device__, array.__dlpack__, lambda: np.from_dlpack(array)):  # type: ignore[arg-type]
        with pytest.raises(BufferError, match=r"memory of private-cpu\(0\) cannot be passed through DLPack: copy it .* with .numpy\(\)"):
            call()
    with pytest.raises(RunError, match=r"private-cpu\(0\) cannot use memory of other libraries: copy the array to it"):
        DeviceArray.of_view(kinds[0], dlpack.numpy_view(np.zeros(4)))
    with pytest.raises(RunError, match=r"memory of private-cpu\(0\) cannot be passed through DLPack"):
        kinds[0].api.export_memory(array.allocation)

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


def test_a_device_type_of_an_extension_is_exchanged(kinds: tuple[Device, Device]) -> None:
    array = DeviceArray.from_numpy(kinds[1], np.arange(6, dtype=np.int32).reshape(2, 3))
    assert array.__dlpack_device__() == (12, 0)
    again = DeviceArray.from_dlpack(array)
    assert again.device == kinds[1] and again.allocation.handle == array.allocation.handle
    del array
    gc.collect()
    assert again.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    on_host = DeviceArray.from_dlpack(Requested(again, dl_device=(1, 0)))
    assert on_host.device == cpu() and on_host.numpy().tolist() == again.numpy().tolist()
    with pytest.raises(BufferError, match="requested on the host without a copy, and its memory is not there: allow a copy"):
        again.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match=r"is requested on DLPack device \(2, 0\)"):
        again.__dlpack__(dl_device=(2, 0))


class Requested:
    """An array whose exporter gets further arguments, as `numpy.from_dlpack(device=...)` passes them."""

    def __init__(self, array: Any, **options: Any) -> None:
        self.array, self.options = array, options

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self.options.get("dl_device", self.array.__dlpack_device__())
        return found

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**{**options, **self.options})


def test_read_only_arrays_stay_read_only() -> None:
    source = np.arange(4, dtype=np.float32)
    source.flags.writeable = False
    array = DeviceArray.from_dlpack(source)
    assert array.read_only and array.allocation.handle == source.ctypes.data and array.numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(RunError, match="it shares the memory of a read-only array. Make a copy with DeviceArray.from_numpy"):
        array.fill(np.zeros(4, np.float32))
    assert not np.from_dlpack(array).flags.writeable  # type: ignore[arg-type]
    assert DeviceArray.from_dlpack(array).read_only
    for version in (None, (0, 8)):
        with pytest.raises(BufferError, match="is read-only, which DLPack before 1.0 cannot say: use a consumer of DLPack 1.0, or a copy"):
            array.__dlpack__(max_version=version)
    copied = DeviceArray.from_dlpack(Requested(array, copy=True))
    assert not copied.read_only and copied.allocation.handle != array.allocation.handle
    copied.fill(np.zeros(4, np.float32))
    assert source.tolist() == [0, 1, 2, 3]


def test_protocols_of_both_versions_are_read() -> None:
    class Old:
        """A library before DLPack 1.0, whose method takes no version."""

        def __init__(self, array: DeviceArray) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

        def __dlpack__(self, stream: int | None = None) -> object:
            return self.array.__dlpack__()

    array = DeviceArray.from_numpy(cpu(), np.arange(4))
    assert DeviceArray.from_dlpack(Old(array)).numpy().tolist() == [0, 1, 2, 3]

    class Future(Old):
        def __dlpack__(self, stream: int | None = None, **options: Any) -> object:
            capsule = self.array.__dlpack__(max_version=(1, 0))
            ctypes.c_uint32.from_address(dlpack._pointer(capsule, b"dltensor_versioned")).value = 2
            return capsule

    with pytest.raises(RunError, match=r"its capsule has version 2.0 of DLPack, and 1.x or 0.x can be read"):
        DeviceArray.from_dlpack(Future(array))


def test_the_owner_may_be_deleted_first() -> None:
    """In both directions, and with a consumer in between."""
    array = DeviceArray.from_numpy(cpu(), np.arange(1 << 16))
    memory = weakref.ref(array)
    consumer = np.from_dlpack(array)  # type: ignore[arg-type]
    del array
    gc.collect()
    assert consumer.sum() == (1 << 15) * ((1 << 16) - 1)
    back, tensor = DeviceArray.from_dlpack(consumer), tvm_ffi.from_dlpack(consumer)
    del consumer
    gc.collect()
    assert back.numpy()[-1] == (1 << 16) - 1 and np.from_dlpack(tensor)[-1] == (1 << 16) - 1
    del back, tensor
    gc.collect()
    assert memory() is None


def test_an_exception_survives_the_release_of_an_array() -> None:
    """Capsules and consumers that the exception leaves on the stack of the interpreter release the array while it is raised."""
    array = DeviceArray.from_numpy(cpu(), np.ones(4, np.float32))
    before = sys.getrefcount(array)
    consumers: list[Callable[[Any], object]] = [np.from_dlpack, tvm_ffi.from_dlpack, lambda a: a.__dlpack__(max_version=(1, 0))]
    consumers.append(lambda a: a.__dlpack__())
    with contextlib.suppress(ImportError):
        consumers.append(importlib.import_module("torch").from_dlpack)
    for consume in consumers:
        with pytest.raises(ZeroDivisionError):
            print(consume(array), 1 // 0)
        assert sys.getrefcount(array) == before


@pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
def test_numpy_refuses_memory_of_opencl() -> None:
    array = DeviceArray.from_numpy(Device("opencl"), np.ones(4, np.float32))
    before = sys.getrefcount(array)
    with pytest.raises((BufferError, RuntimeError), match="nsupported device"):
        np.from_dlpack(array)  # type: ignore[arg-type]
    assert sys.getrefcount(array) == before
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert np.from_dlpack(array, device="cpu").tolist() == [1] * 4  # type: ignore[call-arg, arg-type]


@pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
def test_opencl_memory_is_exchanged() -> None:
    before, live = len(OPENCL._live), len(OPENCL.driver._foreign)  # type: ignore[attr-defined]
    device = Device("opencl")
    array = DeviceArray.from_numpy(device, np.arange(8, dtype=np.float32))
    assert array.__dlpack_device__() == (4, 0)
    tensor = tvm_ffi.from_dlpack(array)
    again = DeviceArray.from_dlpack(tensor)
    assert again.allocation.handle == array.allocation.handle, "memory of this process has one handle"
    del array, tensor
    gc.collect()
    again.fill(np.full(8, 3, np.float32))
    assert again.numpy().tolist() == [3] * 8
    on_host = DeviceArray.from_dlpack(Requested(again, dl_device=(1, 0)))
    assert on_host.numpy().tolist() == [3] * 8
    del again
    gc.collect()
    assert len(OPENCL._live) == before
    cl: Any = pytest.importorskip("pyopencl")
    context = OPENCL.driver.default_stream(0).context  # type: ignore[attr-defined]
    foreign = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    imported = [OPENCL.foreign_memory(0, foreign.int_ptr, 64) for _ in range(2)]
    assert imported[0] == imported[1]
    OPENCL.drop_foreign_memory(imported[0])
    ones = np.ones(16, np.float32)
    OPENCL.copy(host_memory(ones), imported[1], 64)
    OPENCL.synchronise(0)
    OPENCL.drop_foreign_memory(imported[1])
    assert len(OPENCL.driver._foreign) == live  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="INVALID_BUFFER_SIZE: the memory has fewer than 65 bytes"):
        OPENCL.foreign_memory(0, foreign.int_ptr, 65)
    other = cl.Context(context.devices)
    elsewhere = cl.Buffer(other, cl.mem_flags.READ_WRITE, 64)
    with pytest.raises(RunError, match="INVALID_CONTEXT: the memory is of another OpenCL context"):
        OPENCL.foreign_memory(0, elsewhere.int_ptr, 64)
    view = dlpack.TensorView(foreign.int_ptr, (4, 0), "float32", (2,), None, foreign, offset=8)
    with pytest.raises(RunError, match="that starts 8 bytes into memory without addresses cannot be taken over"):
        DeviceArray.of_view(device, view)


def test_null_pointers_are_refused() -> None:
    with pytest.raises(RunError, match="a tensor of 8 bytes at a null pointer cannot be taken over"):
        DeviceArray.of_view(cpu(), dlpack.TensorView(0, (1, 0), "float32", (2,), None, None))
