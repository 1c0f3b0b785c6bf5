"""Run handwritten CUDA C and OpenCL C kernels that exercise one device resource each, and time them with device events.

The kernels: multiply-adds in registers, a copy, repeated reads of a small buffer, an empty kernel.  They read the number of rounds from
memory, so that one compiled program serves short and long runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.runtime.device.cpu import host_memory
from tunesmith.runtime.device.device import Allocation, Device
from tunesmith.support.errors import BuildError

THREADS = 256
"""Threads per block, in all kernels."""
FMAS = 12 * 16
"""Multiply-adds per thread and round: accumulators (limited to the registers of small processors) times unrolled steps."""
CHUNK = 4 * THREADS * 16
"""Bytes that a block copies, or reads in one round: four 16-byte vectors in flight per thread."""

_CUDA = """
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define GLOBAL
#define RESTRICT __restrict__
#define THREAD threadIdx.x
#define BLOCK blockIdx.x
#define FMA fmaf
#define PLUS(a, b) make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w)
#define VECTOR(x) make_float4(x, x, x, x)
/* Not through the first level, which holds what the blocks of a multiprocessor read before. */
__device__ inline float4 load(const float4* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}
#define LOAD(p) load(p)
/* Cycles of the multiprocessor, and nanoseconds. */
#define MARK(k) if (threadIdx.x == 0 && blockIdx.x == 0) { \\
  long long c, t; \\
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(c) :: "memory"); \\
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory"); \\
  times[2 * k] = c; times[2 * k + 1] = t; }
"""

_OPENCL = """
#define KERNEL __kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
#define GLOBAL __global
#define RESTRICT restrict
#define THREAD get_local_id(0)
#define BLOCK get_group_id(0)
#define FMA fma
#define PLUS(a, b) (a + b)
#define VECTOR(x) ((float4)(x))
#define LOAD(p) (*(p))
#define MARK(k)
"""

_KERNELS = """
#define STEP(a) a = FMA(a, b, c);
#define STEPS STEP(a0) STEP(a1) STEP(a2) STEP(a3) STEP(a4) STEP(a5) STEP(a6) STEP(a7) STEP(a8) STEP(a9) STEP(a10) STEP(a11)
#define FOUR STEPS STEPS STEPS STEPS

KERNEL multiply_add(GLOBAL const int* RESTRICT rounds, GLOBAL const float* RESTRICT numbers, GLOBAL float* RESTRICT out,
                    GLOBAL long* RESTRICT times) {
  const int n = rounds[0];
  const float b = numbers[0], c = numbers[1];
  float a0 = 1.0f, a1 = 1.1f, a2 = 1.2f, a3 = 1.3f, a4 = 1.4f, a5 = 1.5f, a6 = 1.6f, a7 = 1.7f, a8 = 1.8f, a9 = 1.9f, a10 = 2.0f;
  float a11 = (float)(int)THREAD;
  MARK(0)
  for (int r = 0; r < n; r++) { FOUR FOUR FOUR FOUR }
  MARK(1)
  out[BLOCK * 256 + THREAD] = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
}

KERNEL copy(GLOBAL const float4* RESTRICT x, GLOBAL float4* RESTRICT y) {
  const int i = BLOCK * 1024 + THREAD;
  const float4 a = x[i], b = x[i + 256], c = x[i + 512], d = x[i + 768];
  y[i] = a; y[i + 256] = b; y[i + 512] = c; y[i + 768] = d;
}

/* plan: rounds, chunks of the buffer, chunks to go on by after a round. */
KERNEL reread(GLOBAL const int* RESTRICT plan, GLOBAL const float4* RESTRICT x, GLOBAL float* RESTRICT out) {
  const int rounds = plan[0], chunks = plan[1], on = plan[2];
  float4 s0 = VECTOR(0.0f), s1 = VECTOR(0.0f), s2 = VECTOR(0.0f), s3 = VECTOR(0.0f);
  int chunk = BLOCK % chunks;
  for (int r = 0; r < rounds; r++) {
    GLOBAL const float4* p = x + chunk * 1024 + THREAD;
    const float4 a = LOAD(p), b = LOAD(p + 256), c = LOAD(p + 512), d = LOAD(p + 768);
    s0 = PLUS(s0, a); s1 = PLUS(s1, b); s2 = PLUS(s2, c); s3 = PLUS(s3, d);
    chunk += on;
    if (chunk >= chunks) chunk -= chunks;
  }
  const float4 s = PLUS(PLUS(s0, s1), PLUS(s2, s3));
  out[BLOCK * 256 + THREAD] = s.x + s.y + s.z + s.w;
}

KERNEL nothing(GLOBAL int* RESTRICT x) {}
"""


def source(kind: str) -> str:
    """Source of the kernels for a device kind, `cuda` or `opencl`."""
    # The size of `long` in CUDA C depends on the host system.
    return _CUDA + _KERNELS.replace("long*", "long long*") if kind == "cuda" else _OPENCL + _KERNELS


def compiled(kind: str, arch: str) -> bytes:
    """The kernels in the form that `DeviceAPI.load_code` takes.

    Raises:
        BuildError: the device kind has no kernels, or compilation fails.
    """
    if kind not in ("cuda", "opencl"):
        raise BuildError(f"devices of kind {kind} cannot be calibrated: there are kernels for cuda and opencl only")
    return compile_cuda(source(kind), arch).cubin if kind == "cuda" else source(kind).encode()


class Probe:
    """Kernels on a device, and memory for them; everything is released on exit.

    Args:
        device: the device.
        code: the kernels, in the form that `load_code` takes.
    """

    def __init__(self, device: Device, code: bytes) -> None:
        self.device = device
        self._api = device.api
        self._code = self._api.load_code(device.index, code)
        self._events = [self._api.create_event(device.index) for _ in range(2)]
        self._memory: list[Allocation] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free()
        for event in self._events:
            self._api.free_event(self.device.index, event)
        self._api.unload_code(self.device.index, self._code)

    def memory(self, nbytes: int) -> Allocation:
        """Uninitialised memory.  Raises RunError if it is exhausted."""
        self._memory.append(self._api.allocate(self.device.index, nbytes, 128))
        return self._memory[-1]

    def filled(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> Allocation:
        """Memory initialised with values."""
        host = np.ascontiguousarray(values, dtype)
        memory = self.memory(host.nbytes)
        self.fill(memory, host)
        return memory

    def fill(self, memory: Allocation, host: npt.NDArray[np.generic]) -> None:
        """Copy an array to the beginning of memory."""
        self._api.copy(host_memory(host), memory, host.nbytes)
        self._api.synchronise(self.device.index)

    def read(self, memory: Allocation, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """The contents of memory as an array."""
        host = np.empty(memory.nbytes // np.dtype(dtype).itemsize, dtype)
        self._api.copy(memory, host_memory(host), host.nbytes)
        self._api.synchronise(self.device.index)
        return host

    def free(self) -> None:
        """Release all memory."""
        while self._memory:
            self._api.free(self._memory.pop())

    def launch(self, kernel: str, arguments: Sequence[Allocation], blocks: int) -> None:
        """Launch a kernel."""
        self._api.launch(self.device.index, self._code, kernel, arguments, (blocks, 1, 1), (THREADS, 1, 1))

    def seconds(self, work: Callable[[], object], before: Callable[[], object] | None = None) -> tuple[float, float]:
        """Device seconds of `work` by its events, and host seconds to launch it.

        Args:
            work: launches kernels.
            before: run untimed; while it keeps the device busy, `work` is enqueued without the device waiting for the host.
        """
        api, index = self._api, self.device.index
        if before is not None:
            before()
        begun = time.perf_counter()
        api.record_event(index, self._events[0])
        work()
        api.record_event(index, self._events[1])
        started = time.perf_counter() - begun
        return api.elapsed(index, *self._events), started
