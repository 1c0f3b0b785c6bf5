"""Gather and scatter over all threads of a block: run-time support for accesses whose index varies between threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.ir.interpreter.thread_memory import Memory, ThreadPoint, Threads, pick


def gather(data: np.ndarray, cells: np.ndarray, threads: np.ndarray) -> np.ndarray:
    """The cell of each of the `threads`; zero for other threads."""
    out = np.zeros(cells.shape, data.dtype)
    out[threads] = data[cells[threads]]
    return out


def gather_private(data: np.ndarray, cells: np.ndarray, threads: np.ndarray) -> np.ndarray:
    """As `gather`, from thread-private memory."""
    out = np.zeros(cells.shape, data.dtype)
    own = np.flatnonzero(threads)
    out[own] = data[cells[own], own]
    return out


def scatter(data: np.ndarray, cells: np.ndarray, value: Any, taking: Threads) -> None:
    """Store to one cell per thread, or per thread and lane; the last thread wins."""
    if taking is None:
        data[cells] = value
    else:
        data[cells[taking]] = np.broadcast_to(value, cells.shape)[taking]


def scatter_private(data: np.ndarray, cells: np.ndarray, value: Any, taking: Threads) -> None:
    """As `scatter`, to thread-private memory."""
    own = np.arange(data.shape[1])
    if cells.ndim == 2:
        own = np.broadcast_to(own[:, None], cells.shape)
    if taking is None:
        data[cells, own] = value
    else:
        data[cells[taking], own[taking]] = np.broadcast_to(value, cells.shape)[taking]


def lanes_of(
    memory: Memory,
    point: ThreadPoint,
    what: str,
    index: Sequence[Any],
    count: int,
    stride: Any,
    leading: Any,
    threads: Threads,
    active: np.ndarray | None,
    rows: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The cells of a vector access and the mask of its active lanes, each bounds-checked.

    Args:
        memory: the accessed memory.
        point: location of the access, for messages.
        what: the access, for messages.
        index: index of lane 0 by dimension; ints, or arrays with a value per thread.
        count: number of lanes.
        stride: elements between lanes.
        leading: number of leading lanes that are accessed; None means all.
        threads: the active threads.
        active: active lanes, of shape [lanes] or [threads, lanes].
        rows: number of threads; 0 for an access that is uniform and executed once.
    """
    shape = (rows, count) if rows else (count,)
    lane = np.arange(count, dtype=np.int64)
    taking: Any = None
    if leading is not None:
        taking = lane < _column(leading)
    if threads is not None:
        taking = threads[:, None] if taking is None else taking & threads[:, None]
    if active is not None:
        taking = active if taking is None else taking & active
    last = _column(index[-1]) + _column(stride) * lane
    bad = (last < 0) | (last >= memory.shape[-1])
    for i, n in zip(index[:-1], memory.shape[:-1], strict=True):
        bad = bad | (_column(i) < 0) | (_column(i) >= n)
    cells: Any = last
    step = memory.shape[-1]
    for i, n in zip(reversed(index[:-1]), reversed(memory.shape[:-1]), strict=True):
        cells = cells + _column(i) * step
        step *= n
    bad = np.broadcast_to(bad if taking is None else bad & taking, shape)
    if bad.any():
        k = tuple(np.argwhere(bad)[0])
        t = int(k[0]) if rows else 0
        text = ", ".join([*[str(pick(i, t)) for i in index[:-1]], str(np.broadcast_to(last, shape)[k])])
        point.fail(f"vector {what} {memory.buffer.name}[{text}] is out of range: the shape is {memory.shape}", t)
    return np.broadcast_to(cells, shape), None if taking is None else np.broadcast_to(taking, shape)


def _column(x: Any) -> Any:
    return x[:, None] if isinstance(x, np.ndarray) else x


def load_lanes(data: np.ndarray, cells: np.ndarray, taking: np.ndarray | None) -> np.ndarray:
    """The vectors of all threads; inactive lanes are zero."""
    private = data.ndim == 2
    own = np.broadcast_to(np.arange(data.shape[1])[:, None], cells.shape) if private else cells
    if taking is None:
        return data[cells, own] if private else data[cells]
    out = np.zeros(cells.shape, data.dtype)
    out[taking] = data[cells[taking], own[taking]] if private else data[cells[taking]]
    return out


def ramp_of(base: Any, stride: Any, lanes: int) -> np.ndarray:
    """base + lane * stride for each thread."""
    return _column(base) + _column(stride) * np.arange(lanes, dtype=np.int64)


def runtime() -> dict[str, Any]:
    """The namespace of generated code, in addition to `memory.runtime`."""
    return {
        "broadcast_to": np.broadcast_to,
        "copyto": np.copyto,
        "gather": gather,
        "gather_private": gather_private,
        "lanes_of": lanes_of,
        "load_lanes": load_lanes,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "ramp_of": ramp_of,
        "scatter": scatter,
        "scatter_private": scatter_private,
        "where": np.where,
    }
