"""Run jobs in a pool of persistent worker processes that isolates the failure of a job from all others.

Each worker is a fresh interpreter that builds its job function once and then runs one job at a time.  A job
that raises, crashes, hangs, runs out of memory or prints garbage ends as a `JobResult` with an error class;
its worker is replaced and no other job is affected.  A thread of this process dispatches the jobs, so that the
workers are busy while the caller computes.
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
from tunesmith.support.registry import registered_values

_MAX_ANSWER_BYTES = 1 << 31
_KEPT_OUTPUT_BYTES = 4096
_BAD_STARTS = 3
_GRACE_SECONDS = 2.0
# Not multiprocessing.Process, which runs the caller's script again in each worker to find its functions.
_BOOTSTRAP = "import sys; sys.path[:] = {path!r}; from tunesmith.support.worker_process import main; main({descriptor}, {parent})"


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of one job.

    Attributes:
        ticket: the number returned by `submit`.
        value: return value of the job function; None on an error.
        error: None, or "error" (it raised), "crash" (its process died), "timeout" (it took too long and was killed).
        message: one line for a log; empty on success.
        exception: class name of the exception, for "error".
        detail: the traceback, or the last output of the process that died.
        seconds: time from the dispatch of the job to its answer.
    """

    ticket: int
    value: object
    error: str | None
    message: str
    exception: str
    detail: str
    seconds: float


class WorkerPool:
    """Worker processes that run the same job function.

    `factory` names a callable as `"package.module:name"`.  Each worker calls `factory(*init_args)` once and then calls
    the function that it returned with the payload of each job.  A method `close` of that function, if there is one, is
    called before a worker exits normally.  Payloads, results and `init_args` are plain picklable
    data: numbers, text, bytes, containers, arrays.  Values that this program registered, such as target kinds, are registered in
    the workers, too.

    Thread safe.  Workers start immediately, in the background.  They run in a separate session, so that Ctrl-C in a
    terminal reaches only this process, and they end when this process ends for any reason.

    Args:
        factory: dotted path of the factory.
        workers: number of processes, at least 1.
        init_args: arguments of the factory.
        timeout: seconds a job may take unless `submit` overrides it; None for no limit.
        memory_limit: bytes a worker may allocate (RLIMIT_DATA); an allocation beyond it fails inside the job.
        env: environment variables of the workers, in addition to those of this process, which they override.
        start_timeout: seconds a worker may take to start and run the factory.

    Raises:
        UserError: on invalid arguments.
        RunError: by `submit`, `next_result`, `results` and `run` when workers cannot be started or the factory
            fails: such failures are not attributed to a job.
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
        self._dispatcher = _Dispatcher(
            factory=factory,
            setup=pickle.dumps((factory, tuple(init_args), memory_limit, registered_values())),
            env={**os.environ, **(env or {})},
            start_timeout=start_timeout,
        )
        thread = threading.Thread(target=self._dispatcher.run, args=(workers,), name=f"tunesmith-pool-{factory}", daemon=True)
        thread.start()
        # Runs on close(), when the pool is collected, or at interpreter exit, whichever is first.
        self._end = weakref.finalize(self, _stop, self._dispatcher, thread)

    def submit(self, payload: object, *, timeout: float | None = None) -> int:
        """Queue a job and return its ticket.  `timeout` in seconds overrides the pool's."""
        return self._dispatcher.submit(pickle.dumps(payload), self.timeout if timeout is None else timeout)

    def next_result(self, wait_seconds: float | None = None) -> JobResult | None:
        """The next result, in order of completion.

        Blocks until one is ready; None when no job is outstanding, or after `wait_seconds`.
        """
        return self._dispatcher.next_result(wait_seconds)

    def results(self) -> Iterator[JobResult]:
        """Results in order of completion until no job is outstanding; more may be submitted meanwhile."""
        while (result := self.next_result()) is not None:
            yield result

    def run(self, payloads: Iterable[object], *, timeout: float | None = None) -> list[JobResult]:
        """Run these jobs and return their results in the order of the payloads.  The pool must be idle."""
        if self.outstanding:
            raise UserError(f"run() needs an idle pool, but {self.outstanding} jobs are outstanding: take their results first")
        tickets = [self.submit(payload, timeout=timeout) for payload in payloads]
        by_ticket = {result.ticket: result for result in self.results()}
        return [by_ticket[ticket] for ticket in tickets]

    @property
    def outstanding(self) -> int:
        """Jobs submitted whose result has not been taken."""
        return self._dispatcher.outstanding

    def close(self) -> None:
        """End the workers: idle ones exit normally, busy ones are killed.  May be called twice."""
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
    """A worker process, its pipe, and its current job.  Used only by the dispatcher thread."""

    def __init__(self, setup: bytes, env: Mapping[str, str], start_timeout: float) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = MessageEnd(ours, _MAX_ANSWER_BYTES)
        bootstrap = _BOOTSTRAP.format(path=sys.path, descriptor=theirs.fileno(), parent=os.getpid())
        try:
            # A separate session: the worker is killed together with its child processes, and Ctrl-C does not reach it.
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
        self.stdout = self.process.stdout
        self.stdout_open = True
        os.set_blocking(self.stdout.fileno(), False)
        self.output = b""
        self.ready = False
        self.job: _Job | None = None
        self.since = time.monotonic()
        self.deadline: float | None = self.since + start_timeout
        with contextlib.suppress(OSError):  # the process is already dead, which the end of its pipe will show
            self.pipe.put(setup)

    def begin(self, job: _Job) -> None:
        """Send the worker a job."""
        self.output = b""
        self.job = job
        self.since = time.monotonic()
        self.deadline = None if job.timeout is None else self.since + job.timeout
        with contextlib.suppress(OSError):
            self.pipe.put(job.payload)

    def finish(self, value: object = None, error: str | None = None, message: str = "", exception: str = "", detail: str = "") -> JobResult:
        """The result of the current job; the worker is idle afterwards."""
        assert self.job is not None
        result = JobResult(self.job.ticket, value, error, message, exception, detail, time.monotonic() - self.since)
        self.job, self.deadline = None, None
        return result

    def drain(self) -> None:
        """Read the available output without blocking; only the last bytes are kept."""
        for _ in range(16):  # long output is read in portions, so that other workers are served
            try:
                text = os.read(self.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not text:
                self.stdout_open = False
                return
            self.output = (self.output + text)[-_KEPT_OUTPUT_BYTES:]

    def kill(self, grace: float = 0.0) -> str:
        """Kill the process and its children, after `grace` seconds to exit by itself.  Returns a description of its exit."""
        until = time.monotonic() + grace
        while not self._ended() and time.monotonic() < until:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        self.drain()
        self.pipe.close()
        self.stdout.close()
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _ended(self) -> bool:
        """Whether the process has exited.  It is not reaped, so that its pid cannot be reused before it is killed."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Dispatcher:
    """The thread of a pool: spawns workers, dispatches jobs, collects answers, and replaces dead workers.

    `pending`, `done`, `outstanding`, `failure`, `stopping` and `woken` are shared with callers, guarded by `changed`.
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
        self.workers: list[_Worker] = []
        self.bad_starts = 0
        self.wake_read, self.wake_write = Pipe(duplex=False)
        self.woken = False  # at most one message is in the pipe: a full one would block submit with `changed` held

    # Called by other threads.

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

    # Called by the dispatcher thread.

    def run(self, workers: int) -> None:
        try:
            while not self.stopping and self.failure is None:
                self._spawn(workers)
                self._dispatch()
                self._listen()
        except BaseException:
            self._fail(f"Its dispatcher failed:\n{traceback.format_exc()}")
        finally:
            self._end_workers()

    def _spawn(self, workers: int) -> None:
        while len(self.workers) < workers and self.failure is None:
            try:
                self.workers.append(_Worker(self.setup, self.env, self.start_timeout))
            except OSError as error:
                self._bad_start(f"the system refuses to start a process: {error}")

    def _dispatch(self) -> None:
        for worker in self.workers:
            if worker.ready and worker.job is None:
                with self.changed:
                    if not self.pending:
                        return
                    job = self.pending.popleft()
                worker.begin(job)

    def _listen(self) -> None:
        """Wait for the next event and handle it."""
        deadlines = [worker.deadline for worker in self.workers if worker.deadline is not None]
        left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        with selectors.DefaultSelector() as selector:
            selector.register(self.wake_read, selectors.EVENT_READ)
            for worker in self.workers:
                selector.register(worker.pipe, selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.pipe.unsent else 0))
                if worker.stdout_open:
                    selector.register(worker.stdout, selectors.EVENT_READ)
            happened = {key.fileobj: events for key, events in selector.select(left)}
        if self.wake_read in happened:
            with self.changed:
                self.wake_read.recv_bytes()
                self.woken = False
        for worker in list(self.workers):
            if worker.stdout in happened:
                worker.drain()
            events = happened.get(worker.pipe, 0)
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(OSError):
                    worker.pipe.send()
            received = events & selectors.EVENT_READ and self._receive(worker)
            if not received and worker.deadline is not None and time.monotonic() >= worker.deadline:
                self._handle_timeout(worker)

    def _receive(self, worker: _Worker) -> bool:
        """Receive a message of a worker, or detect its death; False if the message is incomplete."""
        try:
            message = worker.pipe.take()
            if message is None:
                return False
            kind, *rest = pickle.loads(message)
        except Exception:  # the end of the pipe, or garbage from a process with corrupted memory
            self._handle_death(worker)
            return True
        self._handle_message(worker, kind, rest)
        return True

    def _handle_message(self, worker: _Worker, kind: object, rest: list[Any]) -> None:
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
            if exception == "MemoryError":  # the next job would run out of memory too
                self._remove(worker)

    def _handle_death(self, worker: _Worker) -> None:
        status = self._remove(worker, grace=1.0)
        output = worker.output.decode("utf-8", "backslashreplace")
        if worker.job is not None:
            self._deliver(worker.finish(None, "crash", f"the worker process died ({status})", detail=output))
        else:
            self._bad_start(f"a worker process died without a job ({status}). Its last output:\n{output}")

    def _handle_timeout(self, worker: _Worker) -> None:
        self._remove(worker)
        output = worker.output.decode("utf-8", "backslashreplace")
        if worker.job is not None:
            self._deliver(worker.finish(None, "timeout", f"killed after {worker.job.timeout:g} s", detail=output))
        else:
            self._bad_start(f"a worker process was not ready after {self.start_timeout:g} s. Its last output:\n{output}")

    def _remove(self, worker: _Worker, grace: float = 0.0) -> str:
        self.workers.remove(worker)
        return worker.kill(grace)

    def _bad_start(self, reason: str) -> None:
        """Count a failure that is not attributed to a job; the pool fails after a few in a row without a completed job."""
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

    def _end_workers(self) -> None:
        """End all workers.  Idle ones see the end of their pipe and exit normally, all at the same time."""
        for worker in self.workers:
            if worker.ready and worker.job is None:
                worker.pipe.close()
        until = time.monotonic() + _GRACE_SECONDS
        for worker in self.workers:
            worker.kill(max(0.0, until - time.monotonic()) if worker.pipe.closed else 0.0)
        with self.changed:
            self.stopping = True
            self.wake_write.close()
            self.wake_read.close()
            self.changed.notify_all()


def _stop(dispatcher: _Dispatcher, thread: threading.Thread) -> None:
    dispatcher.stop()
    if thread is not threading.current_thread():  # the garbage collector may call this from any thread
        thread.join(timeout=5 * _GRACE_SECONDS)
