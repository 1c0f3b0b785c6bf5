"""Calibrate the CPU: measure peak arithmetic, bandwidth per memory level and fork-join overhead, and cache the results.

The rates are upper bounds for tuned code, so each is the best of many short runs: other processes can only slow a run down.  They are facts
of a `Target`, not part of its identity: recalibration changes no database key.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np

from tunesmith.codegen.llvm.host import check_runs_here
from tunesmith.codegen.llvm.probe import OUT_BYTES, ProbeKernels, load_probe
from tunesmith.ir.target.attributes import canonical_rates
from tunesmith.ir.target.detect import detect_host
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cache import RateCache
from tunesmith.measure.calibration.worker import measure_in_worker, print_progress
from tunesmith.runtime.threads import pin_threads
from tunesmith.support.errors import RecordError, TargetError, UserError

PROBE_VERSION = 3
"""Version of the probes; incremented when they change, to invalidate cached rates."""

_CHUNK_S = 0.004
_LEAST_RATE = 5e9
"""Operations or bytes per second of one thread, from which the minimum work of a chunk follows."""
_BUDGET_S = 0.12
_FORK_JOINS = 200
_PAGE = 4096
_DRAM_BYTES = (128 << 20, 256 << 20)


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Measured rates, named like the target's attributes.

    Attributes:
        peak_gflops_core, peak_gflops: float32 multiply-adds on the widest vectors, on one core and on all cores, GFLOP/s.
        l2_gbs_core, l2_gbs: reading data of half the L2 cache per core, GB/s.
        l3_gbs_core, l3_gbs: reading data that fits the L3 but not the L2, GB/s; memory bandwidth if there is no L3.
        dram_gbs_core, dram_gbs: reading more than the caches hold, GB/s (at most 256 MB; a larger L3 serves a part of it).
        fork_join_us: an empty parallel region on all cores with awake threads, microseconds.
        tensor_rates: dot-product instructions on the widest vectors, on one core, giga-operations a second, in the target's spelling.
    """

    peak_gflops_core: float
    peak_gflops: float
    l2_gbs_core: float
    l2_gbs: float
    l3_gbs_core: float
    l3_gbs: float
    dram_gbs_core: float
    dram_gbs: float
    fork_join_us: float
    tensor_rates: str = ""

    def to_json(self) -> dict[str, float | str]:
        """The rates as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> MachineRates:
        """Parse the output of `to_json`.

        Raises:
            RecordError: a rate is missing, unknown, or not a positive number.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping) or set(data) != set(names):
            raise RecordError(
                f"machine rates need exactly {', '.join(names)}; got {data!r}. Measure again with machine_rates(refresh=True)"
            )
        names.remove("tensor_rates")
        bad = [name for name in names if isinstance(data[name], bool) or not isinstance(data[name], int | float)]
        bad = bad or [name for name in names if not 0 < data[name] < math.inf]
        if bad:
            raise RecordError(
                f"machine rates: {bad[0]} is {data[bad[0]]!r}, not a positive number. Measure again with machine_rates(refresh=True)"
            )
        try:
            tensor_rates = canonical_rates(str(data["tensor_rates"]))
        except TargetError as error:
            raise RecordError(f"machine rates: tensor_rates: {error}. Measure again with machine_rates(refresh=True)") from error
        return cls(**{name: float(data[name]) for name in names}, tensor_rates=tensor_rates)


def machine_rates(target: Target | None = None, *, refresh: bool = False, progress: Callable[[str], None] | None = None) -> MachineRates:
    """The rates of this machine, measured on the first call (about 2 s, in a separate process) and cached.

    The cache is in `$XDG_CACHE_HOME/tunesmith` (`~/.cache/tunesmith`), one file per processor, target and probe version.

    Args:
        target: an `llvm` or `c` target of this machine; determines vector width and number of threads.  Default: `Target.detect()`.
        refresh: measure even if cached rates exist.
        progress: receives a message if measuring takes longer than a second; default: one line on standard error.

    Raises:
        UserError: the target is a GPU.
        BuildError: the target's code cannot run here.
        RunError: the probes failed.
    """
    target = _checked(target)
    cache = _cache(target)
    cached = None if refresh else cache.load()
    if cached is not None:
        return cached
    rates = _measure_in_worker(target, progress or print_progress)
    cache.store(rates, {"cpu": detect_host().model_name, "target": target.to_json(), "probe_version": PROBE_VERSION})
    return rates


def calibrated(target: Target | None = None) -> Target:
    """`target` (default: this machine) with measured rates instead of estimates.  Its identity and database key do not change."""
    target = _checked(target)
    return target.with_attributes(**machine_rates(target).to_json())


def measure_rates(target: Target) -> MachineRates:
    """Measure in this process, which should be idle and have pinned threads (`machine_rates` ensures both)."""
    kernels = load_probe(target)
    cores = target.num_cores
    out, data = _buffer(cores * OUT_BYTES), _buffer(_data_bytes(target))
    kernels.fill(_address(data), _whole(data.nbytes // cores), _address(out), cores)

    def peak(threads: int) -> float:
        return _best_rate(lambda rounds: kernels.multiply_add(rounds, _address(out), threads), kernels.flops_per_round * threads)

    def dot_product(name: str) -> float:
        return _best_rate(lambda rounds: kernels.dot_product(name, rounds, _address(out), 1), kernels.dot_operations[name])

    def read(nbytes: int, threads: int) -> float:
        return _best_rate(lambda rounds: kernels.read(_address(data), nbytes, rounds, _address(out), threads), nbytes * threads)

    l2, l3 = _working_sets(target)
    return MachineRates(
        peak_gflops_core=peak(1),
        peak_gflops=peak(cores),
        l2_gbs_core=read(l2, 1),
        l2_gbs=read(l2, cores),
        l3_gbs_core=read(l3, 1) if target.l3_bytes else read(_whole(data.nbytes), 1),
        l3_gbs=read(l3, cores) if target.l3_bytes else read(_whole(data.nbytes // cores), cores),
        dram_gbs_core=read(_whole(data.nbytes), 1),
        dram_gbs=read(_whole(data.nbytes // cores), cores),
        fork_join_us=_fork_join_us(kernels, cores),
        tensor_rates=canonical_rates(",".join([f"{name}={dot_product(name):.1f}" for name in kernels.dot_operations])),
    )


def probe_worker() -> Callable[[dict[str, object]], dict[str, float | str]]:
    """The job of the measuring process: maps a target as JSON to its rates as JSON."""
    return lambda target: measure_rates(Target.from_json(target)).to_json()


def _checked(target: Target | None) -> Target:
    target = target or Target.detect()
    if not target.is_cpu:
        raise UserError(f"machine rates are measured for CPUs, but {target} is not one. Pass a target of kind llvm or c")
    check_runs_here(target)
    return target


def _best_rate(run: Callable[[int], None], work: int) -> float:
    """Work per nanosecond (GFLOP/s, GB/s) of the fastest of many chunks; `work` is the work of one round."""
    # On a busy machine most of a chunk is waiting for threads; without a minimum, chunks of the target length would shrink to no work.
    least = max(1, int(_CHUNK_S * _LEAST_RATE / work))
    rounds, best, chunks = least, 0.0, 0
    deadline = time.perf_counter() + _BUDGET_S
    # The first chunk includes waking threads and raising clocks, so at least two are run.
    while chunks < 2 or time.perf_counter() < deadline:
        before = time.perf_counter()
        run(rounds)
        seconds = time.perf_counter() - before
        best = max(best, work * rounds / seconds * 1e-9)
        rounds = max(least, int(rounds * min(100.0, max(0.01, _CHUNK_S / seconds))))
        chunks += 1
    return best


def _fork_join_us(kernels: ProbeKernels, threads: int) -> float:
    samples: list[float] = []
    deadline = time.perf_counter() + _BUDGET_S
    while not samples or time.perf_counter() < deadline:
        before = time.perf_counter()
        kernels.fork_join(_FORK_JOINS, threads)
        samples.append((time.perf_counter() - before) / _FORK_JOINS * 1e6)
    return statistics.median(samples)


def _working_sets(target: Target) -> tuple[int, int]:
    """Working sets in bytes per core for measuring the L2 and the L3."""
    l2 = max(target.l2_bytes // 2, min(2 * target.l1_bytes, target.l2_bytes))
    l3 = max(2 * target.l2_bytes, min(target.l3_bytes // (2 * target.num_cores), 8 * target.l2_bytes))
    return _whole(l2), _whole(l3)


def _data_bytes(target: Target) -> int:
    """Buffer size: more than the caches if memory allows, and at least the L3 working set of every core."""
    least, most = _DRAM_BYTES
    caches = target.l3_bytes + target.num_cores * target.l2_bytes
    return max(min(max(4 * caches, least), most, _free_memory() // 4), target.num_cores * max(_working_sets(target)))


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * _DRAM_BYTES[1]


def _whole(nbytes: int) -> int:
    return max(_PAGE, nbytes // _PAGE * _PAGE)


def _buffer(nbytes: int) -> np.ndarray:
    """Uninitialised page-aligned bytes."""
    raw = np.empty(_whole(nbytes) + 2 * _PAGE, np.uint8)
    skip = -raw.ctypes.data % _PAGE
    return raw[skip : skip + _whole(nbytes)]


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def _measure_in_worker(target: Target, progress: Callable[[str], None]) -> MachineRates:
    """Measure in a fresh process with pinned threads."""
    factory, cores = f"{__name__}:{probe_worker.__name__}", target.num_cores
    doing = f"calibrating this machine on {cores} threads"
    return MachineRates.from_json(measure_in_worker(factory, target, "this machine", progress, doing=doing, env=pin_threads(cores)))


def _cache(target: Target) -> RateCache[MachineRates]:
    return RateCache("machine-rates", [detect_host().model_name, target.key, PROBE_VERSION], MachineRates.from_json)
