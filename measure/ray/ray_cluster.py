"""Connect to Ray: reuse the connection of this process, join the cluster at RAY_ADDRESS, or start a small local instance.

Only an instance started here is shut down.  Such an instance is quiet, small and bound to this process: it ends with the process, even if
the process is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from typing import Any, Self

from tunesmith.support.errors import MissingExtraError, RunError, UserError
from tunesmith.support.temporary_folder import CleanUp, remove_folder

RUNNER = "tunesmith_cpu"
"""Ray resource of a node that limits its concurrent runners; its quantity is 1 if a candidate uses all cores."""

OBJECT_STORE = 128 << 20
"""Bytes of shared memory of a local Ray instance.  Candidates are sent inside messages; the store holds references, and spills."""

_LONGEST_TEMP = 16
"""Limit of the characters of the temporary folder: Ray's socket paths add some 90, and socket paths are limited to 107."""
_CONNECT_SECONDS = 10.0
_ERRORS = (ConnectionError, OSError, RuntimeError, ValueError)
_ADDRESS = "RAY_ADDRESS"


def _import_ray() -> Any:
    # The death of a worker is reported in a record.  Ray would print it on standard output, which is reserved for data.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "tuning on Ray workers") from None
    return ray


ray = _import_ray()
"""The `ray` package; if it is missing, the error of this import shows the install command."""


class RayCluster:
    """A connection to Ray, closed by its creator; builders, runners and samplers take it as their first argument.

    Create it in the longest-lived thread: a local Ray instance ends with the thread that started it.

    Args:
        workers: worker processes that a local instance must support; by default the cores this process may use.
        runners: candidates that may run concurrently on a local instance.  More than one disturb each other.

    Raises:
        UserError: the cluster at RAY_ADDRESS cannot be joined, or an argument is out of range.
        RunError: a local instance cannot be started.
    """

    def __init__(self, workers: int | None = None, runners: int = 1) -> None:
        if (workers is not None and workers < 1) or runners < 1:
            raise UserError(f"a Ray cluster needs at least 1 worker and 1 runner, got workers={workers}, runners={runners}")
        address = os.environ.get(_ADDRESS, "")
        self.started_here = False
        folder: str | None = None
        handler = signal.getsignal(signal.SIGTERM)
        owned = not ray.is_initialized()
        if owned and address:
            _join(address)
        elif owned:
            self.started_here = True
            folder = tempfile.mkdtemp(prefix="tunesmith-ray-", dir=None if len(tempfile.gettempdir()) <= _LONGEST_TEMP else "/tmp")
            self._remove = CleanUp(self, remove_folder, folder)  # for SIGTERM during the start of Ray
            _start(folder, max(workers or 1, len(os.sched_getaffinity(0))), runners)
        # Runs at the first of: close(), garbage collection of the cluster, interpreter exit, SIGTERM.
        self._end = CleanUp(self, _leave if owned else _keep, folder, handler)

    @property
    def cpus(self) -> int:
        """CPUs of all nodes, as counted by Ray."""
        return self.count("CPU")

    def count(self, resource: str) -> int:
        """Total quantity of a resource over all nodes."""
        return int(ray.cluster_resources().get(resource, 0))

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here.  Idempotent."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(folder: str, cpus: int, runners: int) -> None:
    # No usage statistics are sent from an instance that the user did not start explicitly.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            "local",  # never join another Ray instance on this machine
            num_cpus=cpus,
            resources={RUNNER: runners},
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
            # Workers have their own limits.  Ray's monitor kills them if *other* processes fill memory, and candidates would be blamed.
            _system_config={"memory_monitor_refresh_ms": 0},
        )
    except _ERRORS as error:
        ray.shutdown()
        remove_folder(folder)
        raise RunError(
            f"cannot start Ray: {error}. It needs {OBJECT_STORE >> 20} MiB of shared memory (/dev/shm) or of {folder}, and sockets "
            f"on this machine. Or start it with `ray start --head --resources '{{\"{RUNNER}\": 1}}'` and set {_ADDRESS}=auto"
        ) from error


def _join(address: str) -> None:
    if "://" in address:
        raise UserError(
            f"{_ADDRESS}={address} selects the Ray client, which does not report the death of workers. Run on a node of the cluster, "
            f"with {_ADDRESS}=auto or HOST:PORT"
        )
    try:
        if address != "auto":  # ray.init would retry for many minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except _ERRORS as error:
        raise UserError(
            f"cannot join the Ray cluster at {_ADDRESS}={address}: {error}. Check the address, and that the versions of Ray and Python "
            f"match; without {_ADDRESS} a Ray instance is started on this machine"
        ) from error


def _leave(folder: str | None, handler: Any) -> None:
    ray.shutdown()
    if folder is not None:
        remove_folder(folder)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has replaced it


def _keep(folder: str | None, handler: Any) -> None:
    """Leave a connection alone that existed before."""
