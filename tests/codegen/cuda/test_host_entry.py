"""Libraries of CUDA functions without a GPU: their contents, and calls in a separate process with a fake driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm_ffi

from tunesmith.codegen.cuda.host_entry import compile_entries, emit_cuda_entries
from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.codegen.device.export import export_device_library
from tunesmith.codegen.llvm.export import export_library
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cuda import CUDA
from tunesmith.runtime.device.device import cuda
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch
from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.module import load_module
from tunesmith.support.array_types import Float32Array
from tunesmith.support.errors import BuildError, RunError
from tunesmith.testing.device_conformance import CUDA_KERNELS

FAKE_DRIVER = "TUNESMITH_TEST_FAKE_LIBCUDA"
"""Environment variable with the library of the fake driver, in the process that runs on it."""
FAKE = Path(__file__).parents[2] / "runtime" / "device" / "fake_libcuda.c"
MODULES, POOLS = 3, 4

over_fake = pytest.mark.skipif(FAKE_DRIVER not in os.environ, reason="runs in the process of test_with_a_fake_driver")
without_gpu = pytest.mark.skipif(CUDA.count() > 0, reason="there is a GPU")

A, B = ParamSpec("A", "float32", (8, 32)), ParamSpec("B", "float32", (8, 32), written=True)
SCALE = Launch("scale", (0, 1), (4, 1, 1), (64, 1, 1))
TWO = (Launch("scale", (0, 3), (4, 1, 1), (64, 1, 1)), Launch("reverse", (3, 1), (4, 1, 1), (64, 1, 1), 100 << 10))
"""Data pass through the second of two workspaces."""


def program(
    *launches: Launch, workspaces: tuple[int, ...] = (), code: bytes = b"fake:scale,reverse,fault", name: str = "f"
) -> DeviceProgram:
    return DeviceProgram("cuda", "sm_90", code, (DeviceFunction(name, (A, B), workspaces, launches or (SCALE,)),))


PROGRAM = program(*TWO, workspaces=(100, 1024))


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


_KEPT: list[Claimed] = []
"""All instances are kept alive: the tests are not notified of a tensor's release."""


class Claimed:
    """A numpy array that reports GPU memory through DLPack, or a description of memory at another address."""

    def __init__(self, array: npt.NDArray[Any], device: tuple[int, int] = (2, 0), offset: int = 0, address: int | None = None) -> None:
        self.array, self.device, self.passed = array, device, 0
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*[s // array.itemsize for s in array.strides])
        code, bits = {"f": 2, "i": 0}[array.dtype.kind], 8 * array.itemsize
        fields = (*device, array.ndim, code, bits, 1, self._shape, self._strides, offset, None, None)
        self._tensor = _Managed(array.ctypes.data if address is None else address, *fields)
        _KEPT.append(self)

    def __dlpack__(self, **_: object) -> object:
        self.passed += 1
        return _capsule(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def numbers(offset: int = 0) -> Float32Array:
    """float32[8, 32] whose address is `offset` bytes above a multiple of 64."""
    memory = np.zeros(8 * 32 * 4 + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    array = memory[start : start + 1024].view(np.float32).reshape(8, 32)
    array[...] = np.arange(256, dtype=np.float32).reshape(8, 32)
    return array


def test_a_library_holds_the_code_and_needs_no_driver(tmp_path: Path) -> None:
    library = export_device_library(tmp_path / "f.so", PROGRAM)
    data = library.read_bytes()
    symbols = read_symbols(data)
    assert symbols.defined == ("__tvm_ffi_f",)
    assert symbols.libraries == () and not [s for s in symbols.needed if s.startswith("cu")]
    assert PROGRAM.code in data
    assert export_device_library(tmp_path / "again.so", DeviceProgram.from_bytes(PROGRAM.to_bytes())).read_bytes() == data
    assert load_module(library).functions == ("f",)


def test_cpu_entries_in_the_same_library(tmp_path: Path, programs: Any) -> None:
    from tunesmith.codegen.llvm.build import build
    from tunesmith.ir.target.target import Target
    from tunesmith.ops.workload import workload

    host = build(workload("relu(shape=8)").func, Target.detect())
    module = load_module(export_library(tmp_path / "both.so", [compile_entries(PROGRAM), host.data]))
    assert module.functions == ("f", "relu")
    x, y = np.linspace(-1, 1, 8, dtype=np.float32), np.zeros(8, np.float32)
    module["relu"](x, y)
    assert np.array_equal(y, np.maximum(x, 0))
    with pytest.raises(RunError, match=r"f: argument 0 \(A\).*, got memory of DLPack device type 1"):
        module["f"](numbers(), numbers())


def test_text_of_an_entry(assert_golden: Callable[..., None]) -> None:
    text = emit_cuda_entries(PROGRAM)
    assert_golden(text[text.index('define i32 @"__tvm_ffi_f"') :])


def test_programs_that_cannot_be_exported(tmp_path: Path) -> None:
    opencl = DeviceProgram("opencl", "", b"", ())
    with pytest.raises(BuildError, match=r"this one is for opencl.*module.save\(path\).*tunesmith.load_module\(path\)"):
        export_device_library(tmp_path / "f.so", opencl)
    with pytest.raises(BuildError, match="of kind cuda, not opencl"):
        emit_cuda_entries(opencl)
    with pytest.raises(BuildError, match="'a-b' cannot name an exported function"):
        compile_entries(program(name="a-b"))
    with pytest.raises(BuildError, match="two functions of one module are called 'f'"):
        compile_entries(DeviceProgram("cuda", "sm_90", b"", PROGRAM.functions * 2))
    assert not list(tmp_path.iterdir())


USER = """
sys.modules["torch"] = None  # TVM-FFI would import it, which takes seconds
import ctypes, numpy, tvm_ffi
f = tvm_ffi.load_module(sys.argv[1]).f
tensors = [tvm_ffi.from_dlpack(numpy.zeros((8, 32), numpy.float32)) for _ in range(2)]
# Behind the header of the object, the device type of its DLTensor.
kinds = [ctypes.c_int32.from_address(t.__chandle__() + 24 + 8) for t in tensors]
for kind in kinds:
    kind.value = 2
try:
    f(*tensors)
except RuntimeError as error:
    print(error)
for kind in kinds:
    kind.value = 1
assert not [name for name in sys.modules if name.startswith("tunesmith")]
"""


def use(library: Path, environment: dict[str, str]) -> str:
    """Output of a process with TVM-FFI and without tunesmith, whose tensors report GPU memory."""
    folders = f"import sys; sys.path.extend({[p for p in sys.path if p]!r})"
    command = [sys.executable, "-I", "-c", f"{folders}\n{USER}", str(library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(source: Path, library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl", "-lpthread"], check=True)


@without_gpu
def test_a_missing_driver_is_reported(tmp_path: Path) -> None:
    message = use(export_device_library(tmp_path / "f.so", PROGRAM), {})
    assert message.startswith("f: it runs on NVIDIA GPUs, and the driver of CUDA is not there (libcuda.so.1: cannot open")
    assert message.endswith("install NVIDIA's driver; `nvidia-smi` shows whether it works\n")


@without_gpu
def test_an_old_driver_is_reported(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    compiled(source, tmp_path / "libcuda.so.1")
    message = use(export_device_library(tmp_path / "f.so", PROGRAM), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert message == (
        "f: it runs on NVIDIA GPUs, and the driver of CUDA is too old, it has no cuDeviceGet: install one for CUDA 11.2 or later\n"
    )


@without_gpu
def test_with_a_fake_driver(tmp_path: Path) -> None:
    """Runs the tests of the class below with a fake driver instead of NVIDIA's."""
    compiled(FAKE, tmp_path / "libcuda.so.1")
    path = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"LD_LIBRARY_PATH": path, FAKE_DRIVER: str(tmp_path / "libcuda.so.1")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"{__file__}::TestFakeDriver"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "passed" in done.stdout, done.stdout


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    version = CUDA.attributes(0).compute_version
    assert version is not None
    cubin = compile_cuda(CUDA_KERNELS, f"sm_{version.replace('.', '')}").cubin
    f = tvm_ffi.load_module(str(export_device_library(tmp_path / "f.so", program(*TWO, workspaces=(100, 1024), code=cubin)))).f
    a = numbers()
    x, y = DeviceArray.from_numpy(cuda(), a), DeviceArray(cuda(), (8, 32), "float32")
    arguments = [Claimed(a, address=z.allocation.handle) for z in (x, y)]
    per_thread = 2  # CUDA's handle of the per-thread default stream
    for address, stream in ((0, 0), (per_thread, CUDA.foreign_stream(0, per_thread))):
        y.fill(np.zeros_like(a))
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), address):
            for _ in range(3):
                f(*arguments)
        CUDA.synchronise(0, stream)
        assert np.array_equal(y.numpy().reshape(4, 64), 2 * a.reshape(4, 64)[:, ::-1])


@over_fake
class TestFakeDriver:
    """Calls on a fake driver that uses host memory and toy kernels."""

    @pytest.fixture
    def fake(self) -> ctypes.CDLL:
        library = ctypes.CDLL(os.environ[FAKE_DRIVER])
        library.fake_adopt.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        return library

    @pytest.fixture
    def load(self, tmp_path: Path) -> Callable[[DeviceProgram], Any]:
        return lambda program: tvm_ffi.load_module(str(export_device_library(tmp_path / "f.so", program))).f

    @pytest.fixture
    def pair(self, fake: ctypes.CDLL) -> tuple[Claimed, Claimed]:
        arrays = numbers(), numbers()
        for array in arrays:
            fake.fake_adopt(array.ctypes.data, array.nbytes)
        return Claimed(arrays[0]), Claimed(arrays[1])

    def last(self, fake: ctypes.CDLL) -> list[int]:
        """Grid, block, shared memory, stream, device, and two pointers of the last launch."""
        found = (ctypes.c_ulonglong * 11)()
        fake.fake_last(found)
        return list(found)

    def test_launches_and_their_results(self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed]) -> None:
        a, b = pair
        f = load(PROGRAM)
        alive = [fake.fake_live(kind) for kind in range(5)]
        f(a, b)
        assert np.array_equal(b.array.reshape(4, 64), 2 * a.array.reshape(4, 64)[:, ::-1])
        *shape, source, target = self.last(fake)
        assert shape == [4, 1, 1, 64, 1, 1, 100 << 10, 0, 0]
        assert target == b.array.ctypes.data and source % 256 == 0
        after = [fake.fake_live(kind) for kind in range(5)]
        assert [y - x for x, y in zip(alive, after, strict=True)] == [0, 0, 0, 1, 1] and fake.fake_depth() == 0
        f(a, b)
        assert [fake.fake_live(kind) for kind in range(5)] == after

    def test_stream_and_device_of_the_caller_are_used(
        self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed]
    ) -> None:
        f = load(program())
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 4711):
            f(*pair)
            assert self.last(fake)[7:9] == [4711, 0]
            there = [Claimed(x.array, (2, 1)) for x in pair]
            f(*there)
            assert self.last(fake)[7:9] == [0, 1]
        f(*[Claimed(x.array, (13, 0)) for x in pair])
        assert self.last(fake)[7:] == [0, 0, *[x.array.ctypes.data for x in pair]]

    def test_the_context_of_the_thread_is_restored(
        self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed]
    ) -> None:
        context, now = ctypes.c_void_p(), ctypes.c_void_p()
        fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
        fake.cuCtxPushCurrent_v2(context)
        load(program())(*pair)
        assert self.last(fake)[8] == 0
        fake.cuCtxGetCurrent(ctypes.byref(now))
        assert now.value == context.value and fake.fake_depth() == 1
        fake.cuCtxPopCurrent_v2(ctypes.byref(now))

    def test_threads_load_the_code_once(
        self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed], in_threads: Callable[..., None]
    ) -> None:
        f, a = load(program(*TWO, workspaces=(8, 1024), code=b"fake:slow,scale,reverse")), pair[0]
        outputs = [numbers() for _ in range(4)]
        for output in outputs:
            fake.fake_adopt(output.ctypes.data, output.nbytes)
        alive = fake.fake_live(MODULES), fake.fake_live(POOLS)
        together = threading.Barrier(len(outputs))

        def call(output: Float32Array) -> None:
            x, y = tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(Claimed(output))
            together.wait()
            f(x, y)

        in_threads(call, outputs)
        wanted = 2 * a.array.reshape(4, 64)[:, ::-1]
        assert all(np.array_equal(output.reshape(4, 64), wanted) for output in outputs)
        assert (fake.fake_live(MODULES), fake.fake_live(POOLS)) == (alive[0] + 1, alive[1] + 1)

    def test_refusals(self, load: Callable[..., Any], pair: tuple[Claimed, Claimed]) -> None:
        f, (a, b) = load(program()), pair
        want = r"^f: argument {} \({}\): expected float32\[8, 32\], got "
        first, second = want.format(0, "A"), want.format(1, "B")
        one = "pass tensors in the memory of one CUDA device .device type 2.$"
        for arguments, kind, message in (
            ((a,), TypeError, r"^f: expected 2 argument\(s\), got 1; signature: f\(A: float32\[8, 32\], B: float32\[8, 32\]\)$"),
            ((3, b), TypeError, first + r"a value of type int: pass a tensor \(torch, CuPy or any other DLPack array\)$"),
            ((a, Claimed(b.array.view(np.int32))), TypeError, second + "dtype int32$"),
            ((Claimed(a.array[:4]), b), ValueError, first + r"shape \[4, 32\]$"),
            ((Claimed(np.zeros((32, 8), np.float32).T), b), ValueError, first + r"strides \[1, 8\] \(in elements\).*x.contiguous\(\)\)$"),
            ((a.array, b), ValueError, first + f"memory of DLPack device type 1, index 0: {one}"),
            ((a, Claimed(b.array, (10, 0))), ValueError, second + f"memory of DLPack device type 10, index 0: {one}"),
            ((a, Claimed(b.array, (2, 1))), ValueError, second + f"memory of DLPack device type 2, index 1: {one}"),
            ((a, Claimed(numbers(4))), ValueError, second + "the address 0x[0-9a-f]+, which is not a multiple of 16: pass a copy$"),
            ((a, Claimed(b.array, offset=8)), ValueError, second + "the address .* multiple of 16"),
            ((a, Claimed(a.array)), ValueError, second + r"memory that it shares with argument 0 \(A\), and one of the two is written"),
            ((Claimed(a.array, (2, 70)), Claimed(b.array, (2, 70))), RuntimeError, r"^f: cuda\(70\), code is loaded for devices 0 to 63$"),
        ):
            with pytest.raises(kind, match=message):
                f(*arguments)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (program(code=b"other"), "loading of code for sm_90: CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid"),
            (program(Launch("none", (0, 1), (1, 1, 1), (1, 1, 1))), "kernel none: CUDA_ERROR_NOT_FOUND: named symbol not found"),
            (program(Launch("scale", (0, 1), (1, 1, 1), (1, 1, 1), 300 << 10)), "shared memory of kernel scale: CUDA_ERROR_INVALID_VALUE"),
            (program(Launch("scale", (0, 1), (1, 1, 1), (2048, 1, 1)), workspaces=(8,)), "launch of scale: CUDA_ERROR_INVALID_VALUE"),
            (program(workspaces=(1 << 40,)), "allocation of workspaces: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        ],
        ids=["image", "kernel", "shared", "launch", "memory"],
    )
    def test_cuda_errors_include_the_driver_text(
        self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed], wrong: DeviceProgram, message: str
    ) -> None:
        f = load(wrong)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"^f: cuda\(0\), {message}"):
                f(*pair)
            assert fake.fake_depth() == 0
            alive = [fake.fake_live(kind) for kind in range(5)]
        with pytest.raises(RuntimeError, match="CUDA_ERROR"):
            f(*pair)
        assert [fake.fake_live(kind) for kind in range(5)] == alive

    def test_a_missing_device(self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed]) -> None:
        with pytest.raises(RuntimeError, match=r"^f: cuda\(5\), its primary context: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal$"):
            load(program())(*[Claimed(x.array, (2, 5)) for x in pair])
        assert fake.fake_depth() == 0

    def test_bound_calls_query_the_tensor_library_again(self, tmp_path: Path, pair: tuple[Claimed, Claimed]) -> None:
        a, b = pair
        module = load_module(export_device_library(tmp_path / "f.so", program()))
        call = module["f"].bind(a, b)  # type: ignore[union-attr]
        assert a.passed == 0
        call()
        a.array[...] += 1
        call()
        assert a.passed == 2 and np.array_equal(b.array, 2 * a.array)
        with pytest.raises(RunError, match="got shape"):
            module["f"](a, Claimed(b.array[:2]))

    def test_zz_a_lost_device(self, fake: ctypes.CDLL, load: Callable[..., Any], pair: tuple[Claimed, Claimed]) -> None:
        """Must be last: the context is unusable afterwards."""
        f = load(program(Launch("fault", (), (1, 1, 1), (1, 1, 1)), workspaces=(16,)))
        with pytest.raises(
            RuntimeError, match=r"^f: cuda\(0\), release of workspaces: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
        ):
            f(*pair)
        with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            f(*pair)
        assert fake.fake_depth() == 0
