"""Model the memory of thread blocks, with race detection between barriers.

Every access is stamped with (epoch, thread, statement) in one integer, so that a race check takes a few numpy operations over all threads.
Barriers and new blocks start a new epoch; epochs never repeat, so stamps need not be cleared.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.interpreter.memory import Indices, InterpretError, ProgramPoint, poison, poisoned
from tunesmith.ir.poly import Poly, Var, evaluate
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import BindIndex, For, If, Stmt
from tunesmith.support import dtype as dt

Threads = np.ndarray | None
"""Mask of the active threads; None means all."""

STATEMENT_BITS, THREAD_BITS = 20, 12
MAX_THREADS, MAX_STATEMENTS = 1 << THREAD_BITS, 1 << STATEMENT_BITS
_EPOCH = STATEMENT_BITS + THREAD_BITS
_THREAD = (MAX_THREADS - 1) << STATEMENT_BITS
SOURCE = "<threads of "
"""Prefix of the file name of generated code."""


class Clock:
    """The current epoch, block and kernel.

    Attributes:
        base: first stamp of the epoch; `block` and `kernel` are the first stamps of the current block and kernel.
        dims: threads of a block along x, y and z.
        statements: statements of the whole function; a stamp contains a position in this list.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.base = self.block = self.kernel = 0
        self.dims: tuple[int, int, int] = (1, 1, 1)
        self.statements: list[Stmt] = []
        self._blocks: list[tuple[int, tuple[int, ...]]] = []

    def begin_kernel(self, dims: tuple[int, int, int], threads: np.ndarray) -> None:
        """Start a kernel, ordered after all earlier accesses."""
        self.dims = dims
        self.thread_bits = threads << STATEMENT_BITS
        self.barrier()
        self.kernel = self.base
        self._blocks = []

    def begin_block(self, at: tuple[int, ...]) -> None:
        """Start the block at (x, y, z)."""
        self.barrier()
        self.block = self.base
        self._blocks.append((self.base, at))

    def barrier(self) -> None:
        """Start a new epoch: inside the block, earlier accesses are ordered before later ones."""
        self.base += 1 << _EPOCH

    def number(self, statement: Stmt) -> int:
        """The number of a statement in stamps."""
        self.statements.append(statement)
        return min(len(self.statements), MAX_STATEMENTS) - 1

    def thread(self, t: int) -> str:
        """The name of a thread, with coordinates if its block has more than one dimension."""
        x, y, z = self.dims
        if y == z == 1:
            return f"thread {t}"
        return f"thread {t} (x = {t % x}, y = {t // x % y}{f', z = {t // (x * y)}' if z > 1 else ''})"

    def block_of(self, stamp: int) -> str:
        """The name of the block of a stamp."""
        found = bisect_right(self._blocks, stamp, key=lambda b: b[0]) - 1
        return f"block {self._blocks[found][1]}"

    def statement(self, stamp: int) -> str:
        """The text of the statement of a stamp; only the first line of a compound statement."""
        s = self.statements[stamp & (MAX_STATEMENTS - 1)]
        return script(s).partition("\n")[0] if isinstance(s, (If, For, BindIndex)) else script(s)


def thread_of(stamp: int) -> int:
    """The thread of a stamp."""
    return (stamp & _THREAD) >> STATEMENT_BITS


class ThreadPoint(ProgramPoint):
    """A location in a program that many threads execute together; names may have a value per thread.

    Args:
        clock: the clock of the call.
        path: loops and blocks that enclose the location.
        names: Python name of each variable in scope.
        bound: iteration variables of the enclosing blocks, as expressions of loop variables.
        values: values of Params and scalar parameters.
        buffer: the buffer accessed there.
    """

    __slots__ = ("bound", "clock", "values", "variables")

    def __init__(
        self,
        clock: Clock,
        path: str,
        names: Mapping[Var, str],
        bound: Mapping[Var, Poly],
        values: Mapping[Var, int],
        buffer: Buffer | None,
    ) -> None:
        super().__init__(clock.function, path, {}, buffer)
        self.clock, self.variables, self.bound, self.values = clock, names, bound, values

    def fail(self, message: str, thread: int) -> NoReturn:
        """Raise an error in `thread`, with its loop variables."""
        frame: Any = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
            frame = frame.f_back
        known = {} if frame is None else {**frame.f_globals, **frame.f_locals}
        here = {v: int(pick(known[n], thread)) for v, n in self.variables.items() if n in known}
        inner = {v: p for v, p in self.bound.items() if v not in here and all(u in here or u in self.values for u in p.vars)}
        here |= {v: evaluate(p, {**self.values, **here}) for v, p in inner.items()}
        state = ", ".join([f"{v} = {n}" for v, n in here.items()])
        where = f"in function {self.function}, at {self.path}{', where ' if state else ''}{state}"
        raise InterpretError(f"{message}\n{where}, in {self.clock.thread(thread)} of {self.clock.block_of(self.clock.base)}")

    def outside_threads(self, what: str, threads: Threads, index: Sequence[Any], shape: Indices) -> None:
        """Raise if an access of one of the `threads` is out of range."""
        t = self._first(threads, index, shape)
        if t is not None:
            name = "?" if self.buffer is None else self.buffer.name
            text = ", ".join([str(pick(i, t)) for i in index])
            self.fail(f"{what} {name}[{text}] is out of range: the shape is {tuple(shape)}", t)

    def binding_threads(self, threads: Threads, values: Sequence[Any], extents: Sequence[Any]) -> None:
        """Raise if the bindings of a block instance of one of the `threads` are out of range."""
        t = self._first(threads, values, extents)
        if t is not None:
            bound, limits = tuple([int(pick(v, t)) for v in values]), tuple([int(pick(e, t)) for e in extents])
            self.fail(f"the bindings {bound} are out of range: the extents are {limits}; a guard is missing", t)

    def indirect_indices(self, value: Any, extent: Any, threads: Threads) -> Any:
        """The indirect index of each thread, 0 for inactive threads; raises if one is out of range."""
        bad = (value < 0) | (value >= extent)
        t = _first_true(bad if threads is None else bad & threads)
        if t is not None:
            self.fail(f"the indirect index {pick(value, t)} is out of range: its extent is {pick(extent, t)}", t)
        if np.ndim(value) == 0:
            return int(value)
        return np.asarray(value, np.int64) if threads is None else np.where(threads, value, np.int64(0))

    def together(self, what: str, threads: Threads, warp: int = 0) -> None:
        """Raise unless all threads are active, or with `warp` all or none of each `warp` consecutive threads."""
        if threads is None or threads.all():
            return
        if warp:
            first = np.arange(len(threads)) // warp * warp
            mixed = threads != threads[first]
            t = _first_true(mixed)
            if t is None:
                return
            here, away = (t, int(first[t])) if threads[t] else (int(first[t]), t)
            need = "a shuffle needs all threads of a warp"
        else:
            here, away = int(threads.argmax()), int(threads.argmin())
            need = "a barrier needs all threads of the block"
        self.fail(f"{what} is reached by {self.clock.thread(here)} and not by {self.clock.thread(away)}; {need}", here)

    def shuffle(self, value: np.ndarray, distance: int, threads: Threads) -> np.ndarray:
        """The values of the threads `thread ^ distance`."""
        self.together(f"shuffle_xor_{distance}", threads, 32)
        count = int(np.prod(self.clock.dims))
        partner = np.arange(count) ^ distance
        missing = partner >= count
        t = _first_true(missing if threads is None else missing & threads)
        if t is not None:
            self.fail(f"shuffle_xor_{distance} of {self.clock.thread(t)} reads thread {partner[t]}, and the block has {count} threads", t)
        return value[np.where(missing, 0, partner)] if np.ndim(value) else value

    def _first(self, threads: Threads, values: Sequence[Any], limits: Sequence[Any]) -> int | None:
        bad: Any = np.zeros(1 if threads is None else threads.shape, bool)
        for v, n in zip(values, limits, strict=True):
            bad = bad | (np.asarray(v) < 0) | (np.asarray(v) >= n)
        return _first_true(bad if threads is None else bad & threads)


def pick(value: Any, thread: int) -> Any:
    """The value of one thread, of a value that is uniform or an array over threads."""
    return value[thread] if np.ndim(value) else value


def _first_true(bad: Any) -> int | None:
    """The position of the first true element, None if there is none."""
    return int(np.argmax(bad)) if np.any(bad) else None


class Memory:
    """The flattened cells of a buffer, as the threads of a kernel see them.

    Attributes:
        data: the values, one per cell; for private memory with a row per thread.
        shape: shape of the buffer.
    """

    data: np.ndarray

    def __init__(self, buffer: Buffer, shape: Indices, clock: Clock) -> None:
        self.buffer, self.clock = buffer, clock
        self.shape = shape

    def index(self, cell: int) -> str:
        """The text of the element stored in a cell."""
        at = np.unravel_index(cell, self.shape) if self.shape else ()
        return f"{self.buffer.name}[{', '.join([str(int(i)) for i in at])}]"


class PrivateMemory(Memory):
    """Thread-private memory, one copy per thread; `written` marks the initialised cells of each thread."""

    def __init__(self, buffer: Buffer, shape: Indices, clock: Clock, threads: int) -> None:
        super().__init__(buffer, shape, clock)
        self.threads = threads
        self.resize(shape)

    def resize(self, shape: Indices) -> None:
        """Reset to undefined memory of another shape."""
        self.shape = shape
        if any(n < 0 for n in shape):
            raise InterpretError(f"the buffer {self.buffer.name} has the shape {shape}")
        cells = int(np.prod(shape, dtype=np.int64))
        self.data = poisoned((cells, self.threads), dt.to_numpy(self.buffer.dtype))
        self.written = np.zeros((cells, self.threads), bool)

    def reset(self) -> None:
        """Mark all cells as undefined."""
        poison(self.data)
        self.written.fill(False)

    def check(self, point: ThreadPoint, cells: Any, written: np.ndarray, taking: Threads) -> None:
        """Raise if a read cell is not `written`; both are indexed by thread, or by thread and lane."""
        bad = ~written if taking is None else ~written & taking
        if bad.any():
            t = int(np.argwhere(bad)[0][0])
            cell = int(np.broadcast_to(cells, bad.shape)[tuple(np.argwhere(bad)[0])])
            what = f"{self.index(cell)} ({self.buffer.scope}) is read by {self.clock.thread(t)}, which has not written it"
            point.fail(what, t)


class CommonMemory(Memory):
    """Memory with one copy per block (shared) or in total (global), and the stamps of writes and reads of each cell.

    Only the first and the last reading thread of an epoch are stored: a writer races with a reader if either of them is another thread.
    """

    def __init__(self, buffer: Buffer, array: np.ndarray, clock: Clock, shared: bool, tracked: bool) -> None:
        super().__init__(buffer, array.shape, clock)
        self.data, self.shared, self.tracked = array.reshape(-1), shared, tracked
        self.last_write = self.last_read = -1
        """Epochs of the last accesses to any cell; if they precede the current epoch or kernel, the checks are skipped."""
        if tracked:
            self.writer, self.low, self.high = (np.full(self.data.size, -1, np.int64) for _ in range(3))
            self.first = None if shared else np.full(self.data.size, -1, np.int64)
        self.complete_at, self.complete = -1, False

    def reset(self) -> None:
        """Start another block: shared memory becomes undefined."""
        poison(self.data)
        self.complete_at = -1

    def resize(self, shape: Indices) -> None:
        """Reset to undefined memory of another shape."""
        self.__init__(self.buffer, poisoned(shape, self.data.dtype), self.clock, self.shared, self.tracked)  # type: ignore[misc]

    def _spread(self, cells: np.ndarray, taking: Threads, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The accessed cells in one row, threads ascending, and the accessing threads."""
        thread_bits = np.broadcast_to(ids[:, None], cells.shape) if cells.ndim == 2 else ids
        if taking is not None:
            return cells[taking], thread_bits[taking]
        return (cells, thread_bits) if cells.ndim == 1 else (cells.reshape(-1), thread_bits.reshape(-1))

    def read(self, point: ThreadPoint, cells: np.ndarray, taking: Threads, statement: int) -> None:
        """Record that each thread (row) reads its cells; raise if one is undefined or may be written by another thread."""
        clock = self.clock
        cells, thread_bits = self._spread(cells, taking, clock.thread_bits)
        stamps = thread_bits + (clock.base | statement)
        if self.shared and not self._complete():
            self._unwritten(point, cells, stamps)
        if self.last_write >= (clock.base if self.shared else clock.kernel):
            self._against_writers(point, cells, stamps, "read")
        self.high[cells] = np.maximum(self.high[cells], stamps)
        back = cells[::-1]
        reverse = (clock.base | statement) + (_THREAD - thread_bits[::-1])
        self.low[back] = np.maximum(self.low[back], reverse)
        if self.first is not None:
            new = self.first[cells] < clock.kernel
            if new.any():
                self.first[cells[new]] = stamps[new]
        self.last_read = clock.base

    def write(self, point: ThreadPoint, cells: np.ndarray, taking: Threads, statement: int) -> None:
        """Record that each thread (row) writes its cells; raise if one may be accessed by another thread."""
        clock = self.clock
        cells, thread_bits = self._spread(cells, taking, clock.thread_bits)
        stamps = thread_bits + (clock.base | statement)
        since = clock.base if self.shared else clock.kernel
        if self.last_write >= since:
            self._against_writers(point, cells, stamps, "written")
        if self.last_read >= since:
            self._against_readers(point, cells, stamps)
        self.writer[cells] = stamps
        kept = self.writer[cells]
        bad = _first_true(kept != stamps)
        if bad is not None:
            t, other = thread_of(int(stamps[bad])), thread_of(int(kept[bad]))
            text = f"{self._name(int(cells[bad]))} is written by {clock.thread(t)} and by {clock.thread(other)} at once"
            point.fail(f"a race: {text}\nby: {clock.statement(statement)}", t)
        self.last_write = clock.base

    def _name(self, cell: int) -> str:
        return f"{self.index(cell)} ({self.buffer.scope})"

    def _complete(self) -> bool:
        """Whether every cell was written in this block; evaluated once per epoch."""
        if self.complete_at != self.clock.base:
            self.complete_at = self.clock.base
            self.complete = not self.writer.size or bool(self.writer.min() >= self.clock.block)
        return self.complete

    def _unwritten(self, point: ThreadPoint, cells: np.ndarray, stamps: np.ndarray) -> None:
        bad = _first_true(self.writer[cells] < self.clock.block)
        if bad is not None:
            t = thread_of(int(stamps[bad]))
            what = f"{self._name(int(cells[bad]))} is read by {self.clock.thread(t)}, and no thread of the block has written it"
            point.fail(f"{what}\nby: {self.clock.statement(int(stamps[bad]))}", t)

    def _against_writers(self, point: ThreadPoint, cells: np.ndarray, stamps: np.ndarray, how: str) -> None:
        clock, before = self.clock, self.writer[cells]
        bad = (before >= clock.base) & ((before ^ stamps) & _THREAD != 0)
        if not self.shared:
            bad |= (before >= clock.kernel) & (before < clock.block)
        k = _first_true(bad)
        if k is not None:
            self._race(point, int(cells[k]), "written", int(before[k]), how, int(stamps[k]))

    def _against_readers(self, point: ThreadPoint, cells: np.ndarray, stamps: np.ndarray) -> None:
        clock, high, low = self.clock, self.high[cells], self.low[cells]
        low = np.where(low < 0, low, low ^ _THREAD)  # undo the complement of the thread number
        for before in (high, low):
            k = _first_true((before >= clock.base) & ((before ^ stamps) & _THREAD != 0))
            if k is not None:
                self._race(point, int(cells[k]), "read", int(before[k]), "written", int(stamps[k]))
        if self.first is not None:
            before = self.first[cells]
            k = _first_true((before >= clock.kernel) & (before < clock.block))
            if k is not None:
                self._race(point, int(cells[k]), "read", int(before[k]), "written", int(stamps[k]))

    def _race(self, point: ThreadPoint, cell: int, first: str, old: int, second: str, new: int) -> NoReturn:
        """Raise for a race on a cell between the accesses of two stamps."""
        clock = self.clock
        a, b = clock.thread(thread_of(old)), clock.thread(thread_of(new))
        reason = "with no barrier between"
        if old < clock.block:
            a, b = f"{a} of {clock.block_of(old)}", f"{b} of {clock.block_of(new)}"
            reason = "and no barrier orders the blocks of a kernel"
        how = f"{first} by {a} and {second} by {b}" if first != second else f"{first} by {a} and by {b}"
        lines = f"{first} by: {clock.statement(old)}\n{second} by: {clock.statement(new)}"
        point.fail(f"a race: {self._name(cell)} is {how} {reason}\n{lines}", thread_of(new))
