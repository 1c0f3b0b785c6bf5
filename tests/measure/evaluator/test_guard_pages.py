from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tvm_ffi

from tunesmith.measure.evaluator import guard_pages
from tunesmith.measure.evaluator.guard_pages import ALIGNMENT, GuardedArray, round_to
from tunesmith.support.errors import RunError


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (64, 64)])
def test_values_round_trip_and_the_start_is_aligned(dtype: str, shape: tuple[int, ...]) -> None:
    array = GuardedArray(dtype, shape)
    values = round_to(dtype, np.arange(math.prod(shape)).reshape(shape) % 2)
    array.store(values)
    np.testing.assert_array_equal(array.load(), values)
    assert array.load().dtype == values.dtype
    assert array.data.shape == shape and array.data.ctypes.data % ALIGNMENT == 0
    assert not array.damaged()
    tensor = tvm_ffi.from_dlpack(array.argument())
    assert str(tensor.dtype) == dtype and tuple(tensor.shape) == shape


@pytest.mark.parametrize("offset", [-1, 240])
def test_write_beside_the_array_is_reported_once(offset: int) -> None:
    array = GuardedArray("float32", (60,))
    array.store(np.ones(60, np.float32))
    ctypes.memset(array.data.ctypes.data + offset, 0, 1)
    assert array.damaged()
    assert not array.damaged()
    np.testing.assert_array_equal(array.data, 1)


FENCE = guard_pages._FENCE


@pytest.mark.parametrize("where", [256, 256 + FENCE - 1, 256 - 4096 - 1, 256 - 4096 - FENCE])
def test_write_far_outside_is_a_segmentation_fault(where: int) -> None:
    assert dies(f"a = GuardedArray('float32', (64,)); ctypes.memset(a.data.ctypes.data + {where}, 0, 1)")


def test_write_to_a_sealed_array_is_a_segmentation_fault() -> None:
    assert dies("a = GuardedArray('float32', (64,)); a.seal(); print(a.data.sum(), a.damaged(), flush=True); a.data[3] = 1", "0.0 False")


def dies(code: str, prints: str = "") -> bool:
    code = f"import ctypes\nfrom tunesmith.measure.evaluator.guard_pages import GuardedArray\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True)
    assert done.stdout.decode().strip() == prints, done.stderr
    return done.returncode == -signal.SIGSEGV


def test_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -np.inf, np.nan, 3.4e38], np.float32)
    np.testing.assert_array_equal(round_to("bfloat16", values), np.array([1.0, 1.0, 1.015625, -np.inf, np.nan, np.inf], np.float32))


def test_too_large_allocation_is_rejected() -> None:
    with pytest.raises(RunError, match=r"cannot allocate 4611686018427387904 bytes for float32\[1152921504606846976\]: "):
        GuardedArray("float32", (1 << 60,))


def test_large_arrays_have_huge_pages_like_those_of_numpy() -> None:
    array = GuardedArray("float32", (3, 1 << 20))
    array.store(np.float32(1))
    assert array.load().sum() == 3 << 20
