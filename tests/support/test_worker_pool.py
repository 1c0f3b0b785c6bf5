"""The worker pool: failures are isolated to their job, and no process is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunesmith.ir.target.attributes import TARGET_KINDS, Attribute, TargetKind
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.worker_pool import WorkerPool

JOBS = """
import ctypes, os, signal, stat, subprocess, sys, time

def factory(base=0):
    held = []

    def job(payload):
        kind, *rest = payload
        if kind == "add": return base + rest[0]
        if kind == "pid": return os.getpid()
        if kind == "sleep": time.sleep(rest[0]); return rest[0]
        if kind == "raise": raise ValueError("first line\\nsecond line")
        if kind == "exit": sys.exit(3)
        if kind == "mute": raise Mute()
        if kind == "_exit": print("last words", flush=True); os._exit(3)
        if kind == "segfault": ctypes.string_at(0)
        if kind == "allocate": held.append(bytearray(rest[0])); return len(held)
        if kind == "print":
            for _ in range(rest[0]): print("x" * 99)
            return None
        if kind == "env": return os.environ.get(rest[0])
        if kind == "unpicklable": return lambda: None
        if kind == "child": return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
        if kind == "close pipe": os.closerange(3, 100); time.sleep(600)
        if kind == "echo": return rest[0]
        if kind == "freeze":  # in the middle of an answer
            pipe = next(fd for fd in range(3, 100) if is_socket(fd))
            os.write(pipe, b"\\0\\0\\1\\0")
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "wait for":
            while not os.path.exists(rest[0]): time.sleep(0.005)
            return os.getpid()
        if kind == "meet":
            mine, other = rest
            open(mine, "w").close()
            return job(("wait for", other))
    return job

class Mute(Exception):
    def __str__(self): raise ValueError("no")

def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False

class Closed:
    def __init__(self, path): self.path = path
    def __call__(self, payload): return payload
    def close(self): open(self.path, "w").close()

def raises(): raise OSError("no such device")
def dies(): os._exit(7)
def hangs(): time.sleep(600)
def returns_none(): return None
def targets():
    from tunesmith.ir.target.target import Target
    return lambda text: str(Target(text))
"""


@pytest.fixture(scope="module")
def jobs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "jobs_under_test.py").write_text(JOBS)
    return folder


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, jobs_folder: Path) -> None:
    monkeypatch.syspath_prepend(jobs_folder)  # workers get this process's sys.path


@pytest.fixture
def make_pool() -> Iterator[Callable[..., WorkerPool]]:
    pools: list[WorkerPool] = []

    def make(name: str = "factory", workers: int = 1, **options: object) -> WorkerPool:
        pools.append(WorkerPool(f"jobs_under_test:{name}", workers, **options))  # type: ignore[arg-type]
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _gone(pid: int) -> bool:
    """Wait for the process to end; the time limit only makes the test fail instead of hang."""
    until = time.monotonic() + 30
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _alive(pid)


def test_run_keeps_the_order_of_the_payloads(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(workers=2, init_args=(100,))
    results = pool.run([("sleep", 0.2), ("add", 1), ("add", 2)])
    assert [result.value for result in results] == [0.2, 101, 102]
    assert all(result.error is None and result.message == "" and result.seconds >= 0 for result in results)
    assert pool.outstanding == 0 and pool.next_result() is None


def test_the_job_function_is_closed_when_its_worker_ends(make_pool: Callable[..., WorkerPool], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    pool = make_pool("Closed", init_args=(str(closed),))
    assert pool.run([1])[0].value == 1 and not closed.exists()
    pool.close()
    assert closed.exists()


def test_results_come_in_order_of_completion(make_pool: Callable[..., WorkerPool], tmp_path: Path) -> None:
    pool = make_pool(workers=2)
    slow, fast = pool.submit(("wait for", str(tmp_path / "go"))), pool.submit(("add", 1))
    first = pool.next_result()
    (tmp_path / "go").touch()
    second = pool.next_result()
    assert first is not None and second is not None
    assert (first.ticket, second.ticket) == (fast, slow)


def test_jobs_may_be_submitted_while_results_are_taken(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    pool.submit(("add", 3))
    seen = []
    for result in pool.results():
        seen.append(result.value)
        if len(seen) < 4:
            pool.submit(("add", 3 - len(seen)))
    assert seen == [3, 2, 1, 0]


def test_failures_are_isolated_to_their_job(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(workers=2, timeout=60.0)
    bad = [("raise",), ("segfault",), ("exit",), ("_exit",), ("unpicklable",), ("close pipe",)]
    payloads = [payload for job in bad for payload in (job, ("add", 5))]
    results = pool.run(payloads)
    assert [result.value for result in results[1::2]] == [5] * len(bad)
    raised, segfault, exited, hard_exit, unpicklable, closed = results[::2]
    assert (raised.error, raised.exception, raised.message) == ("error", "ValueError", "ValueError: first line")
    assert "second line" in raised.detail and "in job" in raised.detail
    assert (segfault.error, segfault.message) == ("crash", "the worker process died (signal SIGSEGV)")
    assert "string_at" in segfault.detail, "the stack of a crash is kept"
    assert (exited.error, exited.message) == ("error", "SystemExit: 3")
    assert (hard_exit.error, hard_exit.message, hard_exit.detail) == ("crash", "the worker process died (exit status 3)", "last words\n")
    assert unpicklable.error == "error" and "pickle" in unpicklable.detail
    assert closed.error == "crash"


def test_a_timeout_kills_only_its_worker(make_pool: Callable[..., WorkerPool], tmp_path: Path) -> None:
    pool = make_pool(workers=2)
    one, other, go = (str(tmp_path / name) for name in ("one", "other", "go"))
    pids = {result.value for result in pool.run([("meet", one, other), ("meet", other, one)])}
    assert len(pids) == 2
    patient = pool.submit(("wait for", go))
    hung = pool.submit(("sleep", 600), timeout=0.3)
    first = pool.next_result()
    assert first is not None and (first.ticket, first.error, first.message) == (hung, "timeout", "killed after 0.3 s")
    Path(go).touch()
    second = pool.next_result()
    assert second is not None and (second.ticket, second.error) == (patient, None)
    assert second.value in pids, "the other worker was replaced too"


def test_child_processes_of_a_killed_job_end_with_it(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    child = pool.run([("child",)])[0].value
    assert isinstance(child, int) and _alive(child)
    assert pool.run([("sleep", 600)], timeout=0.1)[0].error == "timeout"
    assert _gone(child)


def test_memory_limit_fails_the_job_and_replaces_the_worker(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(memory_limit=1 << 30)
    held, refused, after = pool.run([("allocate", 600 << 20), ("allocate", 600 << 20), ("allocate", 600 << 20)])
    assert held.value == 1
    assert (refused.error, refused.exception) == ("error", "MemoryError")
    assert after.value == 1, "the next job has the memory of a new process"


def test_output_is_captured_and_bounded(make_pool: Callable[..., WorkerPool], capfd: pytest.CaptureFixture[str]) -> None:
    pool = make_pool()
    pool.submit(("print", 50_000))
    pool.submit(("_exit",))
    printed, died = pool.results()
    assert printed.error is None
    assert died.detail.endswith("last words\n") and len(died.detail) <= 4096
    assert capfd.readouterr() == ("", "")


def test_large_payloads_and_results(make_pool: Callable[..., WorkerPool]) -> None:
    data = bytes(range(256)) * (32 << 10)
    assert [result.value == data for result in make_pool(workers=2).run([("echo", data)] * 4)] == [True] * 4


def test_many_queued_jobs_do_not_block_the_caller(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    for number in range(30_000):
        pool.submit(("add", number))
    assert pool.outstanding == 30_000
    pool.close()
    assert sum(1 for _ in pool.results()) < 30_000, "a closed pool returns the finished results and ends"


def test_workers_get_the_environment(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool(env={"OMP_PROC_BIND": "close"})
    assert [result.value for result in pool.run([("env", "OMP_PROC_BIND"), ("env", "PATH")])] == ["close", os.environ["PATH"]]


def test_waiting_has_a_limit(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    pool.submit(("sleep", 600))
    assert pool.next_result(wait_seconds=0.05) is None
    assert pool.outstanding == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "Starting one raised:.*OSError: no such device"),
        ("absent", "cannot import 'jobs_under_test:absent': jobs_under_test has no 'absent'"),
        ("returns_none", "jobs_under_test:returns_none returned None; it must return the function that does a job"),
        ("dies", r"[3-9] times in a row a worker process died without a job \(exit status 7\)"),
    ],
)
def test_failed_starts_are_not_attributed_to_a_job(make_pool: Callable[..., WorkerPool], name: str, reason: str) -> None:
    pool = make_pool(name, workers=2)
    pool.submit(("add", 1))
    for _ in range(2):
        with pytest.raises(RunError, match=f"(?s)the workers of jobs_under_test:{name} cannot do any job. .*{reason}"):
            pool.next_result()
    with pytest.raises(RunError, match="cannot do any job"):
        pool.submit(("add", 1))


def test_a_factory_that_hangs_fails_the_pool(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool("hangs", start_timeout=0.2)
    pool.submit(("add", 1))
    with pytest.raises(RunError, match=r"3 times in a row a worker process was not ready after 0.2 s"):
        pool.next_result()


def test_an_idle_worker_that_is_killed_is_replaced(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    first = pool.run([("pid",)])[0].value
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    assert _gone(first)
    second = pool.run([("pid",)])[0]
    assert second.error in (None, "crash")  # it may get the job before its death is noticed
    assert pool.run([("pid",)])[0].error is None


def test_refusals(make_pool: Callable[..., WorkerPool]) -> None:
    with pytest.raises(UserError, match="needs at least 1 worker, not 0"):
        make_pool(workers=0)
    pool = make_pool()
    pool.submit(("sleep", 600))
    with pytest.raises(UserError, match="needs an idle pool, but 1 jobs are outstanding"):
        pool.run([("add", 1)])
    pool.close()
    pool.close()
    with pytest.raises(RunError, match="is closed: make a new one"):
        pool.submit(("add", 1))
    assert pool.next_result() is None


def test_close_and_collection_leave_no_process() -> None:
    with WorkerPool("jobs_under_test:factory", 2) as pool:
        pids = [result.value for result in pool.run([("sleep", 0.2), ("sleep", 0.2), ("pid",), ("pid",)])[2:]]
        pool.submit(("sleep", 600))
    assert all(isinstance(pid, int) and _gone(pid) for pid in pids)
    forgotten = WorkerPool("jobs_under_test:factory", 1)
    pid = forgotten.run([("pid",)])[0].value
    del forgotten
    gc.collect()
    assert isinstance(pid, int) and _gone(pid)


def _script(jobs_folder: Path, tail: str) -> list[str]:
    head = (
        f"import sys; sys.path.insert(0, {str(jobs_folder)!r})\n"
        "from tunesmith.support.worker_pool import WorkerPool\n"
        "pool = WorkerPool('jobs_under_test:factory', 1)\n"
        "print(pool.run([('pid',)])[0].value, flush=True)\n"
        "pool.submit(('sleep', 600))\n"
    )
    return [sys.executable, "-c", head + tail]


@pytest.mark.parametrize("tail", ["", "raise SystemExit(0)\n", "del pool\n", "sys.setswitchinterval(10)\n"])
def test_the_interpreter_exits_with_a_job_running(jobs_folder: Path, tail: str) -> None:
    """Including scripts without a __main__ guard, because workers do not run them again."""
    done = subprocess.run(_script(jobs_folder, tail), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert _gone(int(done.stdout))


def test_workers_end_when_this_process_is_killed(jobs_folder: Path) -> None:
    with subprocess.Popen(_script(jobs_folder, "import time; time.sleep(600)\n"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert _gone(pid)


def test_ctrl_c_reaches_the_caller_and_not_the_job(jobs_folder: Path, tmp_path: Path) -> None:
    tail = (
        f"pool.close(); pool = WorkerPool('jobs_under_test:factory', 1)\ngo = {str(tmp_path / 'go')!r}\n"
        "pool.submit(('wait for', go))\n"
        "import os, signal, threading\n"
        "threading.Timer(0.1, lambda: os.killpg(os.getpgid(0), signal.SIGINT)).start()\n"
        "try:\n    list(pool.results())\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
        "open(go, 'w').close()\n"
        "print([result.error for result in pool.results()])\n"
    )
    done = subprocess.run(_script(jobs_folder, tail), capture_output=True, text=True, timeout=120, start_new_session=True)
    assert done.stdout.splitlines()[1:] == ["interrupted", "[None]"], done.stderr


def test_a_worker_frozen_during_its_answer_is_a_timeout(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    pool.run([("add", 1)])
    pool.submit(("freeze",), timeout=0.5)
    pool.submit(("add", 2))
    results = [pool.next_result(30), pool.next_result(30)]
    assert [r and (r.error, r.value) for r in results] == [("timeout", None), (None, 2)]


def test_a_frozen_worker_that_receives_no_job_is_a_timeout(make_pool: Callable[..., WorkerPool]) -> None:
    pool = make_pool()
    (found,) = pool.run([("pid",)])
    assert isinstance(found.value, int)
    os.kill(found.value, signal.SIGSTOP)
    pool.submit(("echo", bytes(8 << 20)), timeout=0.5)
    pool.submit(("echo", bytes(8 << 20)))
    results = [pool.next_result(30), pool.next_result(30)]
    assert [r and r.error for r in results] == ["timeout", None]


def test_an_exception_whose_str_raises_is_an_error(make_pool: Callable[..., WorkerPool]) -> None:
    results = make_pool().run([("mute",), ("add", 1)])
    assert [(r.error, r.exception, r.value) for r in results] == [("error", "Mute", None), (None, "", 1)]


def test_workers_know_the_values_that_the_program_registered(make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("_values", "_sources"):
        monkeypatch.setattr(TARGET_KINDS, part, dict(getattr(TARGET_KINDS, part)))
    TARGET_KINDS.register(
        "box", TargetKind("llvm", {"mcpu": "cortex-a72", "num_cores": 4}, (Attribute("slot", int, identity=True, default=7),))
    )
    TARGET_KINDS.register("local", TargetKind("llvm", attributes=(Attribute("slot", str, check=lambda text: text),)))  # not picklable
    (result,) = make_pool("targets").run(["box -slot=8"])
    assert result.value == "box -mcpu=cortex-a72 -num-cores=4 -slot=8", result
