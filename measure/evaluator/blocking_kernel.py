"""A lead for the host: the device is kept busy while calls are put into its stream, which it then runs without waiting for any.

Starting a kernel from Python takes longer than short kernels do; between two marks the device would wait for the host, and its clock would
tell how fast Python is.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tunesmith.measure.calibration.gpu_probe import THREADS, Probe
from tunesmith.runtime.device.device import Device

AT_ONCE = 500
"""Calls that are put into a stream together; drivers take about a thousand before the host has to wait."""
_SLACK = 1.5
"""The device is busy for longer than the host is expected to need."""
_CALIBRATED_S = 5e-4


class BlockingKernel:
    """Multiply-adds of one block of threads, for as long as is wanted.

    Args:
        device: to be kept busy.
        code: `device_probe.compiled` for it.
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
        """Keep the device busy for so long and a half; returns at once."""
        self._start(max(1, math.ceil(_SLACK * seconds / self._seconds_a_round)))

    def _start(self, rounds: int) -> None:
        self._probe.fill(self._rounds, np.array([min(rounds, 1 << 30)], np.int32))
        self._probe.launch("multiply_add", self._arguments, 1)

    def close(self) -> None:
        """Give everything back."""
        self._probe.__exit__(None, None, None)
