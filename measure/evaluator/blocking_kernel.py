"""Keep a device busy with a blocking kernel while the host enqueues calls, so that timing excludes launch overhead.

Launching a kernel from Python takes longer than a short kernel runs.  Without the blocking kernel the device would wait for the host
between two events, and the events would measure launch overhead.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tunesmith.measure.calibration.gpu_probe import THREADS, Probe
from tunesmith.runtime.device.device import Device

AT_ONCE = 500
"""Calls enqueued per batch; drivers accept about a thousand before the host must wait."""
_SLACK = 1.5
"""Factor between the duration of the blocking kernel and the expected launch time."""
_CALIBRATED_S = 5e-4


class BlockingKernel:
    """Kernel of multiply-adds in one thread block, with an adjustable duration.

    Args:
        device: device to keep busy.
        code: result of `gpu_probe.compiled` for the device.
    """

    def __init__(self, device: Device, code: bytes) -> None:
        self._probe = Probe(device, code)
        self._rounds = self._probe.filled([0], np.int32)
        numbers = self._probe.filled([0.5, 0.5], np.float32)
        out, times = self._probe.memory(4 * THREADS), self._probe.filled([0] * 4, np.int64)
        self._arguments = [self._rounds, numbers, out, times]
        rounds, taken = 100, 0.0
        while taken < _CALIBRATED_S and rounds < 1 << 24:
            rounds *= 4
            taken, _ = self._probe.seconds(partial(self._start, rounds))
        self._seconds_a_round = max(taken, 1e-9) / rounds

    def start(self, seconds: float) -> None:
        """Keep the device busy for 1.5 times `seconds`.  Returns immediately."""
        self._start(max(1, math.ceil(_SLACK * seconds / self._seconds_a_round)))

    def _start(self, rounds: int) -> None:
        self._probe.fill(self._rounds, np.array([min(rounds, 1 << 30)], np.int32))
        self._probe.launch("multiply_add", self._arguments, 1)

    def close(self) -> None:
        """Release all resources."""
        self._probe.__exit__(None, None, None)
