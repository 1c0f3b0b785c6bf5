"""One timing at a time on a device, whatever process it comes from: a lock on a file that goes away with its holder."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunesmith.runtime.device import Device


@contextmanager
def device_lease(device: Device) -> Iterator[None]:
    """Wait for the device, and keep others from timing on it meanwhile.

    Args:
        device: which, of this machine.
    """
    path = Path(tempfile.gettempdir()) / f"tunesmith-{os.getuid()}-{device.kind}-{device.index}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
