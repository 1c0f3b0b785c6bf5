from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tunesmith.runtime import dlpack
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.compiled import Compiled
from tunesmith.runtime.device.arguments import CallStream, Signature, call_stream
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import Device, cuda, opencl
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch
from tunesmith.runtime.ffi import tvm_ffi
from tunesmith.support.array_types import Float32Array
from tunesmith.support.errors import RunError, UserError
from tunesmith.testing.ffi_calls import fuzz_function, raw_of

pytestmark = pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")

SOURCE = """
__kernel void add(__global const float* a, __global const float* b, __global float* t) {
  size_t i = get_global_id(0);
  t[i] = a[i] + b[i];
}
__kernel void reverse(__global const float* t, __global float* c, __local float* s) {
  size_t i = get_local_id(0);
  s[i] = t[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  c[get_global_id(0)] = s[get_local_size(0) - 1 - i];
}
__kernel void first(__global const ushort* x, __global ushort* y) { y[0] = x[0]; }
"""

ADD = DeviceFunction(
    "add_reversed",
    (ParamSpec("A", "float32", (4, 64)), ParamSpec("B", "float32", (4, 64)), ParamSpec("C", "float32", (4, 64), written=True)),
    (1024,),
    (Launch("add", (0, 1, 3), (4, 1, 1), (64, 1, 1)), Launch("reverse", (3, 2), (4, 1, 1), (64, 1, 1), 256)),
)
"""C = (A + B) with its rows reversed, through a workspace."""
FIRST = DeviceFunction(
    "first",
    (ParamSpec("X", "bfloat16", (3,)), ParamSpec("Y", "bfloat16", (3,), written=True)),
    (),
    (Launch("first", (0, 1), (1, 1, 1), (1, 1, 1)),),
)
PROGRAM = DeviceProgram("opencl", "", SOURCE.encode(), (ADD, FIRST))

Arrays = tuple[Float32Array, Float32Array, Float32Array]


@pytest.fixture(scope="module")
def module() -> DeviceModule:
    return DeviceModule(DeviceProgram.from_bytes(PROGRAM.to_bytes()))


@pytest.fixture
def arrays() -> Arrays:
    a = np.arange(256, dtype=np.float32).reshape(4, 64)
    return a, a**2, np.zeros_like(a)


def wanted(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return (a + b)[:, ::-1]


def test_functions_have_names(module: DeviceModule) -> None:
    assert module.functions == ("add_reversed", "first")
    assert repr(module["first"]) == "<function first(X: bfloat16[3], Y: bfloat16[3]) on opencl(0)>"
    with pytest.raises(RunError, match=r"<module of .* \(on opencl\(0\)\)> has no function 'last'. It has: add_reversed, first"):
        module["last"]


def test_a_loaded_program_has_the_interface_of_compiled_functions(module: DeviceModule, arrays: Arrays, tmp_path: Path) -> None:
    assert isinstance(module, Compiled) and list(module) == ["add_reversed", "first"] and "first" in module and "last" not in module
    (row,) = module.profile(*arrays, name="add_reversed", repeats=1)
    assert row.microseconds > 0 and row.function == "add_reversed"
    with pytest.raises(RunError, match=r"cannot export .*lib.so: <module of .*> was loaded from a program.* module.save\(path\)"):
        module.export_library(tmp_path / "lib.so")


def test_host_arrays_are_copied(module: DeviceModule, arrays: Arrays) -> None:
    a, b, c = arrays
    a.flags.writeable = False  # operands may be read-only
    module["add_reversed"](a, b, c)
    assert np.array_equal(c, wanted(a, b))


def test_elements_that_are_not_written_keep_their_value(module: DeviceModule) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.tensor([1.5, 2.5, 3.5], dtype=torch.bfloat16), torch.tensor([7.0, 8.0, 9.0], dtype=torch.bfloat16)
    module["first"](x, y)
    assert y.tolist() == [1.5, 8.0, 9.0]


def test_device_arrays(module: DeviceModule, arrays: Arrays) -> None:
    a, b, c = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
    module["add_reversed"](a, b, c)
    assert np.array_equal(c.numpy(), wanted(*arrays[:2]))
    module["add_reversed"](a, arrays[1] + 1, c)  # mixed
    assert np.array_equal(c.numpy(), wanted(arrays[0], arrays[1] + 1))


def test_the_function_for_other_languages(module: DeviceModule, arrays: Arrays) -> None:
    """Host tensors are copied, tensors on the device used in place."""
    function = module["add_reversed"]
    a, b, c = arrays
    assert function.ffi is function.ffi and function.ffi(a, b, c) is None
    assert np.array_equal(c, wanted(a, b))
    x, y, z = [DeviceArray.from_numpy(opencl(), v) for v in (b, a, np.zeros_like(a))]
    function.ffi(x, tvm_ffi.from_dlpack(y), z)
    assert np.array_equal(z.numpy(), wanted(a, b)) and not OPENCL.driver._foreign  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"argument 2 \(C\): .*, got memory that it shares with argument 0 \(A\)"):
        function.ffi(x, y, x)
    again = module["add_reversed"].ffi
    del function
    gc.collect()
    again(a, b, c)


@pytest.mark.parametrize("seed", range(2))
def test_invalid_arguments_of_c_callers(module: DeviceModule, arrays: Arrays, seed: int) -> None:
    """Handles of OpenCL memory cannot be checked, and host arrays need no alignment."""
    fuzz_function(
        module["add_reversed"].ffi,
        "add_reversed",
        "ABC",
        lambda: [raw_of(v.copy()) for v in arrays],
        seed,
        accepts=("device", "misaligned"),
    )


def test_read_only_device_arrays(module: DeviceModule, arrays: Arrays) -> None:
    a, b, c = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
    a.read_only = c.read_only = True
    with pytest.raises(RunError, match=r"argument 2 \(C\): .*, got a read-only array, and it is written: pass a writable copy"):
        module["add_reversed"](a, b, c)


def test_calls_use_the_current_stream(module: DeviceModule, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, launched = OPENCL.create_stream(0), []
    launch = OPENCL.launch
    monkeypatch.setattr(OPENCL, "launch", lambda *a: (launched.append(a[-1]), launch(*a)))
    with OPENCL.using_stream(0, stream):
        a, b, c = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
        assert call_stream(opencl(), (a, b, c)) == CallStream(stream, None)
        module["add_reversed"](a, b, c)
        assert np.array_equal(c.numpy(), wanted(*arrays[:2]))
    assert launched == [stream] * 2
    OPENCL.free_stream(0, stream)


def test_programs_are_loaded_onto_the_current_device(tmp_path: Path) -> None:
    path = DeviceModule(PROGRAM).save(tmp_path / "program")
    OPENCL._choice().index = 7  # a device that does not exist here
    try:
        assert DeviceModule.load(path).device == opencl(7) and DeviceModule.load(path, 0).device == opencl(0)
    finally:
        OPENCL.set_device(0)


def test_bound_calls(module: DeviceModule, arrays: Arrays) -> None:
    a, b, c = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
    call = module["add_reversed"].bind(a, b, c)
    for shift in (1, 2):
        a.fill(arrays[0] + shift)
        call()
        assert np.array_equal(c.numpy(), wanted(arrays[0] + shift, arrays[1]))
    with pytest.raises(RunError, match=r"argument 1 \(B\) is in host memory, and bound calls do not copy: pass DeviceArray.from_numpy"):
        module["add_reversed"].bind(a, arrays[1], c)


def test_time(module: DeviceModule, arrays: Arrays) -> None:
    a, b, c = arrays
    device = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
    samples = module.time(*device, name="add_reversed", repeats=3, min_ms=0.5)
    assert len(samples.seconds) == 3 and samples.number >= 1 and all(s > 0 for s in samples.seconds)
    assert np.array_equal(device[2].numpy(), wanted(a, b))
    assert len(module.time(a, b, c, name="add_reversed", repeats=1, min_ms=0, warmup=0, flush_bytes=20_000).seconds) == 1
    assert not c.any(), "arrays of the host are copied for timing, and not back"
    with pytest.raises(UserError, match="repeats=0: expected an integer >= 1"):
        module.time(a, b, c, name="add_reversed", repeats=0)


def test_rotation_copies_arguments(module: DeviceModule, arrays: Arrays) -> None:
    device = [DeviceArray.from_numpy(opencl(), v) for v in arrays]
    assert len(module._rotation("add_reversed", device, 0)) == 1
    calls = module._rotation("add_reversed", device, 10_000)
    assert len(calls) == 1 + 4  # 3 KB per set
    for call in calls:
        call()
    found = [operand.owner.numpy() for call in calls for operand in call._keep[2:]]  # type: ignore[attr-defined]
    assert len(found) == 5 and all(np.array_equal(f, wanted(*arrays[:2])) for f in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b, c: (a, b), r"expected 3 argument\(s\), got 2; signature: add_reversed\(A: float32\[4, 64\], B: "),
        (lambda a, b, c: (a, b.astype("float64"), c), r"argument 1 \(B\): expected float32\[4, 64\], got dtype float64"),
        (lambda a, b, c: (a.astype(">f4"), b, c), r"argument 0 \(A\): expected float32\[4, 64\], got dtype >f4"),
        (lambda a, b, c: (a.reshape(64, 4), b, c), r"argument 0 \(A\): .*, got shape \[64, 4\]"),
        (
            lambda a, b, c: (a, np.asfortranarray(b), c),
            r"argument 1 \(B\): .*, got strides \[1, 4\] \(in elements\): it must be contiguous",
        ),
        (lambda a, b, c: (a, 3.0, c), r"argument 1 \(B\): .*, got a value of type float: pass an array"),
        (
            lambda a, b, c: (a, b, b),
            r"argument 2 \(C\): .*, got memory that it shares with argument 1 \(B\), and one of the two is written",
        ),
        (lambda a, b, c: (a, b, frozen(c)), r"argument 2 \(C\): .*, got a read-only array, and it is written: pass a writable copy"),
        (lambda a, b, c: (a, b, DeviceArray(opencl(), (4, 64), "int32")), r"argument 2 \(C\): .*, got dtype int32"),
        (lambda a, b, c: (a, b, DeviceArray(opencl(), (4, 63), "float32")), r"argument 2 \(C\): .*, got shape \[4, 63\]"),
        (
            lambda a, b, c: (a, b, DeviceArray(Device("cpu"), (4, 64), "float32")),
            r"argument 2 \(C\): .*, got memory of cpu\(0\): pass an array on",
        ),
    ],
)
def test_refusals(module: DeviceModule, arrays: Arrays, change: Any, message: str) -> None:
    with pytest.raises(RunError, match=f"add_reversed: {message}"):
        module["add_reversed"](*change(*arrays))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_one_device_array_for_two_parameters(module: DeviceModule, arrays: Arrays) -> None:
    a, c = DeviceArray.from_numpy(opencl(), arrays[0]), DeviceArray(opencl(), (4, 64), "float32")
    module["add_reversed"](a, a, c)  # both are only read
    assert np.array_equal(c.numpy(), wanted(arrays[0], arrays[0]))
    with pytest.raises(RunError, match=r"argument 2 \(C\): .*, got memory that it shares with argument 0 \(A\)"):
        module["add_reversed"](a, c, a)


def test_tensors_that_cannot_be_passed(module: DeviceModule, arrays: Arrays) -> None:
    torch = pytest.importorskip("torch")
    a, b, c = [torch.from_numpy(v) for v in arrays]
    module["add_reversed"](a, b, c)
    assert np.array_equal(c.numpy(), wanted(*arrays[:2]))
    with pytest.raises(RunError, match=r"argument 0 \(A\): .*, got a torch.Tensor that cannot be passed through DLPack: .*grad"):
        module["add_reversed"](a.requires_grad_(), b, c)
    with pytest.raises(RunError, match=r"argument 1 \(B\): .*resolve_neg\(\) first"):
        module["add_reversed"](arrays[0], torch._neg_view(b), c)
    with pytest.raises(RunError, match=r"argument 1 \(B\): .*, got strides \[1, 4\]"):
        module["add_reversed"](arrays[0], torch.zeros(64, 4).T, c)


class Foreign:
    """A fake GPU array with the DLPack protocol: host memory reported as GPU memory."""

    def __init__(self, array: npt.NDArray[Any], index: int = 0) -> None:
        self.array, self.index, self.streams = array, index, list[int]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.index

    def __dlpack__(self, stream: int) -> object:
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        tensor = dlpack.Tensor.from_address(dlpack._pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_index = dlpack.CUDA, self.index
        return capsule


class TorchLike(Foreign):
    is_cuda = True
    device = "cuda:0"


TorchLike.__module__ = "torch"


def aligned(n: int, offset: int = 0) -> Float32Array:
    block = np.zeros(4 * n + 64, np.uint8)
    start = -block.ctypes.data % 64 + offset
    return block[start : start + 4 * n].view(np.float32)


def test_arrays_of_gpu_libraries_are_used_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = Signature("f", (ParamSpec("A", "float32", (8,)), ParamSpec("B", "float32", (8,), written=True)), cuda())
    a, b = Foreign(aligned(8)), Foreign(aligned(8))
    unknown = CallStream(0, None)
    assert call_stream(cuda(), (a, b)) == unknown
    found = signature.operands((a, b), unknown)
    assert [o.memory.handle for o in found] == [a.array.ctypes.data, b.array.ctypes.data]
    assert a.streams == [1] and not any(o.ordered or o.on_host for o in found), "its library's stream is not known: the caller waits"

    api = SimpleNamespace(foreign_stream=lambda index, address: 77, dlpack_type=2, has_addresses=True)
    monkeypatch.setattr(Device, "api", api)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=4096)))
    )
    t = TorchLike(aligned(8))
    stream = call_stream(cuda(), (a, t))
    assert stream == CallStream(77, 4096)
    assert [o.ordered for o in signature.operands((a, t), stream)] == [False, True]
    assert t.streams == [4096] and a.streams[-1] == 4096, "its library makes the stream wait for what it does"


def test_refusals_of_gpu_arrays() -> None:
    signature = Signature("f", (ParamSpec("A", "float32", (8,)), ParamSpec("B", "float32", (8,), written=True)), cuda())
    stream, good = CallStream(0, None), Foreign(aligned(8))
    with pytest.raises(RunError, match=r"f: argument 1 \(B\): .*, got memory of DLPack device type 2, index 1: pass an array on cuda\(0\)"):
        signature.operands((good, Foreign(aligned(8), index=1)), stream)
    with pytest.raises(RunError, match=r"f: argument 0 \(A\): .*, got the address 0x.*, which is not a multiple of 16: pass a copy"):
        signature.operands((Foreign(aligned(8, offset=4)), good), stream)
    both = aligned(12)
    with pytest.raises(RunError, match=r"argument 1 \(B\): .* shares with argument 0 \(A\)"):
        signature.operands((Foreign(both[:8]), Foreign(both[4:])), stream)
    on_opencl = Signature("f", signature.params, opencl())
    with pytest.raises(RunError, match=r"got memory of DLPack device type 2, index 0: pass an array on opencl\(0\) or the host"):
        on_opencl.operands((good, good), stream)


def test_device_arrays_are_freed() -> None:
    before = len(OPENCL._live)
    array = DeviceArray.from_numpy(opencl(), np.arange(10, dtype=np.int8))
    assert repr(array) == "<int8[10] on opencl(0)>" and array.nbytes == 10 and len(OPENCL._live) == before + 1
    assert array.numpy().tolist() == list(range(10))
    del array
    gc.collect()
    assert len(OPENCL._live) == before


def test_device_arrays_hold_bfloat16_as_bits() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    array = DeviceArray.from_numpy(opencl(), bits, "bfloat16")
    assert array.dtype == "bfloat16" and array.nbytes == 4 and np.array_equal(array.numpy(), bits)
    with pytest.raises(RunError, match=r"cannot fill <bfloat16\[2\] on opencl\(0\)> from an array of float32\[2\]"):
        array.fill(np.zeros(2, np.float32))
    with pytest.raises(RunError, match="expected int32, got float32"):
        DeviceArray.from_numpy(opencl(), np.zeros(2, np.float32), "int32")
    with pytest.raises(RunError, match="arrays hold scalars, use float32"):
        DeviceArray(opencl(), (4,), "float32x4")


def test_code_that_does_not_build(arrays: Arrays) -> None:
    broken = DeviceModule(DeviceProgram("opencl", "", b"__kernel void f( {", PROGRAM.functions))
    with pytest.raises(RunError, match="BUILD_PROGRAM_FAILURE"):
        broken["add_reversed"](*arrays)


@pytest.mark.parametrize(
    ("shape", "strides", "good"),
    [
        ((2, 3), None, True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((1, 3), (99, 1), True),
        ((0, 3), (7, 7), True),
        ((), (), True),
    ],
)
def test_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None, good: bool) -> None:
    assert dlpack.contiguous(shape, strides) is good
