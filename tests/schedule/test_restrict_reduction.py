"""Test restrict_reduction: programs, and results for random congruences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.schedule.primitives.restrict_reduction import congruent_variables
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream
from tunesmith.testing.primitive_samples import STRIDED

Apply = Callable[..., Schedule]


def test_restrict_reduction(apply: Apply, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(apply(STRIDED, lambda s: s.restrict_reduction(s.get_block("C"), 1)).func))


def test_other_conditions_stay(apply: Apply) -> None:
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "float32"), W: T.Buffer((6,), "float32"), C: T.Buffer((12,), "float32")):
    for i, k in T.grid(12, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + W[vk] * T.select(3 < vi and (vi + vk) % 3 == 1 and vi + vk < 16, A[(vi + vk) // 2], 0.0)
""")
    text = str(apply(f, lambda s: s.restrict_reduction(s.get_block("C"), 1)).func)
    assert "T.select(3 < vi and " in text and "% 3 == 1" not in text and "T.grid(12, 2)" in text


@pytest.mark.parametrize("seed", range(40))
def test_random_congruences_keep_the_sums(seed: int) -> None:
    rng = stream(seed, "congruences")
    m = int(rng.integers(2, 5))
    n, a, b, d = m * int(rng.integers(1, 4)), int(rng.integers(0, 4)), int(rng.integers(0, 3)), int(rng.integers(0, 9))
    t, sign = int(rng.integers(0, m)), rng.choice(["vk", f"{m + 1} * vk", f"{2 * m - 1} * (20 - vk)"])
    e = f"({a} * vi + {b} * vj + {sign} + {d})"
    index = rng.choice([f"{e} // {m}", f"({a} * vi + {b} * vj + vk + {d}) // {m} + vk", f"{e} // {m} * 2 + vi", "vi + 3 * vk"])
    f = parse(f"""
@T.prim_func
def f(A: T.Buffer((400,), "int32"), W: T.Buffer(({n},), "int32"), C: T.Buffer((5, 3), "int32")):
    for i, j, k in T.grid(5, 3, {n}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 4
            C[vi, vj] = C[vi, vj] + T.select({e} % {m} == {t}, A[{index}], 0) * W[vk]
""")
    assert congruent_variables(Schedule(f).blocks()[0]) == [2]
    s = Schedule(f)
    s.restrict_reduction(s.get_block("C"), 2)
    assert s.blocks()[0].iters[2].extent == n // m and "T.select" not in str(s.func)
    data, w = rng.integers(0, 99, 400).astype("int32"), rng.integers(1, 9, n).astype("int32")
    np.testing.assert_array_equal(run(s.func, [data, w])[2], run(f, [data, w])[2], err_msg=str(s.func))
