"""Compare the pace of searches of two checkouts: trials a second, and seconds to the same time of the kernel.

    python experiments/search_cost/pace.py BEFORE AFTER OUT.jsonl [--trials 96] [--seeds 5]

BEFORE and AFTER are the `src` folders of two checkouts.  Both search the same workloads with the same seeds, in turns, each in a fresh
process with an empty log.  Results are kept in OUT.jsonl, one line a search, and a run continues after the last.  Intervals are those of
Student's t of the logarithms of ratios, over seeds and workloads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.driver.bench.ratio import Ratio, ratio

WORKLOADS = (
    "matmul(m=128,n=128,k=128)",
    "matmul(m=512,n=512,k=512)",
    "matmul(m=2048,n=2048,k=2048)",
    "softmax(m=1024,n=1024)",
    "layer_norm(m=512,n=1024)",
    "conv2d(n=1,h=28,w=28,ci=64,co=64,kh=3,kw=3,pad=1)",
    "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "batch_matmul(b=12,m=128,n=128,k=64)",
)
NEAR = 1.03
"""A search has reached a time if its best is at most this multiple of it: times of one kernel differ by some per cent."""


def search(text: str, trials: int, seed: int) -> dict[str, Any]:
    """One search: the seconds after which each batch ended, and the best time until then."""
    import tunesmith

    curve: list[tuple[float, float | None]] = []
    start = time.perf_counter()

    def note(progress: Any) -> None:
        curve.append((time.perf_counter() - start, None if progress.best is None else progress.best.seconds))

    report = tunesmith.tune(text, log=None, budget=trials, search=tunesmith.Search(seed=seed), callbacks=[note], progress=False)
    took = time.perf_counter() - start
    (task,) = report.tasks
    clean = 1 - task.noisy / max(task.measured, 1)
    assert task.best is not None, f"{text}: {task.failure}"
    return {"curve": curve, "seconds": took, "trials": task.trials, "best": task.best.seconds, "clean": clean, "parts": dict(task.seconds)}


def reached(run: dict[str, Any], seconds: float) -> float:
    """Seconds of the search after which its best was at most `seconds`; all of them if only the ranking at the end found it."""
    return next((at for at, best in run["curve"] if best is not None and best <= seconds), run["seconds"])


def interval(ratios: list[float]) -> Ratio:
    """Geometric mean and its 95 % interval, by Student's t of the logarithms."""
    return ratio([[r] for r in ratios])


def compare(runs: dict[tuple[str, str, int], dict[str, Any]], texts: list[str], seeds: int) -> None:
    """Print a line for each workload, and the means of all."""
    pace: list[float] = []
    sooner: list[float] = []
    better: list[float] = []
    for text in texts:
        pairs = [(runs["before", text, s], runs["after", text, s]) for s in range(seeds) if ("after", text, s) in runs]
        mine = [(b["seconds"] / b["trials"]) / (a["seconds"] / a["trials"]) for b, a in pairs]
        goals = [NEAR * max(b["best"], a["best"]) for b, a in pairs]
        times = [reached(b, goal) / reached(a, goal) for (b, a), goal in zip(pairs, goals, strict=True)]
        ends = [b["best"] / a["best"] for b, a in pairs]
        rates = [np.median([r["trials"] / r["seconds"] for r in side]) for side in zip(*pairs, strict=True)]
        print(
            f"{text}: {rates[0]:.1f} -> {rates[1]:.1f} trials/s, {interval(mine)}; seconds to equal quality {interval(times)}; "
            f"best time {interval(ends)}; clean {np.mean([r['clean'] for pair in pairs for r in pair]):.0%}"
        )
        pace, sooner, better = pace + mine, sooner + times, better + ends
    print(f"all: trials a second {interval(pace)}, seconds to equal quality {interval(sooner)}, best time {interval(better)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS))
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    runs = {(r["which"], r["workload"], r["seed"]): r for r in lines}
    for seed, text, which in product(range(given.seeds), given.workloads, ("before", "after")):
        if (which, text, seed) in runs:
            continue
        env = {**os.environ, "PYTHONPATH": getattr(given, which)}
        command = [sys.executable, __file__, "--search", text, str(given.trials), str(seed)]
        found = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        runs[which, text, seed] = found | {"which": which, "workload": text, "seed": seed}
        with given.out.open("a") as file:
            file.write(json.dumps(runs[which, text, seed]) + "\n")
        print(f"{which} {text} seed {seed}: {found['seconds']:.1f} s, best {found['best'] * 1e6:.1f} us", flush=True)
    compare(runs, given.workloads, given.seeds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        print(json.dumps(search(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
