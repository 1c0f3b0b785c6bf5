"""Compare whole models with baselines: `python experiments/models/run.py resnet18 --log runs/models.jsonl --trials 1000`.

A model is imported from torch, its tasks are tuned up to a number of trials (including those in the log), and it is compiled with the log.
Each system runs it in a separate process, in turns.  Outputs are compared with those of the torch model in float64 first; a system whose
error its compute precision does not explain is skipped.  Prints medians over rounds with precision and error, the ratio to the fastest
baseline of our precision, and our profile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tunesmith
from tunesmith.experiments.models.systems import PREPARE, Own
from tunesmith.experiments.models.torch_systems import float64_outputs
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.graph.passes.to_mixed_precision import POLICIES
from tunesmith.measure.evaluator.correctness import relative_error
from tunesmith.measure.precision import EPS
from tunesmith.runtime.threads import pin_threads
from tunesmith.support.errors import RunError, TunesmithError, UserError
from tunesmith.support.worker_pool import WorkerPool
from tunesmith.testing.torch_models import get

BASELINES = ("torch", "torch_compile", "onnxruntime", "openvino", "openvino_default", "ncnn")
PEERS = {"f32": "f32", "bf16": "bf16", "bf16x3": "f32"}
"""Our policy -> the precision of the baselines that it is compared with."""
LIMIT = 1e-4
"""Largest error of a correct result in float32, relative to its largest element; narrower precisions have 8 eps."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Results of one system.

    Attributes:
        precision: the compute precision.
        error: the largest difference from torch in float64, relative to the largest element of the result, over all results.
        seconds: median seconds of each round.
    """

    precision: str
    error: float
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)


def main() -> None:
    """Tune, compile and compare the given models."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--log", type=Path, required=True)
    arguments.add_argument("--trials", type=int, default=0, help="total trials of all tasks of a model; 0 only compiles")
    arguments.add_argument("--against", default=",".join(BASELINES), help=f"of {', '.join(PREPARE)}")
    arguments.add_argument("--precision", default="f32", choices=POLICIES, help="of our contractions")
    arguments.add_argument("--size", default="full", choices=("full", "small"))
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found = {name: compare(name, given) for name in given.models}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


def compare(name: str, given: argparse.Namespace) -> dict[str, object]:
    """Tune, compile and time one model, and print the results."""
    systems = ["ours", *given.against.split(",")]
    if unknown := [system for system in systems if system not in PREPARE]:
        raise UserError(f"--against: unknown system {', '.join(unknown)}. Known systems: {', '.join(PREPARE)}")
    model, inputs = get(name, size=given.size)
    module = tunesmith.with_precision(from_torch(model, inputs), given.precision)
    if given.trials:
        tunesmith.tune(module, log=given.log, budget=tunesmith.Budget(total_trials=given.trials), search=tunesmith.Search(batch=16))
    start = time.perf_counter()
    compiled = tunesmith.compile(module, records=given.log if given.log.exists() else None)
    seconds = time.perf_counter() - start
    covered = sum(c.status == "used" for c in compiled.coverage)
    print(f"{name}: compiled in {seconds:.1f} s, {covered} of {len(compiled.coverage)} functions from records", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled.export_library(Path(folder, "model.so"))
        ours = Own(str(library), given.precision)
        times = timed(name, given.size, ours, systems, float64_outputs(model, inputs), given.rounds, given.threads)
    for system, t in times.items():
        spread = f"{min(t.seconds) * 1e3:.3f} .. {max(t.seconds) * 1e3:.3f}"
        print(f"  {system:20s} {t.median * 1e3:8.3f} ms   {spread:20s} {t.precision:5s} error {t.error:.1e}")
    print(compared(times), flush=True)
    print(compiled.profile(*[x.numpy() for x in inputs], repeats=20))
    return {"compile_s": seconds, "covered": covered, "functions": len(compiled.coverage), **columns(times)}


def columns(times: dict[str, Timed]) -> dict[str, dict[str, object]]:
    """Seconds of the rounds, precision and error by system, as written to the JSON."""
    return {name: {system: getattr(t, name) for system, t in times.items()} for name in ("seconds", "precision", "error")}


def compared(times: dict[str, Timed]) -> str:
    """The ratio of the fastest baseline of our precision to ours; a sentence if one of the two is missing."""
    ours = times.get("ours")
    equal = [] if ours is None else [system for system, t in times.items() if system != "ours" and t.precision == PEERS[ours.precision]]
    if ours is None or not equal:
        return "  no ratio: ours or a baseline of its precision was skipped"
    best = min(equal, key=lambda system: times[system].median)
    return f"  {best} / ours = {times[best].median / ours.median:.3f} ({ours.precision})"


def timed(
    name: str, size: str, own: Own, systems: Sequence[str], reference: Sequence[np.ndarray], rounds: int, threads: int
) -> dict[str, Timed]:
    """Time each system that can be prepared and is correct, in turns.

    Args:
        name: the model.
        size: its size, small or full.
        own: our model.
        systems: names of `PREPARE`.
        reference: the results in float64.
        rounds: windows of each system.
        threads: number of threads.
    """
    pools: dict[str, WorkerPool] = {}
    found: dict[str, Timed] = {}
    try:
        for system in systems:
            env = pin_threads(threads) if system == "ours" else {"OMP_NUM_THREADS": str(threads)}
            arguments = (system, name, size, own, threads)
            pools[system] = WorkerPool("tunesmith.experiments.models.systems:System", 1, arguments, env=env, start_timeout=600)
            try:
                found[system] = checked(pools[system], reference)
            except TunesmithError as error:
                reason = str(error).strip().splitlines()[-1].removeprefix("tunesmith.support.errors.RunError: ")  # without the traceback
                print(f"  {system}: skipped: {reason}", flush=True)
                pools.pop(system).close()
        for _ in range(rounds):
            for system, t in found.items():
                t.seconds.append(request(pools[system], "time"))
        return found
    finally:
        for pool in pools.values():
            pool.close()


def checked(pool: WorkerPool, reference: Sequence[np.ndarray]) -> Timed:
    """Precision and error of a system; results without a batch axis are taken as those of a batch of one.

    Raises:
        RunError: the system cannot be prepared, or a result has another size or an error that its precision does not explain.
    """
    outputs, precision = request(pool, "outputs"), request(pool, "precision")
    if [output.size for output in outputs] != [expected.size for expected in reference]:
        shapes = [[array.shape for array in arrays] for arrays in (outputs, reference)]
        raise RunError(f"wrong result: the shapes are {shapes[0]}, expected {shapes[1]}")
    error = max([relative_error(output.reshape(expected.shape), expected) for output, expected in zip(outputs, reference, strict=True)])
    limit = max(LIMIT, 8 * EPS.get(precision, 0.0))
    if not error <= limit:
        raise RunError(f"wrong result: the error is {error:.1e} of the largest element, more than {limit:.1e} for {precision}")
    return Timed(precision, error)


def request(pool: WorkerPool, job: str) -> Any:
    """Run a job in a system's process.  Raises RunError if it fails."""
    result = pool.run([job])[0]
    if result.error is not None:
        raise RunError(f"{result.message}")
    return result.value


if __name__ == "__main__":
    main()
