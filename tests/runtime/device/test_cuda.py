"""CUDA without a GPU: the errors if there is none, and the whole path on a fake driver in a separate process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.cuda import CUDA, CudaDeviceAPI
from tunesmith.runtime.device.device import Allocation, Device, DeviceAPI, DeviceLost, cuda
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceFunction, DeviceProgram, Launch
from tunesmith.support.errors import RunError, UserError
from tunesmith.testing.device_conformance import CUDA_KERNELS, DeviceConformance, Make, content, filled

FAKE_LIBRARY = "TUNESMITH_TEST_FAKE_LIBCUDA"
"""Environment variable of the process with the fake driver: path of its library."""

over_fake = pytest.mark.skipif(FAKE_LIBRARY not in os.environ, reason="runs in the process of test_with_the_fake_driver")
without_gpu = pytest.mark.skipif(CUDA.count() > 0, reason="there is a GPU")

TOYS = b"fake:scale,reverse,fault"


def test_it_is_a_value() -> None:
    assert cuda() == Device("cuda", 0) and cuda(1).index == 1
    assert cuda().api is CUDA


@without_gpu
@pytest.mark.parametrize("driver", ["cuda-core", "pycuda"])
def test_a_missing_gpu_is_an_error_only_when_used(monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    monkeypatch.setenv("TUNESMITH_CUDA_DRIVER", driver)
    api = CudaDeviceAPI()
    assert api.count() == 0
    with pytest.raises(RunError, match=r"there is no cuda\(0\): .*(nvidia-smi|pip install 'tunesmith)"):
        api.allocate(0, 16)


@pytest.mark.parametrize(("driver", "package"), [("cuda-core", "cuda.bindings"), ("pycuda", "pycuda.driver")])
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, driver: str, package: str) -> None:
    monkeypatch.setenv("TUNESMITH_CUDA_DRIVER", driver)
    monkeypatch.setitem(sys.modules, package, None)
    api = CudaDeviceAPI()
    assert api.count() == 0
    extra = "cuda" if driver == "cuda-core" else "pycuda"
    with pytest.raises(RunError, match=rf"there is no cuda\(0\): .*pip install 'tunesmith\[{extra}\]'"):
        api.attributes(0)


def test_an_unknown_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_CUDA_DRIVER", "nouveau")
    with pytest.raises(UserError, match="TUNESMITH_CUDA_DRIVER=nouveau names no driver .* cuda-core, pycuda"):
        CudaDeviceAPI().count()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake driver."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("libcuda")
    source, library = Path(__file__).with_name("fake_libcuda.c"), folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl", "-lpthread"], check=True)
    return folder


@without_gpu
def test_with_the_fake_driver(library: Path) -> None:
    pytest.importorskip("cuda.bindings.driver")
    path = os.pathsep.join([str(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    environment = os.environ | {"LD_LIBRARY_PATH": path, FAKE_LIBRARY: str(library / "libcuda.so.1")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"{__file__}::TestFakeDriver"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "passed" in done.stdout, done.stdout


@pytest.mark.gpu
class TestCuda(DeviceConformance):
    """The conformance suite on a GPU."""

    @pytest.fixture
    def make(self) -> Make:
        return lambda: CUDA

    @pytest.fixture
    def code(self) -> bytes:
        version = CUDA.attributes(0).compute_version
        assert version is not None
        return compile_cuda(CUDA_KERNELS, f"sm_{version.replace('.', '')}").cubin


@over_fake
class TestFakeDriver(DeviceConformance):
    """The conformance suite, and tests that need the fake driver."""

    @pytest.fixture
    def api(self) -> Iterator[DeviceAPI]:
        """A new API; all its objects must be freed at the end."""
        fake = ctypes.CDLL(os.environ[FAKE_LIBRARY])
        alive = [fake.fake_live(kind) for kind in (*range(4), 5)]
        api = CudaDeviceAPI()
        yield api
        api.release_workspaces()
        del api
        assert [fake.fake_live(kind) for kind in (*range(4), 5)] == alive, "memory, streams, events, modules or graphs are left"
        assert fake.fake_depth() == 0, "a context is still current"

    @pytest.fixture
    def code(self) -> bytes:
        return TOYS

    def test_attributes(self, api: DeviceAPI) -> None:
        facts = api.attributes(1)
        assert facts.name == "Fake GPU 1"
        assert (facts.compute_version, facts.driver_version, facts.warp_size, facts.compute_units) == ("9.0", "13.0", 32, 132)
        assert facts.clock_hz == 1_980_000_000 and facts.l2_cache_bytes == 60 << 20
        assert (facts.max_shared_memory_per_block, facts.max_shared_memory_per_block_optin) == (48 << 10, 227 << 10)
        assert facts.max_thread_dimensions == (1024, 1024, 64) and facts.max_registers_per_block == 65536
        assert facts.memory_bytes == 2 * (facts.free_memory_bytes or 0)

    def test_between_devices(self, api: DeviceAPI) -> None:
        values = np.arange(8, dtype=np.float32)
        here, there = filled(api, values), filled(api, np.zeros(8, np.float32), index=1)
        api.copy(here, there, 16, source_offset=8, target_offset=4)
        assert content(api, there, values).tolist() == [0, 2, 3, 4, 5, 0, 0, 0]
        for block in (here, there):
            api.free(block)

    def test_arguments_are_counted(self, api: DeviceAPI) -> None:
        code, block = api.load_code(0, TOYS), api.allocate(0, 64)
        with pytest.raises(RunError, match="it takes 2 arguments, and 1 are given"):
            api.launch(0, code, "scale", [block], (1, 1, 1), (16, 1, 1))
        with pytest.raises(RunError, match="CUDA_ERROR_INVALID_VALUE: compiled code takes no options"):
            api.load_code(0, TOYS, "-O3")
        api.unload_code(0, code)
        api.free(block)

    def test_foreign_streams(self, api: DeviceAPI) -> None:
        driver = api.driver  # type: ignore[attr-defined]
        entered = driver.enter(0)
        address = driver.create_stream(0)
        stream = api.foreign_stream(0, address)
        assert api.foreign_stream(0, address) == stream
        api.synchronise(0, stream)
        api.free_stream(0, stream)
        assert api.foreign_stream(0, address) != stream
        driver.free_stream(address)
        driver.leave(entered)

    def test_names_of_errors(self, api: DeviceAPI) -> None:
        with pytest.raises(RunError, match=r"cuda\(0\), allocation of 1099511627776 bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
            api.allocate(0, 1 << 40)
        with pytest.raises(RunError, match="CUDA_ERROR_INVALID_VALUE: invalid argument"):
            api.copy(Allocation(cuda(), 4096, 64), host_memory(np.zeros(16, np.float32)), 64)

    def test_modules(self, api: DeviceAPI) -> None:
        spec = [ParamSpec("A", "float32", (8, 32)), ParamSpec("B", "float32", (8, 32), written=True)]
        launches = (Launch("scale", (0, 2), (4, 1, 1), (64, 1, 1)), Launch("reverse", (2, 1), (4, 1, 1), (64, 1, 1), 100 << 10))
        program = DeviceProgram("cuda", "sm_90", TOYS, (DeviceFunction("f", tuple(spec), (1024,), launches),))
        module = DeviceModule(program)
        a, b = np.arange(256, dtype=np.float32).reshape(8, 32), np.zeros((8, 32), np.float32)
        module["f"](a, b)
        assert np.array_equal(b.reshape(4, 64), 2 * a.reshape(4, 64)[:, ::-1])
        x, y = DeviceArray.from_numpy(cuda(), a), DeviceArray(cuda(), (8, 32), "float32")
        samples = module.time(x, y, name="f", repeats=3, min_ms=0.1, flush_bytes=10_000)
        assert len(samples.seconds) == 3 and samples.minimum > 0
        assert np.array_equal(y.numpy(), b)
        wrong = DeviceModule(DeviceProgram("cuda", "sm_100", b"other", program.functions))
        with pytest.raises(RunError, match=r"CUDA_ERROR_INVALID_IMAGE.*The code is for sm_100, and cuda\(0\) has compute capability 9.0"):
            wrong["f"](a, b)
        del module, x, y
        CUDA.release_workspaces()

    def test_zz_a_lost_device_is_recognised(self) -> None:
        """Runs last, because nothing runs in this process afterwards."""
        api = CudaDeviceAPI()
        code, block = api.load_code(0, TOYS), api.allocate(0, 64)
        array = DeviceArray(cuda(), (4,), "float32")
        api.launch(0, code, "fault", [], (1, 1, 1), (1, 1, 1))
        for call in (lambda: api.synchronise(0), lambda: api.free(block), lambda: api.unload_code(0, code), lambda: api.load_code(0, TOYS)):
            with pytest.raises(DeviceLost, match="CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access.*start a new process"):
                call()
        del array  # without an error
