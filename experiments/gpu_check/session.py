"""Share device, time limits, log and results between the sections of a check; results are saved as they complete."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith.codegen.device.host import detect_device
from tunesmith.ir.target.gpus import card_of_driver_name
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.gpu import calibrated_device
from tunesmith.runtime.device.device import Device, DeviceAttributes
from tunesmith.support.errors import BuildError, TunesmithError

_LINES = 8
"""Maximum number of displayed traceback lines."""
_GRACE_S = 15.0
"""Time over its limit after which a section is aborted."""


class OutOfTime(Exception):
    """A section exceeded its time limit."""


@dataclass
class Session:
    """State of one run.

    Attributes:
        kind: kind of the device.
        out: folder of the output files.
        seconds: time limit of the run.
        trials: trials per workload.
        workloads: replace the default workloads of the check.
        models: replace the default models.
        model_seconds: time of tuning of each model; 0 for none.
        results: results by section, as plain data.
        failures: reasons of failed sections.
    """

    kind: str
    out: Path
    seconds: float
    trials: int
    workloads: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    model_seconds: float = 0.0
    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    _target: Target | None = None

    def say(self, text: str) -> None:
        """Print a line, and append it to output.txt."""
        line = f"[{time.monotonic() - self.begun:6.1f} s] {text}"
        print(line, flush=True)
        with (self.out / "output.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def left(self) -> float:
        """Remaining seconds of the run."""
        return self.seconds - (time.monotonic() - self.begun)

    def save(self) -> None:
        """Write results.json atomically."""
        content = {"kind": self.kind, "trials": self.trials, "failures": self.failures, **self.results}
        draft = self.out / "results.json.tmp"
        draft.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
        draft.replace(self.out / "results.json")

    def section(self, name: str, work: Callable[[Session, dict[str, Any]], None], limit: float) -> None:
        """Run a section, which fills the passed dictionary; its exceptions are reported, and the run continues."""
        self.say(f"== {name} ({limit:.0f} s at most, {self.left():.0f} s left)")
        found: dict[str, Any] = self.results.setdefault(name, {})
        start = time.monotonic()
        try:
            with _cut_off(limit + _GRACE_S):
                work(self, found)
        except Exception as error:
            last = traceback.format_exc().strip().splitlines()[-_LINES:]
            short = isinstance(error, TunesmithError)
            self.failures[name] = f"{type(error).__name__}: {error}"
            self.say("\n    ".join([f"{name} FAILED:", *(str(error).splitlines() if short else last)]))
        found["seconds"] = time.monotonic() - start
        self.save()

    @property
    def attributes(self) -> DeviceAttributes:
        """Attributes of the device.  Raises RunError without a device."""
        return Device(self.kind).api.attributes(0)

    def detected(self) -> Target:
        """The device as a target, with estimated rates."""
        try:
            return detect_device(self.kind)
        except TunesmithError as error:
            facts = self.attributes
            if self.kind != "cuda" or facts.compute_version is None or facts.compute_units is None:
                raise
            # nvidia-smi is missing, or the card is in no table.
            self.say(f"using the attributes reported by the driver: {error}")
            card = card_of_driver_name(facts.name or "")
            named: dict[str, object] = {"model": card} if card else {"arch": "sm_" + facts.compute_version.replace(".", "")}
            return Target({"kind": "cuda", "num_cores": facts.compute_units, **named})

    @property
    def target(self) -> Target:
        """The target of tuning, with measured rates."""
        if self._target is None:
            if not Device(self.kind).api.count():
                raise BuildError(f"there is no {self.kind} device here: `tunesmith doctor` lists the devices")
            self._target = calibrated_device(self.detected(), self.say)
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        self._target = target


@contextmanager
def _cut_off(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the main thread if the body takes longer."""

    def late(*_: object) -> None:
        raise OutOfTime(f"aborted after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
