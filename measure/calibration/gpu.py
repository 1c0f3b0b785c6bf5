"""Calibrate a GPU: measure multiply-add rate, memory and L2 bandwidth, launch overhead and clock, and cache the results.

As in `measure.calibration.cpu`, the rates are upper bounds for tuned code, each the best of many short runs, and facts of a `Target`, not
part of its identity: recalibration changes no database key.  A rate that cannot be measured or is implausible is omitted with a note, and
the target's estimate remains in use.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial

import numpy as np

from tunesmith.codegen.device.host import check_device
from tunesmith.ir.target.gpus import OPENCL_FLOOR
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cache import RateCache
from tunesmith.measure.calibration.gpu_probe import CHUNK, FMAS, THREADS, Probe, compiled
from tunesmith.measure.calibration.worker import measure_in_worker, print_progress
from tunesmith.measure.device_lease import device_lease
from tunesmith.runtime.device.device import Allocation, Device, DeviceAttributes, DeviceLost
from tunesmith.support.errors import RecordError, RunError, TunesmithError, UserError

PROBE_VERSION = 1
"""Version of the probes; incremented when they change, to invalidate cached rates."""

RATES = ("peak_gflops", "dram_gbs", "l2_gbs", "launch_us", "clock_ghz")
"""The measured rates, named like the target's attributes."""
NONSENSE = 20.0
"""Multiple of the estimate above which a rate is rejected as implausible."""
_UNKNOWN_CARD = 1000.0
"""The same limit for unknown devices, whose estimate is only a lower bound."""

_BLOCKS = 8
"""Blocks per multiprocessor: 2048 threads, the most that one holds."""
_CHUNK_S = 0.004
_BUDGET_S = 0.15
_COPY_BYTES = (64 << 20, 256 << 20, 1024 << 20)
_SHARE = 64
"""A copied buffer takes at most the fraction 1 / _SHARE of the device's memory."""
_LAUNCHES = 300
"""Consecutive launches; drivers accept about a thousand before they block."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Measured rates; the first five are named like the target's attributes and are None if unavailable.

    Attributes:
        peak_gflops: float32 multiply-adds in registers on all multiprocessors, GFLOP/s.
        dram_gbs: copying within the device's memory, bytes read plus bytes written, GB/s: the best over sizes of at least four times the
            L2 cache.
        l2_gbs: reading a buffer of half the L2 cache repeatedly, bypassing the caches of the multiprocessors, GB/s.
        launch_us: time per kernel of consecutive empty kernels that were enqueued while another kernel ran, microseconds: the device's
            launch overhead, without that of the host.
        clock_ghz: clock cycles per nanosecond of a multiprocessor during multiply-adds; without a cycle counter, the clock reported by the
            driver.
        copies: (bytes, GB/s) of each copied size.
        notes: omitted rates, with reasons.
    """

    peak_gflops: float | None = None
    dram_gbs: float | None = None
    l2_gbs: float | None = None
    launch_us: float | None = None
    clock_ghz: float | None = None
    copies: tuple[tuple[int, float], ...] = ()
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, float]:
        """The available rates by attribute name of the target."""
        return {name: value for name in RATES if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, object]:
        """The rates as plain data."""
        return {**asdict(self), "copies": [list(c) for c in self.copies], "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: object) -> DeviceRates:
        """Parse the output of `to_json`.

        Raises:
            RecordError: a rate is missing, unknown, or not a positive number.
        """
        names = [f.name for f in fields(cls)]
        again = "Measure again with device_rates(refresh=True)"
        if not isinstance(data, Mapping) or set(data) != set(names):
            raise RecordError(f"device rates need exactly {', '.join(names)}; got {data!r}. {again}")
        for name in RATES:
            value = data[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf):
                raise RecordError(f"device rates: {name} is {value!r}, neither a positive number nor null. {again}")
        try:
            copies = tuple([(int(n), float(rate)) for n, rate in data["copies"]])
            notes = tuple([str(note) for note in data["notes"]])
        except (TypeError, ValueError):
            raise RecordError(f"device rates: copies must be pairs of numbers and notes texts, got {data!r}. {again}") from None
        return cls(**{name: None if data[name] is None else float(data[name]) for name in RATES}, copies=copies, notes=notes)


def device_rates(target: Target, *, refresh: bool = False, progress: Callable[[str], None] | None = None) -> DeviceRates:
    """The rates of the first device of the target's kind, measured on the first call (a few seconds, in a separate process) and cached.

    The cache is in `$XDG_CACHE_HOME/tunesmith` (`~/.cache/tunesmith`), one file per device, driver and probe version.

    Args:
        target: a `cuda` or `opencl` target that describes this device.
        refresh: measure even if cached rates exist.
        progress: receives a message if measuring takes longer than a second, and the notes; default: lines on standard error.
    Raises:
        UserError: the target is a CPU.
        BuildError: the target's code cannot run here.
        RunError: the measuring process failed.
    """
    facts = _checked(target)
    cache = _cache(target, facts)
    cached = None if refresh else cache.load()
    if cached is not None:
        return cached
    report = progress or print_progress
    rates = _measure_in_worker(target, report)
    for note in rates.notes:
        report(f"rates of the {target.kind} device: {note}")
    origin = {"device": facts.name, "driver": facts.driver_version, "target": target.to_json(), "probe_version": PROBE_VERSION}
    cache.store(rates, origin)
    return rates


def calibrated_device(target: Target, progress: Callable[[str], None] | None = None) -> Target:
    """The target with measured rates instead of estimates.  Its identity and database key do not change.

    If the rates cannot be measured, the estimates are kept, and `progress` receives a message.

    Raises:
        UserError, BuildError: as `device_rates`.
    """
    _checked(target)
    try:
        return target.with_attributes(**device_rates(target, progress=progress).facts())
    except RunError as error:
        (progress or print_progress)(f"{error}. The estimates of {target} are kept")
        return target


def measure_device(target: Target, code: bytes | None = None) -> DeviceRates:
    """Measure in this process, on a device that no other process uses (`device_rates` ensures this).

    Args:
        target: determines the device kind, architecture, L2 size and estimates.
        code: the compiled kernels, if available.
    """
    device = Device(target.base)
    facts = device.api.attributes(device.index)
    found: dict[str, float] = {}
    notes: list[str] = []
    copies: list[tuple[int, float]] = []
    with Probe(device, code or compiled(target.base, target.arch)) as probe:
        steps: dict[str, Callable[[], float | None]] = {
            "peak_gflops": partial(_peak, probe, target),
            "dram_gbs": partial(_copy, probe, target, facts, copies),
            "l2_gbs": partial(_reread, probe, target),
            "launch_us": partial(_launch, probe, target),
            "clock_ghz": partial(_clock, probe, target, facts),
        }
        for name, step in steps.items():
            try:
                value = step()
            except DeviceLost as error:
                notes.append(f"{name} and the rates after it are not measured: {error}")
                break
            except TunesmithError as error:
                notes.append(f"{name} is not measured: {error}")
                continue
            finally:
                with contextlib.suppress(RunError):  # a lost device is already noted
                    probe.free()
            note = _doubt(name, value, target)
            if note:
                notes.append(note)
            elif value is not None:
                found[name] = value
    return DeviceRates(**found, copies=tuple(copies), notes=tuple(notes))


def probe_worker() -> Callable[[dict[str, object]], dict[str, object]]:
    """The job of the measuring process: maps a target as JSON to its rates as JSON."""
    return lambda target: measure_device(Target.from_json(target)).to_json()


def _checked(target: Target) -> DeviceAttributes:
    """Check that the target's device is present, and return its attributes."""
    if target.is_cpu:
        raise UserError(f"device rates are measured for GPUs and other devices, but {target} is a CPU. Use machine_rates for CPUs")
    check_device(target)
    return Device(target.base).api.attributes(0)


def _doubt(name: str, value: float | None, target: Target) -> str:
    """Reason to reject a rate; empty if it is plausible or missing."""
    if value is None:
        return ""
    if not 0 < value < math.inf:
        return f"{name} is omitted: {value} is not a rate"
    estimate = float(getattr(target, name))
    factor = _UNKNOWN_CARD if target.base == "opencl" and estimate == OPENCL_FLOOR.get(name) else NONSENSE
    if value > factor * estimate:
        return f"{name} is omitted: {value:.4g} is more than {factor:.0f} times the estimate, {estimate:.4g}"
    return ""


def _multiply_add(probe: Probe, target: Target) -> tuple[Callable[[int], None], Allocation]:
    """(Launch of `number` rounds on all multiprocessors, memory that receives the times).  Each step x / 2 + 1 / 2 stays finite."""
    blocks = _BLOCKS * target.num_cores
    rounds, numbers = probe.filled([0], np.int32), probe.filled([0.5, 0.5], np.float32)
    out, times = probe.memory(4 * THREADS * blocks), probe.filled([0] * 4, np.int64)
    held = 0

    def start(number: int) -> None:
        nonlocal held
        if number != held:
            probe.fill(rounds, np.array([number], np.int32))
            held = number
        probe.launch("multiply_add", [rounds, numbers, out, times], blocks)

    return start, times


def _peak(probe: Probe, target: Target) -> float:
    start, _ = _multiply_add(probe, target)
    return _best_rate(probe, start, 2 * FMAS * THREADS * _BLOCKS * target.num_cores)


def _clock(probe: Probe, target: Target, facts: DeviceAttributes) -> float | None:
    """Clock from the counters of a multiprocessor after 4 ms of multiply-adds; without counters, from the driver."""
    if target.base == "cuda":
        start, times = _multiply_add(probe, target)
        rounds = 1000
        while True:
            taken, _ = probe.seconds(partial(start, rounds))
            if taken > _CHUNK_S or rounds > 1 << 24:
                break
            rounds *= 4
        start(rounds)
        cycles, at, later, then = [int(x) for x in probe.read(times, np.int64)]
        if then > at and later > cycles:
            return (later - cycles) / (then - at)
    return None if facts.clock_hz is None else facts.clock_hz * 1e-9


def _copy(probe: Probe, target: Target, facts: DeviceAttributes, copies: list[tuple[int, float]]) -> float:
    """Best rate over copies of several sizes; sizes below four times the L2 cache are excluded if larger ones exist."""
    most = (facts.free_memory_bytes or facts.memory_bytes or _SHARE * _COPY_BYTES[0]) // _SHARE
    for nbytes in [n for n in _COPY_BYTES if n <= most] or [max(CHUNK, most // CHUNK * CHUNK)]:
        x, y = probe.memory(nbytes), probe.memory(nbytes)
        copy = partial(probe.launch, "copy", [x, y], nbytes // CHUNK)
        probe.launch("copy", [y, x], nbytes // CHUNK)  # memory that was never written may not be backed by physical pages
        copies.append((nbytes, _best_rate(probe, partial(_times, copy), 2 * nbytes)))
        probe.free()
    large = [rate for nbytes, rate in copies if nbytes >= 4 * target.l2_bytes]
    return max(large or [copies[-1][1]])


def _reread(probe: Probe, target: Target) -> float:
    chunks = max(1, target.l2_bytes // 2 // CHUNK)
    blocks = _BLOCKS * target.num_cores
    # An odd stride of about half the buffer reaches chunks that no block of this multiprocessor has read.
    on = (chunks // 2) | 1 if chunks > 2 else 0
    plan = probe.filled([0, chunks, on], np.int32)
    x = probe.filled(np.zeros(chunks * CHUNK // 4, np.float32), np.float32)
    out = probe.memory(4 * THREADS * blocks)
    held = 0

    def start(rounds: int) -> None:
        nonlocal held
        if rounds != held:
            probe.fill(plan, np.array([rounds, chunks, on], np.int32))
            held = rounds
        probe.launch("reread", [plan, x, out], blocks)

    return _best_rate(probe, start, CHUNK * blocks)


def _launch(probe: Probe, target: Target) -> float:
    """Microseconds per empty kernel while the host enqueues ahead of the device."""
    start, _ = _multiply_add(probe, target)
    one = probe.memory(128)
    rounds, busy = 1000, 0.0
    best, launches = math.inf, _LAUNCHES

    def work() -> None:
        for _ in range(launches):
            probe.launch("nothing", [one], 1)

    probe.seconds(work)
    for _ in range(8):
        taken, started = probe.seconds(work, partial(start, rounds))
        best = min(best, taken / launches)
        if busy <= 1.5 * started and rounds < 1 << 24:  # the device became idle before all launches were enqueued: block it for longer
            busy, _ = probe.seconds(partial(start, rounds))
            rounds = max(rounds, math.ceil(rounds * 2.5 * started / max(busy, 1e-6)))
            busy, _ = probe.seconds(partial(start, rounds))
    return best * 1e6


def _times(call: Callable[[], None], number: int) -> None:
    for _ in range(number):
        call()


def _best_rate(probe: Probe, start: Callable[[int], None], work: int) -> float:
    """Work per nanosecond (GFLOP/s, GB/s) of the fastest of many runs; `work` is the work of one round."""
    rounds, best, runs = 1, 0.0, 0
    deadline = time.perf_counter() + _BUDGET_S
    # The first run includes loading code and raising clocks, so at least three are run.
    while runs < 3 or time.perf_counter() < deadline:
        start(rounds)  # writes the number of rounds to memory, untimed
        seconds, _ = probe.seconds(partial(start, rounds))
        if seconds > 0:
            best = max(best, work * rounds / seconds * 1e-9)
        rounds = max(1, min(1 << 24, int(rounds * min(100.0, max(0.01, _CHUNK_S / max(seconds, 1e-7))))))
        runs += 1
    return best


def _measure_in_worker(target: Target, progress: Callable[[str], None]) -> DeviceRates:
    """Measure in a fresh process while no other one uses the device; a lost device affects only that process."""
    factory, device = f"{__name__}:{probe_worker.__name__}", f"the first {target.kind} device"
    with device_lease(Device(target.base)):
        return DeviceRates.from_json(measure_in_worker(factory, target, device, progress, doing=f"calibrating {device}"))


def _cache(target: Target, facts: DeviceAttributes) -> RateCache[DeviceRates]:
    identity = [target.base, facts.name, facts.driver_version, target.arch, target.num_cores, target.l2_bytes, PROBE_VERSION]
    return RateCache("device-rates", identity, DeviceRates.from_json)
