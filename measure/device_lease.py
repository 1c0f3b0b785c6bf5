"""Serialise timing on a device across processes, with a file lock that is released when its holder exits.

The process that dispatches work takes the lease, not the worker: the worker's time limit must not include waiting for the device.
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

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.ir.target.target import Target
from tunesmith.runtime.device.device import Device
from tunesmith.support.errors import RunError, TunesmithError

_FOLDER = Path("/tmp")
"""Ignores TMPDIR, because all processes must use the same lock file."""
_PATIENCE_S = 3.0
"""Wait after which a notice is printed."""
_ATTEMPTS = 50
"""Attempts to open a file that another process is creating, or has created but not yet made accessible."""


def target_lease(target: str) -> AbstractContextManager[None]:
    """The lease of the device on which a target's code is timed; a null context if it runs in a process of its own.

    Args:
        target: the target as JSON text.
    """
    device = _device_of(target)
    return nullcontext() if device is None else device_lease(device)


@contextmanager
def device_lease(device: Device) -> Iterator[None]:
    """Wait for exclusive use of the device for timing.  Not reentrant: a nested call deadlocks.

    Args:
        device: a device of this machine.
    Raises:
        RunError: the lock file cannot be opened.
    """
    path = _FOLDER / f"tunesmith-{_identity(device)}.lock"
    descriptor = _opened(path)
    try:
        _wait(descriptor, device, path)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing does not release the lock if a forked child shares the file
    finally:
        os.close(descriptor)


def _wait(descriptor: int, device: Device, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    text = f"tunesmith: waiting for {device}, which another process is timing on; `fuser {path}` shows that process"
    notice = threading.Timer(_PATIENCE_S, lambda: print(text, file=sys.stderr, flush=True))
    notice.daemon = True
    notice.start()
    try:
        # Not by polling: it would rarely hit the short gap between two candidates of another search.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        notice.cancel()


def _opened(path: Path) -> int:
    """Open the lock file, which all users share; it is created if missing."""
    # Read-only, which suffices for a lock, and without O_CREAT if the file exists: systems refuse O_CREAT (fs.protected_regular)
    # for files of other users in world-writable folders.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    for attempt in range(_ATTEMPTS):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        except OSError as error:
            if not isinstance(error, PermissionError) or attempt == _ATTEMPTS - 1:
                raise RunError(
                    f"cannot open {path}, the lock file of a device: {error.strerror}. Delete it when nothing is being timed"
                ) from error
            time.sleep(0.01)
            continue
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"cannot create {path}, the lock file of a device: {error.strerror}") from error
        os.fchmod(descriptor, 0o666)  # regardless of the umask
        return descriptor
    raise RunError(f"cannot open {path}, the lock file of a device: it is repeatedly created and deleted")


@lru_cache(maxsize=64)
def _device_of(target: str) -> Device | None:
    kind = backend_of(Target.from_json(json.loads(target))).device
    return Device(kind) if kind else None


@lru_cache(maxsize=64)
def _identity(device: Device) -> str:
    """Machine-wide name of a device, independent of which devices a process sees and of their order.

    Without a PCI address it is the product name alone: two devices of one name then share a lock, which costs time but is correct.
    """
    found = _pci_address(device.index) if device.kind == "cuda" else None
    if found is None:
        try:
            found = device.api.attributes(device.index).name
        except TunesmithError:
            pass  # the first use of the device reports the error
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{device.kind} {found or device.index}").strip("-")[:120]


def _pci_address(index: int) -> str | None:
    """PCI address of a CUDA device, from the driver library: this query needs neither a context nor device memory."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        number, text = ctypes.c_int(), ctypes.create_string_buffer(64)
        found = cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(number), index) == 0
        return text.value.decode() if found and cuda.cuDeviceGetPCIBusId(text, len(text), number) == 0 else None
    except (OSError, AttributeError):
        return None
