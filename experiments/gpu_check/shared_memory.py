"""Measure the cycles that a 128-bit shared-memory load occupies a multiprocessor, by the address pattern of the warp.

One wavefront serves 128 bytes, so 32 lanes with distinct words take four cycles.  How lanes with equal words are merged determines the
cost of loading the fragments of a matrix product, and is not documented.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.gpu_probe import THREADS, Probe
from tunesmith.measure.device_lease import device_lease
from tunesmith.runtime.device.device import Device

PATTERNS = {
    "32 lanes apart": "lane",
    "all lanes the same": "0",
    "8 words, by lane / 4": "lane / 4",
    "8 words, by lane % 8": "lane % 8",
    "4 words, by lane / 8": "lane / 8",
    "4 words, by lane % 4": "lane % 4",
}
"""Index of the 16-byte vector that each lane reads."""

_LOADS = 32
_KERNEL = """
extern "C" __global__ void __launch_bounds__(256) lds_{number}(const int* rounds, float* out, long long* times) {{
  __shared__ __align__(16) float4 s[64 + {loads}];
  if (threadIdx.x < 64 + {loads}) s[threadIdx.x] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
  __syncthreads();
  const int lane = threadIdx.x % 32, n = rounds[0];
  const unsigned p = (unsigned)__cvta_generic_to_shared(s + ({pattern}));
  float x = 0.0f;
  long long c0, c1;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(c0) :: "memory");
  for (int r = 0; r < n; r++) {{
    {body}
  }}
  __syncthreads();
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(c1) :: "memory");
  out[blockIdx.x * 256 + threadIdx.x] = x;
  if (threadIdx.x == 0) times[blockIdx.x] = c1 - c0;
}}
"""
_LOAD = (
    '{{ float4 v; asm volatile("ld.volatile.shared.v4.f32 {{%0, %1, %2, %3}}, [%4+{offset}];" '
    ': "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(p)); x += v.x; }}'
)
_BLOCKS = 4
"""Blocks per multiprocessor, to overlap latencies."""


def source() -> str:
    """CUDA C source with one kernel per pattern."""
    body = "\n    ".join([_LOAD.format(offset=16 * i).replace("{{", "{").replace("}}", "}") for i in range(_LOADS)])
    return "".join([_KERNEL.format(number=i, loads=_LOADS, pattern=p, body=body) for i, p in enumerate(PATTERNS.values())])


def cycles_by_pattern(target: Target) -> dict[str, float]:
    """Cycles of a multiprocessor per warp instruction, for each of `PATTERNS`.

    Args:
        target: kind cuda, the first device.
    """
    device = Device("cuda")
    found = {}
    with device_lease(device), Probe(device, compile_cuda(source(), target.arch).cubin) as probe:
        blocks, rounds = _BLOCKS * target.num_cores, 400
        plan, out = probe.filled([rounds], np.int32), probe.memory(4 * THREADS * blocks)
        times = probe.filled([0] * blocks, np.int64)
        for i, name in enumerate(PATTERNS):
            start = partial(probe.launch, f"lds_{i}", [plan, out, times], blocks)
            start()
            seconds = min(probe.seconds(start)[0] for _ in range(5))
            # From the clock counters of the blocks, which run concurrently: the median of end minus start of each block.
            cycles = float(np.median(np.asarray(probe.read(times, np.int64), np.float64)))
            instructions = _BLOCKS * (THREADS // 32) * rounds * _LOADS
            found[name] = (cycles or seconds * target.clock_ghz * 1e9) / instructions
    return found
