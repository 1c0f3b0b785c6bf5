"""Fuzz programs and schedules: `python experiments/program_fuzz/run.py --seeds 0:4000 --workers 2 --out runs/fuzz`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tunesmith.testing.program_fuzz.campaign import Campaign, Totals, table


def main() -> int:
    """Run a campaign; returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="first:end")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--schedules", type=int, default=6, help="schedules per program; the first is empty")
    parser.add_argument("--out", type=Path, default=Path("runs/program_fuzz"))
    parser.add_argument("--keep", type=int, default=2, help="failures of each kind to minimise and write")
    parser.add_argument("--minimise-seconds", type=float, default=30.0, help="time limit per minimised failure")
    given = parser.parse_args()
    first, end = map(int, given.seeds.split(":"))
    campaign = Campaign(given.out, given.workers, given.schedules, given.keep, given.minimise_seconds)
    started, last = time.monotonic(), 0.0

    def progress(t: Totals) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            text = f"{t.programs} programs, {t.sequences} sequences, {t.failures.total()} failures, {last - started:.0f} s"
            print(text, file=sys.stderr, flush=True)

    try:
        campaign.run(range(first, end), progress)
        if given.keep:
            campaign.reproduce(lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume", file=sys.stderr)
    text = table(campaign.totals)
    (given.out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if campaign.totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
