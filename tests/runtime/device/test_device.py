from __future__ import annotations

import subprocess
import sys

import pytest

from tunesmith.runtime.device.cpu import CPU
from tunesmith.runtime.device.device import DEVICES, Allocation, Device, DeviceLost, check_copy, cpu
from tunesmith.support.errors import RunError, UserError


def test_cpu_is_a_value() -> None:
    assert cpu() == cpu(0) == Device("cpu", 0)
    assert str(cpu(0)) == "cpu(0)"
    assert cpu(0).api is CPU


def test_registry_names_kinds_without_loading_them() -> None:
    assert {"cpu", "cuda", "opencl"} <= set(DEVICES.names())
    with pytest.raises(UserError, match="unknown device 'cpp'. Did you mean 'cpu'"):
        _ = Device("cpp").api


@pytest.mark.parametrize(
    ("nbytes", "source", "target", "what"), [(8, 9, 0, "source"), (8, 0, 25, "target"), (-1, 0, 0, "source"), (4, -4, 0, "source")]
)
def test_copies_do_not_exceed_allocations(nbytes: int, source: int, target: int, what: str) -> None:
    small, large = Allocation(cpu(), 4096, 16), Allocation(cpu(), 8192, 32)
    check_copy(small, large, 16, 0, 16)
    with pytest.raises(RunError, match=f"cannot copy {nbytes} bytes at offset .* of the {what}"):
        check_copy(small, large, nbytes, source, target)


def test_a_lost_device_is_a_run_error() -> None:
    assert issubclass(DeviceLost, RunError)


def test_importing_devices_imports_no_driver() -> None:
    drivers = ["pyopencl", "pycuda", "torch", "tunesmith.runtime.device.opencl", "tunesmith.runtime.device.cuda"]
    program = f"import sys, tunesmith.runtime.device.module; print([n for n in {drivers} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
