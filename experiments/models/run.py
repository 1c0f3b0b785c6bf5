"""Compare whole models with baselines: `python experiments/models/run.py resnet18 --log runs/models.jsonl --trials 1000`.

A model is imported from torch, its tasks are tuned up to a number of trials (including those in the log), and it is compiled with the log.
Each system runs it in a separate process, in turns; outputs are compared with torch's first.  Prints medians over rounds, the ratio to
the fastest baseline, and our profile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.runtime.threads import pin_threads
from tunesmith.support.errors import RunError, TunesmithError
from tunesmith.support.worker_pool import WorkerPool
from tunesmith.testing.torch_models import get

BASELINES = ("torch", "torch_compile", "onnxruntime")


def main() -> None:
    """Tune, compile and compare the given models."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--log", type=Path, required=True)
    arguments.add_argument("--trials", type=int, default=0, help="total trials of all tasks of a model; 0 only compiles")
    arguments.add_argument("--against", default=",".join(BASELINES))
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found = {name: compare(name, given) for name in given.models}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def compare(name: str, given: argparse.Namespace) -> dict[str, object]:
    """Tune, compile and time one model, and print the results."""
    model, inputs = get(name, size="full")
    module = from_torch(model, inputs)
    if given.trials:
        tunesmith.tune(module, log=given.log, budget=tunesmith.Budget(total_trials=given.trials), search=tunesmith.Search(batch=16))
    start = time.perf_counter()
    compiled = tunesmith.compile(module, records=given.log if given.log.exists() else None)
    seconds = time.perf_counter() - start
    covered = sum(c.status == "used" for c in compiled.coverage)
    print(f"{name}: compiled in {seconds:.1f} s, {covered} of {len(compiled.coverage)} functions from records", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled.export_library(Path(folder, "model.so"))
        times = timed(name, str(library), ["ours", *given.against.split(",")], given.rounds, given.threads)
    ours = statistics.median(times["ours"])
    baselines = {system: statistics.median(t) for system, t in times.items() if system != "ours"}
    for system, t in times.items():
        print(f"  {system:20s} {statistics.median(t) * 1e3:8.3f} ms   {min(t) * 1e3:.3f} .. {max(t) * 1e3:.3f}")
    if baselines:
        best = min(baselines, key=lambda s: baselines[s])
        print(f"  {best} / ours = {baselines[best] / ours:.3f}", flush=True)
    print(compiled.profile(*[x.numpy() for x in inputs], repeats=20))
    return {"compile_s": seconds, "covered": covered, "functions": len(compiled.coverage), "seconds": times}


def timed(name: str, library: str, systems: list[str], rounds: int, threads: int) -> dict[str, list[float]]:
    """Seconds of each round, for each system that can be prepared."""
    reference: list[np.ndarray] | None = None
    pools: dict[str, WorkerPool] = {}
    try:
        for system in systems:
            env = pin_threads(threads) if system == "ours" else {"OMP_NUM_THREADS": str(threads)}
            pool = WorkerPool("torch_onnxruntime_systems:System", 1, (system, name, library, threads), env=env, start_timeout=600)
            try:
                outputs = request(pool, "outputs")
            except TunesmithError as error:
                print(f"  {system}: skipped: {error}")
                continue
            pools[system] = pool
            if reference is None:
                reference = outputs
            wrong = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(outputs, reference, strict=True))
            print(f"  {system}: differs from {systems[0]} by {wrong:.1e} of the largest element", flush=True)
        return _rounds(pools, rounds)
    finally:
        for pool in pools.values():
            pool.close()


def _rounds(pools: dict[str, WorkerPool], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {system: [] for system in pools}
    for _ in range(rounds):
        for system, pool in pools.items():
            times[system].append(request(pool, "time"))
    return times


def request(pool: WorkerPool, job: str) -> Any:
    """Run a job in a system's process.  Raises RunError if it fails."""
    result = pool.run([job])[0]
    if result.error is not None:
        raise RunError(f"{result.message}")
    return result.value


if __name__ == "__main__":
    main()
