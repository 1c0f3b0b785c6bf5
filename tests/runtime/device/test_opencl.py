from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.device import Device, opencl
from tunesmith.runtime.device.opencl import OPENCL, OpenClDriver, find_runtime
from tunesmith.support.errors import RunError
from tunesmith.testing.device_conformance import OPENCL_KERNELS, DeviceConformance, Make, filled

needs_device = pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")


@needs_device
class TestOpenCl(DeviceConformance):
    @pytest.fixture
    def make(self) -> Make:
        return lambda: OPENCL

    @pytest.fixture
    def code(self) -> bytes:
        return OPENCL_KERNELS.encode()


def test_it_is_a_value() -> None:
    assert opencl() == Device("opencl", 0) and opencl(1).index == 1
    assert opencl().api is OPENCL


@needs_device
def test_attributes() -> None:
    facts = OPENCL.attributes(0)
    assert facts.compute_version is not None and facts.compute_version[0].isdigit() and facts.compute_version[1] == "."
    assert facts.max_threads_per_block is not None and facts.max_threads_per_block >= 64
    assert facts.max_thread_dimensions is not None and len(facts.max_thread_dimensions) == 3
    assert facts.max_shared_memory_per_block is not None and facts.max_shared_memory_per_block >= 16 << 10


@needs_device
def test_compiler_output_is_reported() -> None:
    with pytest.raises(RunError, match=r"(?s)BUILD_PROGRAM_FAILURE: the program does not build.*undeclared identifier 'missing'"):
        OPENCL.load_code(0, b"__kernel void f(__global float* x) { x[0] = missing; }")
    # Warnings of the compiler are not passed on; these tests would turn them into errors.
    OPENCL.unload_code(0, OPENCL.load_code(0, b"__kernel void f(__global float* x) { int unused; int y; x[0] = y; }", "-Werror -w"))


@needs_device
def test_options_reach_the_compiler() -> None:
    code = OPENCL.load_code(0, b"__kernel void f(__global int* x) { x[0] = VALUE; }", "-DVALUE=42")
    block = filled(OPENCL, np.zeros(1, np.int32))
    OPENCL.launch(0, code, "f", [block], (1, 1, 1), (1, 1, 1))
    found = np.zeros(1, np.int32)
    OPENCL.copy(block, host_memory(found), 4)
    assert found[0] == 42
    OPENCL.free(block)
    OPENCL.unload_code(0, code)


@needs_device
def test_arguments_are_counted() -> None:
    code, block = OPENCL.load_code(0, OPENCL_KERNELS.encode()), OPENCL.allocate(0, 1024)
    with pytest.raises(RunError, match="it takes 3 arguments, and 2 are given"):
        OPENCL.launch(0, code, "reverse", [block, block], (1, 1, 1), (4, 1, 1))
    with pytest.raises(RunError, match=r"the code has no kernel 'revert'. It has: reverse, scale"):
        OPENCL.launch(0, code, "revert", [block, block], (1, 1, 1), (4, 1, 1))
    OPENCL.free(block)
    with pytest.raises(RunError, match="is not memory of a device, or was freed before"):
        OPENCL.launch(0, code, "scale", [block, block], (1, 1, 1), (4, 1, 1))
    OPENCL.unload_code(0, code)


@needs_device
def test_copies_within_an_allocation() -> None:
    block = filled(OPENCL, np.arange(8, dtype=np.float32))
    OPENCL.copy(block, block, 16, source_offset=0, target_offset=16)
    with pytest.raises(RunError, match="the ranges overlap"):
        OPENCL.copy(block, block, 16, source_offset=0, target_offset=8)
    found = np.zeros(8, np.float32)
    OPENCL.copy(block, host_memory(found), 32)
    assert found.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    OPENCL.free(block)


@needs_device
def test_foreign_streams() -> None:
    cl: Any = pytest.importorskip("pyopencl")
    context = OPENCL.driver.default_stream(0).context  # type: ignore[attr-defined]
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    stream = OPENCL.foreign_stream(0, queue.int_ptr)
    assert OPENCL.foreign_stream(0, queue.int_ptr) == stream
    OPENCL.synchronise(0, stream)
    OPENCL.free_stream(0, stream)
    queue.finish()  # a foreign stream is not destroyed
    untimed = cl.CommandQueue(context)
    with pytest.raises(RunError, match="created without profiling"):
        OPENCL.foreign_stream(0, untimed.int_ptr)


def test_gpus_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Types:
        CPU, GPU = 2, 4

    class Named:
        def __init__(self, name: str, kind: int) -> None:
            self.name, self.type = name, kind

    class Platform:
        def __init__(self, *devices: Named) -> None:
            self.devices = devices

        def get_devices(self) -> tuple[Named, ...]:
            return self.devices

    class Library:
        device_type, Error = Types, RuntimeError

        @staticmethod
        def get_platforms() -> list[Platform]:
            mixed = Platform(Named("gpu a", 4), Named("cpu b", 2))
            return [Platform(Named("cpu a", 2), Named("other", 8)), mixed, Platform(Named("gpu b", 4))]

    monkeypatch.setattr("tunesmith.runtime.device.opencl.import_opencl", lambda: Library)
    assert [d.name for d in OpenClDriver()._devices] == ["gpu a", "gpu b", "cpu a", "cpu b", "other"]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    driver = OpenClDriver()
    assert driver.count() == 0
    assert "pip install 'tunesmith[opencl]'" in driver.missing()


@pytest.mark.skipif(find_runtime() is None, reason="Intel's runtime is not installed")
def test_the_installed_runtime_is_found_without_the_system(tmp_path: Path) -> None:
    """In a separate process, because the loader searches once.  The environment variable takes precedence, here with no runtime."""
    assert importlib.util.find_spec("pyopencl") is not None
    program = (
        "import os; from tunesmith.runtime.device.opencl import OPENCL; "
        "print(OPENCL.count(), OPENCL.count() and OPENCL.attributes(0).name, 'OCL_ICD_VENDORS' in os.environ)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OCL_ICD_VENDORS"}

    def run(**more: str) -> str:
        done = subprocess.run([sys.executable, "-c", program], env=environment | more, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run().startswith("1 ") and run().endswith("False")
    assert run(OCL_ICD_VENDORS=str(tmp_path)) == "0 0 True"
