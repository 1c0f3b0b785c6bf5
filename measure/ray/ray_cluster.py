"""The Ray that workers live on: the one this process uses already, the one at RAY_ADDRESS, or a small one started here.

Only what was started here is shut down.  A Ray started here is quiet, small and bound to this process: it ends when the
process ends, however that happens.
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
"""The resource that a node has as often as it may run candidates at the same time: once, if they use all of its cores."""

OBJECT_STORE = 128 << 20
"""Bytes of shared memory of a Ray started here.  Candidates travel inside of messages; the store holds references, and spills."""

_LONGEST_TEMP = 16
"""Characters.  Ray puts sockets some 90 characters below its folder, and the path of a socket ends at 107."""
_KNOCK_SECONDS = 10.0
_ERRORS = (ConnectionError, OSError, RuntimeError, ValueError)
_ADDRESS = "RAY_ADDRESS"


def _import_ray() -> Any:
    # The death of a worker is our business and ends in a record.  Ray prints it on standard output, which belongs to data.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "tuning on Ray workers") from None
    return ray


ray = _import_ray()
"""The package.  Importing it from here gives the install line where it is missing."""


class RayCluster:
    """A connection to Ray, to be closed by whoever made it; builders, runners and samplers take it as their first argument.

    Make it in the thread that lives longest: a Ray started here ends with the thread that started it.

    Args:
        workers: processes that a Ray started here must have room for; by default the cores this process may use.
        runners: how many candidates may run at the same time on a Ray started here.  More than one disturb each other.

    Raises:
        UserError: RAY_ADDRESS names no cluster that can be joined, or an argument makes no sense.
        RunError: Ray does not start here.
    """

    def __init__(self, workers: int | None = None, runners: int = 1) -> None:
        if (workers is not None and workers < 1) or runners < 1:
            raise UserError(f"a Ray cluster needs at least 1 worker and 1 runner, got workers={workers}, runners={runners}")
        address = os.environ.get(_ADDRESS, "")
        self.started_here = False
        folder: str | None = None
        handler = signal.getsignal(signal.SIGTERM)
        mine = not ray.is_initialized()
        if mine and address:
            _join(address)
        elif mine:
            self.started_here = True
            folder = tempfile.mkdtemp(prefix="tunesmith-ray-", dir=None if len(tempfile.gettempdir()) <= _LONGEST_TEMP else "/tmp")
            self._remove = CleanUp(self, remove_folder, folder)  # should SIGTERM come while Ray starts
            _start(folder, max(workers or 1, len(os.sched_getaffinity(0))), runners)
        # Runs on close(), when the cluster is collected, or at interpreter exit, or on SIGTERM, whichever is first.
        self._end = CleanUp(self, _leave if mine else _stay, folder, handler)

    @property
    def cpus(self) -> int:
        """Processors of all nodes, as Ray counts them."""
        return self.count("CPU")

    def count(self, resource: str) -> int:
        """How much of a resource all nodes have together."""
        return int(ray.cluster_resources().get(resource, 0))

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here.  Closing twice is fine."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(folder: str, cpus: int, runners: int) -> None:
    # Nothing is reported to anybody from a Ray that people did not ask for by name.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            "local",  # not a Ray that somebody else happens to run on this machine
            num_cpus=cpus,
            resources={RUNNER: runners},
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
            # Workers have limits of their own.  Ray's monitor kills them when *others* fill the machine, and candidates get the blame.
            _system_config={"memory_monitor_refresh_ms": 0},
        )
    except _ERRORS as error:
        ray.shutdown()
        remove_folder(folder)
        raise RunError(
            f"Ray does not start here: {error}. It needs {OBJECT_STORE >> 20} MiB of shared memory (/dev/shm) or of {folder}, and sockets "
            f"on this machine. Start one yourself with `ray start --head --resources '{{\"{RUNNER}\": 1}}'` and set {_ADDRESS}=auto"
        ) from error


def _join(address: str) -> None:
    if "://" in address:
        raise UserError(
            f"{_ADDRESS}={address} asks for the Ray client, which does not tell when a worker dies. Run this on a node of the cluster, "
            f"with {_ADDRESS}=auto or HOST:PORT"
        )
    try:
        if address != "auto":  # Ray itself knocks for many minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except _ERRORS as error:
        raise UserError(
            f"cannot join the Ray cluster at {_ADDRESS}={address}: {error}. Check the address and that Ray and Python have the same "
            f"version there; without {_ADDRESS} a Ray is started on this machine"
        ) from error


def _leave(folder: str | None, handler: Any) -> None:
    ray.shutdown()
    if folder is not None:
        remove_folder(folder)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own


def _stay(folder: str | None, handler: Any) -> None:
    """The cluster was there before, and is somebody else's."""
