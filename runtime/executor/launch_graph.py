"""Start the kernels of consecutive calls of a program with one call of the device: a graph, as CUDA has them.

A launch from Python takes longer than many kernels run; a graph of a hundred kernels starts in the time of one launch.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence

from tunesmith.runtime.device.device import Device
from tunesmith.runtime.device.module import BoundCall

Call = Callable[[], object]
LEAST = 2
"""Calls of a graph at least."""


class LaunchGraph:
    """A graph of consecutive calls, which runs on the stream that they are bound to.

    Args:
        calls: calls on one device, bound to one stream.
    Raises:
        RunError: the device has no graphs, or refuses a launch.
    """

    def __init__(self, calls: Sequence[BoundCall]) -> None:
        self._device, self._calls = calls[0].device, list(calls)
        """The calls keep the memory of the launches alive."""
        launches = [c.launches() for c in calls]
        self._first = [sum(len(x) for x in launches[:i]) for i in range(len(launches))]
        self._graph = self._device.api.create_graph(self._device.index, [x for xs in launches for x in xs])
        weakref.finalize(self, _free, self._device, self._graph).atexit = False

    def replace(self, position: int, call: BoundCall) -> None:
        """Replace a call by one of the same function with other arguments, or on another stream, as all others will be."""
        for i, launch in enumerate(call.launches()):
            self._device.api.update_graph(self._device.index, self._graph, self._first[position] + i, launch)
        self._calls[position] = call

    def __call__(self) -> None:
        """Start the kernels on the stream.  RunError if the device refuses."""
        self._device.api.launch_graph(self._device.index, self._graph, self._calls[0].stream)


def groups(calls: Sequence[Call]) -> list[list[int]]:
    """Positions of consecutive calls that a graph can start; all others alone."""
    found: list[list[int]] = []
    for i, call in enumerate(calls):
        last = calls[found[-1][-1]] if found else None
        if isinstance(call, BoundCall) and isinstance(last, BoundCall) and call.device == last.device and call.device.api.has_graphs:
            found[-1].append(i)
        else:
            found.append([i])
    return [part for group in found for part in ([group] if len(group) >= LEAST else [[i] for i in group])]


def _free(device: Device, graph: int) -> None:
    with contextlib.suppress(Exception):  # the device may be lost
        device.api.free_graph(device.index, graph)
