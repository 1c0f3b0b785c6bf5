"""Measure the sixty functions: `python experiments/functions/run.py untuned|tuned|ranking OUT.jsonl`.

python experiments/functions/run.py untuned runs/functions/untuned.jsonl                    # compiled without records
python experiments/functions/run.py tuned runs/functions/tuned.jsonl --trials 64 --logs runs/functions/logs
python experiments/functions/run.py ranking runs/functions/ranking.jsonl --trials 48        # random candidates, without torch
python experiments/functions/table.py runs/functions/untuned.jsonl

Each function is one line of OUT.jsonl.  A repeated run measures the missing ones, with --again also the noisy ones, and continues the logs.
The systems of a line are `ours` (tunesmith.compile, with the log if tuned), `first` (the first choice of the analytic model, unmeasured),
`eager` and `inductor` (torch.compile).  A worker process compares their outputs with those of eager, then times them in turns, in quiet
windows.  A `ranking` run measures random candidates, for the rank correlation of the analytic model; those of a search are near each other.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.costmodel.metrics import spearman
from tunesmith.experiments.functions.function import Function
from tunesmith.experiments.functions.registry import FUNCTIONS
from tunesmith.experiments.functions.torch_systems import Job, target_of
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.runtime.threads import pin_threads
from tunesmith.search.task import Task
from tunesmith.support import json_lines
from tunesmith.support.errors import TunesmithError
from tunesmith.support.worker_pool import WorkerPool

JOB_SECONDS = 900.0
"""Limit of one function: torch.compile may need a minute."""
TO_THE_END = MeasurePolicy(RacePolicy(give_up=1e6, patience_s=10.0))
"""Slow candidates have all samples, repeated in quiet windows; a race would give them one."""
Line = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Append a line for each function that has none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("untuned", "tuned", "ranking"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(FUNCTIONS), help="names, separated by commas")
    parser.add_argument("--trials", type=int, default=64, help="candidates of each function, with those in the log")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="folder of the logs; by default beside OUT.jsonl")
    parser.add_argument("--limit", type=float, default=12.0, help="seconds of timing for each system, if the machine is busy")
    parser.add_argument("--again", action="store_true", help="measure functions again whose times are noisy or missing")
    parser.add_argument("--no-inductor", action="store_true", help="without torch.compile")
    parser.add_argument("--small", action="store_true", help="with the sizes of the tests")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only.split(",")) - set(FUNCTIONS)):
        parser.error(f"no function is called {', '.join(unknown)}; known: {', '.join(FUNCTIONS)}")
    if given.out.is_dir() or not given.out.suffix:
        parser.error(
            f"{given.out} must be a file with a suffix, such as {given.out}.jsonl: logs are written to a folder of its name without it"
        )
    lines = read(given.out)
    if other := {line["mode"] for line in lines} - {given.mode}:
        parser.error(f"{given.out} has the results of a run that was {other.pop()}; name another file")
    done = {line["name"] for line in lines if not given.again or line.get("clean", False)}
    todo = [FUNCTIONS[name] for name in given.only.split(",") if name not in done]
    env = pin_threads(given.threads) | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    factory = "tunesmith.experiments.functions.torch_systems:Systems"
    pool = WorkerPool(factory, 1, (given.threads, not given.no_inductor), timeout=JOB_SECONDS, env=env)
    try:
        for i, f in enumerate(todo):
            line = measured(f, given, pool)
            json_lines.append(given.out, [line])
            print(f"{i + 1} of {len(todo)}: {shown(line)}", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the same command measures the other functions", file=sys.stderr)
        return 130
    finally:
        pool.close()
    return 0


def read(path: Path) -> list[Line]:
    """The last line of each function in a file, without damaged lines; none if there is no file."""
    found = [line for _, line in json_lines.read(path) if isinstance(line, dict)] if path.exists() else []
    return list({line["name"]: line for line in found}.values())


def measured(f: Function, given: argparse.Namespace, pool: WorkerPool) -> Line:
    """The line of one function."""
    sizes = f.small if given.small else ()
    line: Line = {"name": f.name, "family": f.family, "mode": given.mode, "threads": given.threads, "errors": {}}
    log: Path | None = None
    target = target_of(given.threads)
    task = Task(f.name, f.build(*sizes), target if given.mode == "untuned" else calibrated(target))
    line |= space(task)
    if given.mode != "untuned":
        log = (given.logs or given.out.with_suffix("")) / f"{f.name}.jsonl"
        log.parent.mkdir(parents=True, exist_ok=True)
        line |= tuned(task, log, given)
    if given.mode == "ranking":
        return line
    [result] = pool.run([tuple(Job(f.name, sizes, None if log is None else str(log), given.limit))])
    if result.error is not None:
        line["errors"]["process"] = f"{result.error}: {result.message}"
        return line
    times: Line = result.value  # type: ignore[assignment]
    return line | times | {"errors": line["errors"] | times["errors"]}


def space(task: Task) -> Line:
    """The number of sketches, the seconds of their generation, and whether the fallback rule made them."""
    start = time.perf_counter()
    try:
        names = [s.name for s in task.space.sketches]
    except TunesmithError as error:
        return {"sketches": 0, "fallback": False, "space_s": time.perf_counter() - start, "space_error": str(error)}
    return {"sketches": len(names), "fallback": all(n.startswith("fallback") for n in names), "space_s": time.perf_counter() - start}


def tuned(task: Task, log: Path, given: argparse.Namespace) -> Line:
    """The facts of a search.  Raises KeyboardInterrupt if it was interrupted."""
    start = time.perf_counter()
    sampler = "random" if given.mode == "ranking" else "evolutionary"
    budget, search = tunesmith.Budget(trials=given.trials), tunesmith.Search(sampler, seed=given.seed)
    policy = TO_THE_END if given.mode == "ranking" else None
    report = tunesmith.tune(task.func, task.target, log, budget=budget, search=search, policy=policy, progress=False)
    if report.interrupted:
        raise KeyboardInterrupt
    (found,) = report.tasks
    line: Line = {
        "tune_s": time.perf_counter() - start,
        "trials": found.trials,
        "candidate_errors": dict(found.errors),
        "sketch": None if found.best is None else found.best.sketch,
        "record_us": found.best_us,
    }
    if found.failure:
        line["tune_failure"] = found.failure
    if found.best is not None:
        line |= correlation(task, Database.from_log(log), task.target)
    return line


def correlation(task: Task, database: Database, target: Target) -> Line:
    """Spearman's rank correlation of analytic and measured seconds over a log, and the number of candidates that it is over.

    All candidates with a valid time count.  Most are not verified: a race ends before, for the slower ones.  The correlation over the
    verified ones alone, which are the fastest, is a second entry.
    """
    records = database.top(task.digest, target.to_json(), sys.maxsize, unverified=True)
    measured: list[float] = []
    predicted: list[float] = []
    verified: list[bool] = []
    for sketch in task.space.sketches:
        mine = [r for r in records if r.sketch == sketch.name]
        if mine:
            measured += [r.seconds for r in mine]
            verified += [r.verified for r in mine]
            predicted += sketch.analytic(target).seconds(np.array([r.row for r in mine], np.int64)).tolist()
    line: Line = {"candidates": len(measured), "verified": sum(verified)}
    seconds, scores, is_verified = np.array(measured), -np.array(predicted), np.array(verified, bool)
    for name, chosen in (("rank_correlation", np.ones_like(is_verified)), ("rank_correlation_verified", is_verified)):
        if len(set(seconds[chosen])) > 1:
            line[name] = spearman(seconds[chosen], scores[chosen], np.zeros(int(chosen.sum()), np.int64))
    return line


def shown(line: Line) -> str:
    """A line of progress."""
    times = ", ".join([f"{system} {t['median']:.1f}" for system, t in line.get("us", {}).items()])
    if line["mode"] == "ranking":
        count, found = line.get("candidates", 0), line.get("rank_correlation", math.nan)
        return f"{line['name']}: rank correlation {found:.2f} of {count} candidates"
    notes = "".join([f"; {system}: {message.splitlines()[0][:150]}" for system, message in line["errors"].items()])
    return f"{line['name']}: {times or 'no times'} us{'' if line.get('clean', True) else ' (noisy)'}{notes}"


if __name__ == "__main__":
    sys.exit(main())
