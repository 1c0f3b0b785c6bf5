"""One timing at a time on a device, whatever process it comes from: a lock on a file that goes away with its holder.

Who hands work to another process takes the lease, not that process: its limit of time is for the work, and waiting is nobody's fault.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path

from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.device import Device
from tunesmith.support.errors import RunError, TunesmithError

_FOLDER = Path("/tmp")
"""Not that of TMPDIR: a lock is one only where everybody looks."""
_PATIENCE_S = 3.0
"""Who waits for longer says why."""
_ATTEMPTS = 50
"""To open a file that somebody else creates, or has created and not yet opened to all."""


def target_lease(target: str) -> AbstractContextManager[None]:
    """The lease of the device that a target's code is timed on; of a processor there is none.

    Args:
        target: as JSON text.
    """
    device = _device_of(target)
    return nullcontext() if device is None else device_lease(device)


@contextmanager
def device_lease(device: Device) -> Iterator[None]:
    """Wait for the device, and keep others from timing on it meanwhile.  Taking it twice at a time waits forever.

    Args:
        device: which, of this machine.
    Raises:
        RunError: the file of the lock cannot be opened.
    """
    path = _FOLDER / f"tunesmith-{_identity(device)}.lock"
    descriptor = _opened(path)
    try:
        _wait(descriptor, device, path)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough where a fork has the file too
    finally:
        os.close(descriptor)


def _wait(descriptor: int, device: Device, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    text = f"tunesmith: waiting for {device}, which somebody else times on; `fuser {path}` shows who"
    notice = threading.Timer(_PATIENCE_S, lambda: print(text, file=sys.stderr, flush=True))
    notice.daemon = True
    notice.start()
    try:
        # Not by asking again and again: a search that is between two candidates would rarely be caught at it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        notice.cancel()


def _opened(path: Path) -> int:
    """The file, which users share; whoever is first makes it."""
    # For reading, which is all that a lock needs, and without O_CREAT where it is there: systems refuse that (fs.protected_regular)
    # for files of other users in folders that all may write to.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for attempt in range(_ATTEMPTS):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not isinstance(error, PermissionError) or attempt == _ATTEMPTS - 1:
                raise RunError(f"cannot open {path}, the lock of a device: {error.strerror}. Delete it when nothing is timed") from error
            time.sleep(0.01)
            continue
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"cannot create {path}, the lock of a device: {error.strerror}") from error
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor
    raise RunError(f"cannot open {path}, the lock of a device: it comes and goes")


@lru_cache(maxsize=64)
def _device_of(target: str) -> Device | None:
    found = Target.from_json(json.loads(target))
    return None if found.is_cpu else Device(found.base)


@lru_cache(maxsize=64)
def _identity(device: Device) -> str:
    """What the device is called by everybody on this machine, whichever devices they see and in whatever order.

    By name alone where there is no address: two of a name then take turns, which costs time and no result.
    """
    found = _pci_address(device.index) if device.kind == "cuda" else None
    if found is None:
        try:
            found = device.api.attributes(device.index).name
        except TunesmithError:
            pass  # whoever uses the device says what is wrong with it
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{device.kind} {found or device.index}").strip("-")[:120]


def _pci_address(index: int) -> str | None:
    """Of a CUDA device.  Asked of the system's library, which needs no context for it, nor memory of the device."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        number, text = ctypes.c_int(), ctypes.create_string_buffer(64)
        found = cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(number), index) == 0
        return text.value.decode() if found and cuda.cuDeviceGetPCIBusId(text, len(text), number) == 0 else None
    except (OSError, AttributeError):
        return None
