"""Check correctness on the device: the driver's conformance tests, and configurations of every sketch against numpy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunesmith.driver.workloads import subject_of_text
from tunesmith.experiments.gpu_check.session import Session
from tunesmith.ir.target.target import Target
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.search.task import Task
from tunesmith.testing.gpu_rows import HALVES, WORKLOADS, bfloat16_program, rows

ROOT = Path(__file__).resolve().parents[2]
ONCE = MeasurePolicy(race=RacePolicy(min_repeat_ms=0.0, repeats=1, patience_s=0.0), verify="always", law_every=1_000_000)
TESTS = {"opencl": ("tests/runtime/device/test_opencl.py",)}
"""Unmarked tests of a driver; those for CUDA have the marker `gpu`."""


def conformance(session: Session, found: dict[str, Any]) -> None:
    """Run both checks; the tests may take half of the section's time."""
    limit = min(0.2 * session.seconds, session.left())
    until = time.monotonic() + limit
    _tests(session, found, limit / 2)
    session.save()
    _rows(session, found, until)
    wrong = found["rows_wrong"]
    session.say(f"sketches: {found['rows_right']} rows correct, {len(wrong)} wrong, {found['rows_left']} not tried")
    for line in wrong[:12]:
        session.say(f"  WRONG {line}")


def _tests(session: Session, found: dict[str, Any], limit: float) -> None:
    """Run the driver's tests in a separate process, because they provoke errors that may make the device unusable for a process."""
    files = _files(session.kind)
    if not files:
        found["tests"] = "there are no tests here (not a checkout of the repository)"
        session.say(f"driver: {found['tests']}")
        return
    marker = ["-m", "gpu"] if session.kind == "cuda" else []
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "--tb=short", *marker, *files]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=max(10.0, limit), check=False)
        lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
        code = done.returncode
    except subprocess.TimeoutExpired:
        lines, code = [f"not finished after {limit:.0f} s"], -1
    (session.out / "driver_tests.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found["tests"], found["tests_ok"] = (lines or ["no output"])[-1], code == 0
    session.say(f"driver: {found['tests']}")
    if code:
        for line in [line for line in lines if re.match(r"(FAILED|ERROR|E  )", line)][:12] or lines[-8:]:
            session.say(f"  {line}")


def _files(kind: str) -> list[str]:
    if kind in TESTS:
        return [name for name in TESTS[kind] if (ROOT / name).is_file()]
    marked = [p for p in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in p.read_text(encoding="utf-8")]
    return sorted([str(p.relative_to(ROOT)) for p in marked])


def _rows(session: Session, found: dict[str, Any], until: float) -> None:
    """Check configurations of every sketch with the builders and the runner of a search."""
    target = session.target
    found |= {"rows_right": 0, "rows_left": 0, "rows_wrong": []}
    with LocalBuilder() as builder, LocalRunner(1) as runner, Measurer(target, builder, runner, ONCE) as measurer:
        for task in _tasks(session, target):
            candidates = [(k, row) for k, sketch in enumerate(task.space.sketches) for row in rows(sketch, task.name, k)]
            if time.monotonic() > until:
                found["rows_left"] += len(candidates)
                continue
            for record in measurer.measure(task.measured, candidates):
                if record.verified:
                    found["rows_right"] += 1
                else:
                    why = "not verified" if record.error is None else f"{record.error.kind}: {record.error.message.strip()}"
                    found["rows_wrong"].append(f"{task.name}, {record.sketch} {list(record.row)}: {why[:600]}")


def _tasks(session: Session, target: Target) -> Iterator[Task]:
    for text in session.workloads or (*WORKLOADS, *HALVES):
        yield subject_of_text(text).task(target)
    func, reference = bfloat16_program()
    yield Task("bfloat16 relu / 2", func, target, reference)
