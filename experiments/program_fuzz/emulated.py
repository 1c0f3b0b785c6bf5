"""Fuzz code for another machine: `python experiments/program_fuzz/emulated.py --seeds 0:500 --target 'llvm -mcpu=cortex-a76 -num-cores=2'`.

Programs, schedules and expected results are those of `run.py`; code is linked into a library and called under QEMU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tunesmith.ir.target.architectures import architecture
from tunesmith.ir.target.target import Target
from tunesmith.support.temporary_folder import temporary_folder
from tunesmith.testing.emulated_machine import EmulatedMachine
from tunesmith.testing.program_fuzz.emulated import check_emulated
from tunesmith.testing.program_fuzz.render import render


def main() -> int:
    """Check the programs of the seeds; returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:end")
    parser.add_argument("--schedules", type=int, default=4, help="schedules per program; the first is empty")
    parser.add_argument("--target", default="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -num-cores=2")
    given = parser.parse_args()
    target = Target(given.target)
    refused: Counter[str] = Counter()
    programs = sequences = failures = 0
    started = time.monotonic()
    with temporary_folder("tunesmith-fuzz-", Path.cwd()) as folder:
        machine = EmulatedMachine(architecture(target.mtriple), folder)
        for seed in range(*map(int, given.seeds.split(":"))):
            out = check_emulated(seed, given.schedules, machine, target, folder)
            programs += 1
            sequences += out.sequences
            refused += out.refused
            for failure in out.failures:
                failures += 1
                print(f"seed {seed}, schedule {failure.schedule}: {failure.finding.kind}: {failure.finding.detail}", flush=True)
                print(render(failure.trial.program), *failure.trial.steps, sep="\n", flush=True)
    print(f"{programs} programs, {sequences} schedules run on {target}, {failures} failures, {time.monotonic() - started:.0f} s")
    print(f"refused builds: {sum(n for reason, n in refused.items() if reason.startswith('build'))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
