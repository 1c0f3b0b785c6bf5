"""Compare how well the analytic model ranks pools that were measured in quiet and under load, with and without cleaning.

    python experiments/search_cost/noisy_pools.py FOLDER [--per-task 128]

The same candidates are measured three times: on the machine as it is, beside a process that keeps a core busy in bursts, and beside it with
`retake`, which repeats disturbed measurements.  For each pool the rank correlation (Spearman) of the analytic model with the times is
printed, over all programs and over those with clean times, which `quiet_only` keeps.  A pool whose table exists is not measured again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunesmith.driver.train import evaluate_files
from tunesmith.experiments.pools.build import build

WORKLOADS = (
    "matmul(m=512,n=512,k=512)",
    "softmax(m=1024,n=1024)",
    "conv2d(n=1,h=28,w=28,ci=128,co=128,kh=3,kw=3,pad=1)",
    "layer_norm(m=512,n=1024)",
)
BURSTS = """
import random, time
random.seed(0)
while True:
    end = time.perf_counter() + random.uniform(0.5, 4.0)
    while time.perf_counter() < end:
        pass
    time.sleep(random.uniform(0.5, 4.0))
"""
"""A process that keeps a core busy half of the time."""


@contextmanager
def load(program: str) -> Iterator[None]:
    """Run a Python program beside the block; an empty one is none."""
    process = subprocess.Popen([sys.executable, "-c", program]) if program else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def correlation(table: Path, quiet_only: bool = False) -> str:
    """The rank correlation of the analytic model within each task of a table, with the number of programs."""
    found = evaluate_files("analytic", table, quiet_only=quiet_only).found
    value = found.values["analytic"]["Spearman"]
    return f"{'-' if value is None else f'{value:.3f}'} over {found.programs} programs, {found.clean / found.programs:.0%} of them clean"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-task", type=int, default=128)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, program, retake in (("quiet", "", False), ("loaded", BURSTS, False), ("retaken", BURSTS, True)):
        table = given.folder / f"{name}.parquet"
        if not table.exists():
            with load(program):
                build(WORKLOADS, given.per_task, table, given.folder / f"{name}.jsonl", retake=retake)
        print(f"{name}: {correlation(table)}; clean times alone: {correlation(table, quiet_only=True)}", flush=True)


if __name__ == "__main__":
    main()
