"""After a tuner is killed, its measurements are in the log and the next run resumes from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.search.retake import is_retake

_TUNE = """
import sys
import tunesmith
from tunesmith.ir.target.target import Target
if __name__ == "__main__":
    search = tunesmith.Search(batch=4, leaders=0)
    tunesmith.tune("matmul(m=64,n=48,k=32)", Target("llvm"), sys.argv[1], budget=int(sys.argv[2]), search=search, workers=1, progress=False)
"""


def start(script: Path, log: Path, trials: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(script), str(log), str(trials)], start_new_session=True)


def test_sigkill_loses_nothing_and_the_run_resumes(tmp_path: Path) -> None:
    script, log = tmp_path / "run.py", tmp_path / "log.jsonl"
    script.write_text(_TUNE)
    process = start(script, log, 4000)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or log.read_bytes().count(b"\n") < 10):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    written = log.read_bytes()
    # A kill during a write leaves a truncated line: add one if there is none.
    log.write_bytes(written + b'{"v": 1, "kind": "record", "workload": "abc')
    before = RecordLog(log).load()
    assert len(before.records) >= 9
    assert before.report.bad_count == 1
    trials = len({r.candidate for r in before.records}) + 6
    again = start(script, log, trials)
    assert again.wait(120) == 0
    after = RecordLog(log).load()
    assert {r.identity for r in before.records} <= {r.identity for r in after.records}
    candidates = [r.candidate for r in after.records if not is_retake(r)]
    assert len(candidates) == len(set(candidates)) == trials
    database = Database.from_log(log)
    (digest, target), *_ = database.tasks()
    assert database.best(digest, target) is not None
