"""Tune the workloads of a check on the device, and load the best programs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import tunesmith
from tunesmith.codegen.artifact import Artifact
from tunesmith.display.report import TaskReport
from tunesmith.display.tables import counted
from tunesmith.experiments.gpu_check.session import OutOfTime, Session
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.ops.workload import Workload, workload
from tunesmith.search.tuner import Progress

COMPUTE = ("matmul", "batch_matmul", "dense", "conv2d")
"""Compute-bound operators; all others are memory-bound and timed on data that is not cached."""
LARGE = (
    "matmul(m=1024,n=1024,k=1024)",
    "matmul(m=2048,n=2048,k=2048)",
    "matmul(m=4096,n=4096,k=4096)",
    "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1)",
    "conv2d(n=16,h=28,w=28,ci=128,co=128,kh=3,kw=3,pad=1)",
    "softmax(m=4096,n=4096)",
    "layer_norm(m=4096,n=4096)",
    "sum(shape=67108864)",
    "sum(shape=4096x4096,axis=1)",
    "relu(shape=4096x4096)",
)
SMALL = (
    "matmul(m=128,n=128,k=128)",
    "conv2d(n=1,h=14,w=14,ci=16,co=32,kh=3,kw=3,pad=1)",
    "softmax(m=128,n=256)",
    "layer_norm(m=128,n=256)",
    "sum(shape=65536)",
    "sum(shape=256x256,axis=1)",
    "relu(shape=256x256)",
)
"""Workloads for processors."""
BASELINES_SHARE = 0.27
"""Fraction of a run's time reserved for the comparison."""
_BATCH = 32


def names(session: Session) -> tuple[str, ...]:
    """The workloads of a run, as canonical text."""
    return tuple([workload(text).text for text in session.workloads or (LARGE if session.kind == "cuda" else SMALL)])


def is_cold(session: Session, text: str) -> int:
    """Bytes from which a workload's data is taken in rotation: three times the L2 cache for memory-bound workloads, else 0."""
    return 0 if text.partition("(")[0] in COMPUTE else 3 * session.target.l2_bytes


def tune_all(session: Session, found: dict[str, Any]) -> None:
    """Tune all workloads, compute-bound ones first; each gets an equal share of the time."""
    log = session.out / "records.jsonl"
    if log.exists():
        os.replace(log, log.with_name("records.before.jsonl"))
    texts, target = names(session), session.target
    reserve = BASELINES_SHARE * session.seconds
    found |= {"tasks": {}, "trials": 0, "wall": 0.0}
    groups = [[t for t in texts if is_cold(session, t) == cold] for cold in sorted({is_cold(session, t) for t in texts})]
    remaining = len(texts)
    try:
        for group in groups:
            seconds = (session.left() - reserve) * len(group) / remaining
            remaining -= len(group)
            _tune_group(session, found, group, max(10.0, seconds), is_cold(session, group[0]))
            session.save()
    finally:
        rate = found["trials"] / found["wall"] if found["wall"] else 0.0
        found["trials_per_s"] = rate
        session.say(f"{found['trials']} trials in {found['wall']:.1f} s on {target}: {rate:.2f} trials/s")


def _tune_group(session: Session, found: dict[str, Any], group: Sequence[str], seconds: float, cold: int) -> None:
    """Tune a group in one search; if that fails, each workload without a result in a separate search."""
    session.say(f"tuning {len(group)} workloads, {session.trials} trials each, {seconds:.0f} s at most")
    until = time.monotonic() + seconds
    try:
        _tune(session, found, group, seconds, cold)
    except OutOfTime:
        raise
    except Exception as error:
        session.say(f"the search failed: {type(error).__name__}: {error}. Continuing one by one")
        found["broken"] = f"{type(error).__name__}: {error}"
        for i, text in enumerate(group):
            each = (until - time.monotonic()) / (len(group) - i)
            if each < 5:
                break
            try:
                _tune(session, found, [text], each, cold)
            except OutOfTime:
                raise
            except Exception as again:
                session.say(f"{text}: {type(again).__name__}: {again}")


def _tune(session: Session, found: dict[str, Any], group: Sequence[str], seconds: float, cold: int) -> None:
    shown: dict[str, int] = {}

    def show(p: Progress) -> None:
        if p.trials and shown.get(p.task.name) != p.trials:
            shown[p.task.name] = p.trials
            # For the table, in case the search does not finish.
            seconds, sketch = (None, None) if p.best is None else (p.best.seconds * 1e6, p.best.sketch)
            found["tasks"][p.task.name] = {"trials": p.trials, "errors": dict(p.errors), "best_us": seconds, "sketch": sketch}
            best = "-" if p.best is None else f"{p.best.seconds * 1e6:.1f} us, {p.best.sketch}"
            session.say(f"  {p.task.name}: {p.trials} trials, best {best}{', errors ' + counted(p.errors) if p.errors else ''}")

    policy = MeasurePolicy(race=RacePolicy(flush_bytes=cold))
    start = time.monotonic()
    try:
        # Leaders are measured again after the time limit, about a second per workload.
        report = tunesmith.tune(
            list(group),
            session.target,
            session.out / "records.jsonl",
            budget=tunesmith.Budget(trials=session.trials, seconds=max(5.0, seconds - 2.0 * len(group))),
            search=tunesmith.Search(batch=min(_BATCH, max(1, session.trials // 2)), allocation="round-robin"),
            policy=policy,
            progress=False,
            callbacks=[show],
        )
    finally:
        found["wall"] += time.monotonic() - start
        found["trials"] += sum(shown.values())
    for task in report.tasks:
        found["tasks"][task.workload] = _summary(task)
        if task.failure:
            session.say(f"  {task.workload}: {task.failure}")
        for example in task.examples:
            session.say(f"  {example.render(task.workload).plain}")
    if report.interrupted:
        raise KeyboardInterrupt


def _summary(task: TaskReport) -> dict[str, Any]:
    return {**task.to_json(), "failure": task.failure, "sketch": None if task.best is None else task.best.sketch}


def best_programs(session: Session) -> dict[str, tuple[Record, Artifact] | str]:
    """For each workload its best record with the recompiled program, or the reason why there is none."""
    log = session.out / "records.jsonl"
    database = Database.from_log(log) if log.exists() else Database()
    programs: dict[str, tuple[Record, Artifact] | str] = {}
    for text in names(session):
        w: Workload = workload(text)
        try:
            module = tunesmith.compile(text, session.target, database, strict=True)
            record = database.best(module.coverage[0].digest, session.target.to_json())
            programs[w.text] = (record, module.artifact)
        except Exception as error:
            programs[w.text] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1].strip()}"
    return programs
