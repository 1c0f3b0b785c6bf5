"""A pool of persistent worker processes in which a job can take nothing down but itself.

Each worker is a fresh interpreter that builds its job function once and then does one job at a time.  A job
that raises, crashes, hangs, runs out of memory or prints garbage ends as a `JobResult` with an error class;
its worker is replaced and no other job is touched.  A thread in this process feeds the workers, so they are
kept busy while the caller computes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import Any

from tunesmith.support.errors import RunError, UserError
from tunesmith.support.message_pipe import MessageEnd

_MAX_ANSWER_BYTES = 1 << 31
_KEPT_OUTPUT_BYTES = 4096
_BAD_STARTS = 3
_GRACE_SECONDS = 2.0
# Not multiprocessing's Process: that runs the caller's script again in each worker, to find the functions in it.
_BOOTSTRAP = "import sys; sys.path[:] = {path!r}; from tunesmith.support.worker_process import main; main({descriptor}, {parent})"


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of one job.

    Attributes:
        ticket: the number `submit` returned.
        value: what the job function returned; None on an error.
        error: None, or "error" (it raised), "crash" (its process died), "timeout" (it took too long and was killed).
        message: one line for a log; empty on success.
        exception: the class name of what was raised, for "error".
        detail: the traceback, or the last output of the process that died.
        seconds: from handing the job to a worker to its answer.
    """

    ticket: int
    value: object
    error: str | None
    message: str
    exception: str
    detail: str
    seconds: float


class WorkerPool:
    """Worker processes that all do the same kind of job.

    `factory` names a callable as `"package.module:name"`.  Every worker calls it once, `factory(*init_args)`,
    and what it returns is called with the payload of each job.  Payloads, results and `init_args` are plain
    picklable data: numbers, text, bytes, containers, arrays.

    Thread safe.  Workers start at once, in the background.  They are in a session of their own, so that Ctrl-C in
    a terminal reaches only this process, and they end with it, however it ends.

    Args:
        factory: dotted path of the factory.
        workers: number of processes, at least 1.
        init_args: arguments of the factory.
        timeout: seconds a job may take unless `submit` says otherwise; None for no limit.
        memory_limit: bytes a worker may allocate (RLIMIT_DATA); an allocation beyond it fails inside the job.
        env: environment variables of the workers, over those of this process.
        start_timeout: seconds a worker may take to start and run the factory.

    Raises:
        UserError: on arguments that make no sense.
        RunError: by `submit`, `next_result`, `results` and `run` when workers cannot be started or the factory
            fails: no job is to blame for that.
    """

    def __init__(
        self,
        factory: str,
        workers: int,
        init_args: Sequence[object] = (),
        *,
        timeout: float | None = None,
        memory_limit: int | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if workers < 1:
            raise UserError(f"a worker pool needs at least 1 worker, not {workers}")
        self.workers = workers
        self.timeout = timeout
        self._feeder = _Feeder(
            factory=factory,
            setup=pickle.dumps((factory, tuple(init_args), memory_limit)),
            env={**os.environ, **(env or {})},
            start_timeout=start_timeout,
        )
        thread = threading.Thread(target=self._feeder.run, args=(workers,), name=f"tunesmith-pool-{factory}", daemon=True)
        thread.start()
        # Runs on close(), when the pool is collected, or at interpreter exit, whichever is first.
        self._end = weakref.finalize(self, _stop, self._feeder, thread)

    def submit(self, payload: object, *, timeout: float | None = None) -> int:
        """Queue a job and return its ticket.  `timeout` in seconds overrides the pool's."""
        return self._feeder.submit(pickle.dumps(payload), self.timeout if timeout is None else timeout)

    def next_result(self, wait_seconds: float | None = None) -> JobResult | None:
        """The next job that ended, in order of completion.

        Waits for it; returns None when no job is outstanding, or after `wait_seconds`.
        """
        return self._feeder.next_result(wait_seconds)

    def results(self) -> Iterator[JobResult]:
        """Results in order of completion until no job is outstanding; more may be submitted meanwhile."""
        while (result := self.next_result()) is not None:
            yield result

    def run(self, payloads: Iterable[object], *, timeout: float | None = None) -> list[JobResult]:
        """Do these jobs and return their results in the order of the payloads.  The pool must be idle."""
        if self.outstanding:
            raise UserError(f"run() needs an idle pool, but {self.outstanding} jobs are outstanding: take their results first")
        tickets = [self.submit(payload, timeout=timeout) for payload in payloads]
        by_ticket = {result.ticket: result for result in self.results()}
        return [by_ticket[ticket] for ticket in tickets]

    @property
    def outstanding(self) -> int:
        """Jobs submitted whose result has not been taken."""
        return self._feeder.outstanding

    def close(self) -> None:
        """End the workers: idle ones leave by themselves, busy ones are killed.  Closing twice is fine."""
        self._end()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Job:
    ticket: int
    payload: bytes
    timeout: float | None


class _Worker:
    """One process, its pipe, and the job it has.  Used by the feeder's thread only."""

    def __init__(self, setup: bytes, env: Mapping[str, str], start_timeout: float) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = MessageEnd(ours, _MAX_ANSWER_BYTES)
        bootstrap = _BOOTSTRAP.format(path=sys.path, descriptor=theirs.fileno(), parent=os.getpid())
        try:
            # A session of its own: it is killed together with whatever it started, and Ctrl-C does not reach it.
            self.process = subprocess.Popen(
                [sys.executable, "-c", bootstrap],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=env,
                start_new_session=True,
            )
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        assert self.process.stdout is not None
        self.printed = self.process.stdout
        self.printing = True
        os.set_blocking(self.printed.fileno(), False)
        self.output = b""
        self.ready = False
        self.job: _Job | None = None
        self.since = time.monotonic()
        self.deadline: float | None = self.since + start_timeout
        with contextlib.suppress(OSError):  # it is dead already: the end of its pipe will tell
            self.pipe.put(setup)

    def begin(self, job: _Job) -> None:
        """Hand it a job."""
        self.output = b""
        self.job = job
        self.since = time.monotonic()
        self.deadline = None if job.timeout is None else self.since + job.timeout
        with contextlib.suppress(OSError):
            self.pipe.put(job.payload)

    def finish(self, value: object = None, error: str | None = None, message: str = "", exception: str = "", detail: str = "") -> JobResult:
        """The result of the job it has; it is free then."""
        assert self.job is not None
        result = JobResult(self.job.ticket, value, error, message, exception, detail, time.monotonic() - self.since)
        self.job, self.deadline = None, None
        return result

    def drain(self) -> None:
        """Keep the last of what the process has printed, without waiting for more."""
        for _ in range(16):  # a flood is taken in portions, so that other workers get their turn
            try:
                text = os.read(self.printed.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not text:
                self.printing = False
                return
            self.output = (self.output + text)[-_KEPT_OUTPUT_BYTES:]

    def kill(self, grace: float = 0.0) -> str:
        """End the process and all it started, after `grace` seconds to end by itself.  Returns how it ended, in words."""
        until = time.monotonic() + grace
        while not self._ended() and time.monotonic() < until:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.drain()
        self.pipe.close()
        self.printed.close()
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _ended(self) -> bool:
        """Whether the process has ended.  It is not reaped, so that its number cannot belong to another when it is killed."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Feeder:
    """The thread behind a pool: starts workers, hands out jobs, collects answers, replaces the dead.

    `pending`, `done`, `outstanding`, `failure`, `stopping` and `woken` are shared with callers, under `changed`.
    """

    def __init__(self, factory: str, setup: bytes, env: Mapping[str, str], start_timeout: float) -> None:
        self.factory = factory
        self.setup = setup
        self.env = env
        self.start_timeout = start_timeout
        self.changed = threading.Condition()
        self.pending: deque[_Job] = deque()
        self.done: deque[JobResult] = deque()
        self.outstanding = 0
        self.tickets = 0
        self.failure: str | None = None
        self.stopping = False
        self.crew: list[_Worker] = []
        self.bad_starts = 0
        self.wake_read, self.wake_write = Pipe(duplex=False)
        self.woken = False  # at most one message is in the pipe: a full one would block submit with `changed` held

    # What callers use.

    def submit(self, payload: bytes, timeout: float | None) -> int:
        with self.changed:
            self._check()
            if self.stopping:
                raise RunError(f"the worker pool of {self.factory} is closed: make a new one")
            ticket = self.tickets
            self.tickets += 1
            self.outstanding += 1
            self.pending.append(_Job(ticket, payload, timeout))
            self._wake()
        return ticket

    def next_result(self, wait_seconds: float | None) -> JobResult | None:
        until = None if wait_seconds is None else time.monotonic() + wait_seconds
        with self.changed:
            while not self.done:
                self._check()
                left = None if until is None else until - time.monotonic()
                if not self.outstanding or self.stopping or (left is not None and left <= 0):
                    return None
                self.changed.wait(left)
            self.outstanding -= 1
            return self.done.popleft()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self._wake()
            self.changed.notify_all()

    def _check(self) -> None:
        if self.failure is not None:
            raise RunError(f"the workers of {self.factory} cannot do any job. {self.failure}")

    def _wake(self) -> None:
        if not self.woken and not self.wake_write.closed:
            self.woken = True
            self.wake_write.send_bytes(b"")

    # The thread.

    def run(self, workers: int) -> None:
        try:
            while not self.stopping and self.failure is None:
                self._spawn(workers)
                self._dispatch()
                self._listen()
        except BaseException:
            self._fail(f"Its feeder failed:\n{traceback.format_exc()}")
        finally:
            self._dismiss()

    def _spawn(self, workers: int) -> None:
        while len(self.crew) < workers and self.failure is None:
            try:
                self.crew.append(_Worker(self.setup, self.env, self.start_timeout))
            except OSError as error:
                self._bad_start(f"the system refuses to start a process: {error}")

    def _dispatch(self) -> None:
        for worker in self.crew:
            if worker.ready and worker.job is None:
                with self.changed:
                    if not self.pending:
                        return
                    job = self.pending.popleft()
                worker.begin(job)

    def _listen(self) -> None:
        """Wait until something happens, and deal with it."""
        deadlines = [worker.deadline for worker in self.crew if worker.deadline is not None]
        left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        with selectors.DefaultSelector() as selector:
            selector.register(self.wake_read, selectors.EVENT_READ)
            for worker in self.crew:
                selector.register(worker.pipe, selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.pipe.unsent else 0))
                if worker.printing:
                    selector.register(worker.printed, selectors.EVENT_READ)
            happened = {key.fileobj: events for key, events in selector.select(left)}
        if self.wake_read in happened:
            with self.changed:
                self.wake_read.recv_bytes()
                self.woken = False
        for worker in list(self.crew):
            if worker.printed in happened:
                worker.drain()
            events = happened.get(worker.pipe, 0)
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(OSError):
                    worker.pipe.send()
            heard = events & selectors.EVENT_READ and self._hear(worker)
            if not heard and worker.deadline is not None and time.monotonic() >= worker.deadline:
                self._overdue(worker)

    def _hear(self, worker: _Worker) -> bool:
        """Take a message of a worker, or notice its death; False if a message has begun, or its rest has not come."""
        try:
            message = worker.pipe.take()
            if message is None:
                return False
            kind, *rest = pickle.loads(message)
        except Exception:  # the end of the pipe, or garbage from a process whose memory is ruined
            self._lost(worker)
            return True
        self._heard(worker, kind, rest)
        return True

    def _heard(self, worker: _Worker, kind: object, rest: list[Any]) -> None:
        if kind == "ready":
            worker.ready, worker.deadline = True, None
        elif kind == "broken":
            self._fail(f"Starting one raised:\n{rest[0]}")
        else:
            self.bad_starts = 0
            if kind == "done":
                self._deliver(worker.finish(rest[0]))
                return
            exception, message, detail = rest
            self._deliver(worker.finish(None, "error", f"{exception}: {message}".splitlines()[0], exception, detail))
            if exception == "MemoryError":  # what is left of its memory would fail the next job too
                self._remove(worker)

    def _lost(self, worker: _Worker) -> None:
        ended = self._remove(worker, grace=1.0)
        output = worker.output.decode("utf-8", "backslashreplace")
        if worker.job is not None:
            self._deliver(worker.finish(None, "crash", f"the worker process died ({ended})", detail=output))
        else:
            self._bad_start(f"a worker process died without a job ({ended}). Its last output:\n{output}")

    def _overdue(self, worker: _Worker) -> None:
        self._remove(worker)
        output = worker.output.decode("utf-8", "backslashreplace")
        if worker.job is not None:
            self._deliver(worker.finish(None, "timeout", f"killed after {worker.job.timeout:g} s", detail=output))
        else:
            self._bad_start(f"a worker process was not ready after {self.start_timeout:g} s. Its last output:\n{output}")

    def _remove(self, worker: _Worker, grace: float = 0.0) -> str:
        self.crew.remove(worker)
        return worker.kill(grace)

    def _bad_start(self, reason: str) -> None:
        """Count what went wrong without a job to blame; a few in a row without a job done, and it is not chance."""
        self.bad_starts += 1
        if self.bad_starts >= _BAD_STARTS:
            self._fail(f"{self.bad_starts} times in a row {reason}")

    def _deliver(self, result: JobResult) -> None:
        with self.changed:
            self.done.append(result)
            self.changed.notify_all()

    def _fail(self, reason: str) -> None:
        with self.changed:
            self.failure = reason
            self.changed.notify_all()

    def _dismiss(self) -> None:
        """End all workers.  Idle ones see the end of their pipe and leave in the usual way, all at the same time."""
        for worker in self.crew:
            if worker.ready and worker.job is None:
                worker.pipe.close()
        until = time.monotonic() + _GRACE_SECONDS
        for worker in self.crew:
            worker.kill(max(0.0, until - time.monotonic()) if worker.pipe.closed else 0.0)
        with self.changed:
            self.stopping = True
            self.wake_write.close()
            self.wake_read.close()
            self.changed.notify_all()


def _stop(feeder: _Feeder, thread: threading.Thread) -> None:
    feeder.stop()
    if thread is not threading.current_thread():  # the garbage collector may call from anywhere
        thread.join(timeout=5 * _GRACE_SECONDS)
