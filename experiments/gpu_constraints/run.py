"""Compare the constraints of GPU sketches with the result of lowering: `python experiments/gpu_constraints/run.py [--rows 10000]`"""

from __future__ import annotations

import argparse
import sys

from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream
from tunesmith.testing.gpu_constraints import compare_constraints, domain_rows

WORKLOADS = (
    "matmul(m=1024,n=1024,k=1024)",
    "matmul(m=100,n=200,k=300)",
    "batch_matmul(b=12,m=128,n=64,k=128)",
    "conv2d(n=1,h=28,w=28,ci=64,co=64,kh=3,kw=3,pad=1)",
    "softmax(m=1024,n=1024)",
    "layer_norm(m=256,n=768)",
    "sum(shape=1000000)",
)
TARGETS = ("nvidia/h200", "nvidia/l4", "opencl")


def main() -> int:
    """Print a line per sketch; returns 1 if any configuration is classified differently."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="total number of configurations")
    total = parser.parse_args().rows
    cases = [(w, t, s) for w in WORKLOADS for t in map(Target, TARGETS) for s in generate(workload(w).func, t).sketches]
    each = -(-total // len(cases))
    sums = [0, 0, 0, 0]
    for text, target, sketch in cases:
        rows = domain_rows(sketch, each, stream(0, "gpu constraints", text, str(target), sketch.name))
        v = compare_constraints(sketch, target, rows)
        counts = [v.both_accept, v.both_refuse, len(v.wrongly_refused), len(v.wrongly_accepted)]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        print(
            f"{text:52} {target!s:22} {sketch.name:24} legal {counts[0]:5} illegal {counts[1]:5} wrong {counts[2]} + {counts[3]}",
            flush=True,
        )
        for row in v.wrongly_refused[:3]:
            print(f"  refused, but legal: {row}", flush=True)
        for row, why in v.wrongly_accepted[:3]:
            print(f"  accepted, but illegal: {row}: {why}", flush=True)
    print(f"{sum(sums)} rows: {sums[0]} legal, {sums[1]} illegal, {sums[2]} legal refused, {sums[3]} illegal accepted")
    return int(sums[2] + sums[3] > 0)


if __name__ == "__main__":
    sys.exit(main())
