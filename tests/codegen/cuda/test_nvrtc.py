from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tunesmith.codegen.cuda import nvrtc as cuda_nvrtc
from tunesmith.codegen.cuda.nvrtc import compile_cuda, disassemble, parse_resources
from tunesmith.runtime.device.program import KernelResources
from tunesmith.support.errors import BuildError, MissingExtraError
from tunesmith.testing.device_conformance import CUDA_KERNELS

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90'
ptxas info    : Function properties for spill
ptxas         .     432 bytes stack frame, 288 bytes spill stores, 192 bytes spill loads
ptxas info    : Function properties for inner
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 432 bytes cumulative stack size, 400 bytes smem
ptxas info    : Compiling entry function 'scale' for 'sm_90'
ptxas info    : Function properties for scale
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_resources_are_parsed_from_the_log() -> None:
    assert parse_resources(LOG) == {"spill": KernelResources(64, 480, 432, 400), "scale": KernelResources(10, 0, 0, 0)}
    assert parse_resources("") == {}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(MissingExtraError, match=r"compiling CUDA code needs the package `cuda-core`.*pip install 'tunesmith\[cuda\]'"):
        compile_cuda(CUDA_KERNELS, "sm_90")


@pytest.fixture
def nvrtc() -> None:
    try:
        compile_cuda("", "sm_90")
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nvrtc")
def test_compile() -> None:
    done = compile_cuda(CUDA_KERNELS, "sm_90")
    assert done.cubin.startswith(b"\x7fELF")
    assert set(done.resources) == {"scale", "reverse"}
    assert all(0 < r.registers < 64 and not r.spill_bytes and not r.stack_bytes for r in done.resources.values())
    assert "Compiling entry function 'scale' for 'sm_90'" in done.log
    assert compile_cuda(CUDA_KERNELS, "sm_90") == done
    assert compile_cuda(CUDA_KERNELS, "sm_80").cubin != done.cubin


@pytest.mark.usefixtures("nvrtc")
def test_resources_of_a_kernel() -> None:
    source = """
extern "C" __global__ void __launch_bounds__(1024, 2) f(const float* x, float* y, int n) {
  __shared__ float s[COUNT];
  float a[64];
  s[threadIdx.x] = x[0];
  __syncthreads();
  for (int i = 0; i < 64; i++) a[i] = x[i * 64 + threadIdx.x];
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 64; i++) a[i] = a[(i * 7 + k) % 64] * s[i];
  float t = 0;
  for (int i = 0; i < 64; i++) t += a[i];
  y[threadIdx.x] = t;
}
"""
    f = compile_cuda(source, "sm_90", ["-DCOUNT=100"]).resources["f"]
    assert f.registers <= 32 and f.shared_bytes == 400 and f.stack_bytes >= 256 and f.spill_bytes > 0


@pytest.mark.usefixtures("nvrtc")
def test_headers_in_packages_are_found() -> None:
    if not cuda_nvrtc._headers():
        pytest.skip("nvidia-cuda-runtime is not installed")
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void f(__half* x) { x[0] = __hadd(x[0], x[1]); }'
    assert "f" in compile_cuda(source, "sm_90").resources


@pytest.mark.usefixtures("nvrtc")
def test_errors_show_source_lines() -> None:
    with pytest.raises(
        BuildError, match=r'(?s)does not compile for sm_90.*identifier "missing" is undefined.*    3 \|   y\[0\] = missing;'
    ) as e:
        compile_cuda('extern "C" __global__\nvoid f(float* y) {\n  y[0] = missing;\n}', "sm_90")
    assert "2 |" not in str(e.value)
    with pytest.raises(BuildError, match="uses too much shared data"):
        compile_cuda('extern "C" __global__ void f(float* y) { __shared__ float s[99999]; s[threadIdx.x] = 1; y[0] = s[5]; }', "sm_90")
    with pytest.raises(BuildError, match="does not compile for sm_1 .*NVRTC_ERROR_INVALID_OPTION"):
        compile_cuda(CUDA_KERNELS, "sm_1")
    with pytest.raises(BuildError, match="compute_90 is a virtual architecture"):
        compile_cuda(CUDA_KERNELS, "compute_90")


@pytest.mark.usefixtures("nvrtc")
def test_disassemble() -> None:
    text = disassemble(compile_cuda(CUDA_KERNELS, "sm_90").cubin)
    if text is None:
        pytest.skip("nvdisasm is not installed")
    assert "BAR.SYNC" in text and "LDG" in text
    with pytest.raises(BuildError, match="cannot read these 8 bytes as a cubin"):
        disassemble(b"nonsense")


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_nvrtc, "_installed", lambda *_: [])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    cuda_nvrtc._disassembler.cache_clear()
    try:
        assert disassemble(b"") is None
    finally:
        cuda_nvrtc._disassembler.cache_clear()
