"""Compare a model after short searches with the same after a long one, end to end.

    python experiments/search_cost/budgets.py MODEL FOLDER [--seconds 60 180 600] [--trials 2000]

Each search starts with an empty log in FOLDER.  The models are compiled with each log, and with none, and run in turns in one process; the
ratios are those of neighbouring windows.  A log that exists is not searched again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import tunesmith
from tunesmith.driver.compiled import CompiledProgram
from tunesmith.graph.importers.torch.importer import from_torch
from tunesmith.ir.function import IRModule
from tunesmith.testing.torch_models import get

ROUNDS = 25
WINDOW_S = 0.2
"""Length of a window in seconds; at least three calls."""


def search(module: IRModule, log: Path, budget: tunesmith.Budget) -> None:
    """Tune the model with an empty log, unless the log exists."""
    if log.exists():
        return
    start = time.perf_counter()
    part = log.with_suffix(".part")
    part.unlink(missing_ok=True)
    report = tunesmith.tune(module, log=part, budget=budget)
    part.rename(log)
    took, checks = time.perf_counter() - start, "; ".join(str(m) for m in report.models)
    print(f"{log.stem}: {sum(t.trials for t in report.tasks)} trials in {took:.0f} s, {checks}", flush=True)


def windows(calls: dict[str, CompiledProgram], inputs: list[np.ndarray]) -> dict[str, list[float]]:
    """Median seconds of a call in each window, of all programs in turns."""
    numbers = {}
    for name, call in calls.items():
        call(*inputs)
        start = time.perf_counter()
        call(*inputs)
        numbers[name] = max(3, int(WINDOW_S / (time.perf_counter() - start)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples = []
            for _ in range(numbers[name]):
                start = time.perf_counter()
                calls[name](*inputs)
                samples.append(time.perf_counter() - start)
            found[name].append(statistics.median(samples))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=int, nargs="*", default=[60, 180, 600])
    parser.add_argument("--trials", type=int, nargs="*", default=[2000])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    model, arguments = get(given.model, "full")
    module = from_torch(model, arguments)
    budgets = {f"{n} trials": tunesmith.Budget(total_trials=n) for n in given.trials}
    budgets |= {f"{s} s": tunesmith.Budget(seconds=float(s)) for s in given.seconds}
    calls = {"untuned": tunesmith.compile(module)}
    for name, budget in budgets.items():
        log = given.folder / f"{given.model}-{name.replace(' ', '')}.jsonl"
        search(module, log, budget)
        calls[name] = tunesmith.compile(module, records=log)
    found = windows(calls, [x.numpy() for x in arguments])
    best = found[f"{max(given.trials)} trials"]
    for name, seconds in found.items():
        ratios = sorted(b / s for b, s in zip(best, seconds, strict=True))
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        print(
            f"{given.model}, {name}: {statistics.median(seconds) * 1e3:.3f} ms; {max(given.trials)} trials / this "
            f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]",
            flush=True,
        )


if __name__ == "__main__":
    main()
