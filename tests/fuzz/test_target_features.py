"""Fuzz sets of CPU features: each gives code, with the results of numpy where it runs here, or an error that names the target."""

from __future__ import annotations

from dataclasses import astuple

from tunesmith.support.worker_pool import WorkerPool
from tunesmith.testing.target_features import FACTORY, Case, draw, run

ABORTED = (
    Case("llvm -mcpu=znver4 -num-cores=1 -mattr=-f16c", "dense(m=5,n=40,k=32,dtype=int8)", -1),
    Case("llvm -mcpu=alderlake -num-cores=1 -mattr=-avx2", "dense(m=5,n=40,k=32,dtype=uint8,rhs_dtype=int8)", -1),
)
"""Targets whose builds aborted: LLVM removed instructions together with a feature that they imply."""
SEEDS = range(10)


def test_builds_end_in_code_or_in_an_error() -> None:
    cases = [*ABORTED, *[draw(seed) for seed in SEEDS]]
    with WorkerPool(FACTORY, 1, timeout=60.0) as pool:
        results = pool.run([astuple(c) for c in cases])
    failed = [f"{c}: {r.error}: {r.message} {r.detail}" for c, r in zip(cases, results, strict=True) if r.error is not None]
    assert not failed, "\n".join(failed)
    kinds = [str(r.value).partition(":")[0] for r in results]
    assert set(kinds) <= {"equal", "compiled", "refused"} and "refused" in kinds and kinds.count("refused") < len(cases) // 2


def test_refusals_name_the_target() -> None:
    made = run(Case("llvm -mcpu=znver5 -num-cores=1 -mattr=-avx512f -vector-bits=512", "matmul(m=9,n=33,k=16,dtype=int8)", -1))
    assert made.startswith("refused: target 'llvm -mcpu=znver5") and "vector_bits 512 is not possible" in made


def test_cases_depend_on_the_seed_only() -> None:
    assert draw(5) == draw(5) != draw(6)
