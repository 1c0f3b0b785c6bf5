"""double_buffer: the form of the pipelined loop, unsupported loops, unchanged results, and half the number of barriers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import For, annotation
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.double_buffer import KEY, double_buffer
from tunesmith.lower.passes.insert_barriers import insert_barriers

TARGET = Target("cuda -arch=sm_90")

SUMS = """
@T.prim_func
def sums(A: T.Buffer(({n},), "float32"), B: T.Buffer((32,), "float32")):
    for bx in T.thread_binding(1, "blockIdx.x"):
        with T.allocate((32,), "float32", scope="shared") as S:
            for tx in T.thread_binding(32, "threadIdx.x"):
                with T.allocate((1,), "float32", scope="local") as acc:
                    acc[0] = T.float32(0)
                    for k in T.serial({steps}, annotations={{"double_buffer": {versions}}}):
                        {fill}
                        {work}
                    B[tx] = acc[0]
"""
FILL = "S[tx] = T.select(k * 32 + tx < {n}, A[k * 32 + tx], T.float32(0))"
GUARDED = """if k * 32 + tx < {n}:
                            S[tx] = A[k * 32 + tx]"""
WORK = "acc[0] = acc[0] + S[31 - tx]"
GUARDED_WORK = """if k * 32 + 31 - tx < {n}:
                            acc[0] = acc[0] + S[31 - tx]"""


def program(n: int = 150, steps: int = 5, versions: int = 2, fill: str = FILL, work: str = WORK) -> PrimFunc:
    """Each thread sums elements that other threads loaded."""
    text = SUMS.format(n=n, steps=steps, versions=versions, fill=fill.format(n=n), work=work.format(n=n))
    found = parse(text)
    assert isinstance(found, PrimFunc)
    return found


def expected(n: int, steps: int) -> np.ndarray:
    padded = np.zeros(32 * steps, np.float32)
    padded[:n] = np.arange(n, dtype=np.float32)
    return padded.reshape(steps, 32)[:, ::-1].sum(axis=0)


def barriers(f: PrimFunc) -> int:
    return script(f).count("T.barrier()")


def test_double_buffer(assert_golden: Callable[..., None]) -> None:
    f = program()
    assert_golden(f"{script(f)}\n->\n{script(double_buffer(f, TARGET))}")


@pytest.mark.parametrize(("fill", "work"), [(FILL, WORK), (GUARDED, GUARDED_WORK)], ids=["zeros", "guards"])
@pytest.mark.parametrize(("n", "steps"), [(150, 5), (64, 2), (128, 4)])
def test_results_are_unchanged_with_one_barrier_per_iteration(fill: str, work: str, n: int, steps: int) -> None:
    plain = program(n, steps, 1, fill, work)
    buffered = program(n, steps, 2, fill, work)
    a = np.arange(n, dtype=np.float32)
    for f, count in ((plain, 2), (buffered, 1)):
        lowered = insert_barriers(double_buffer(f, TARGET), TARGET)
        verify(lowered)
        assert barriers(lowered) == count
        assert np.array_equal(run_threads(lowered, [a])[1], expected(n, steps))


@pytest.mark.parametrize(
    "f",
    [
        program(versions=1),
        program(n=20, steps=1),
        program(fill="acc[0] = acc[0] * T.float32(1)"),
        program(work=WORK + "\n                        S[tx] = acc[0]"),
        program(fill="S[tx] = acc[0]"),
    ],
    ids=["one version", "one step", "no tile first", "written again", "from registers"],
)
def test_unsupported_loops_only_lose_the_annotation(f: PrimFunc) -> None:
    done = double_buffer(f, TARGET)
    assert "T.allocate((2, 32)" not in script(done)
    assert "S_next" not in script(done)
    again = double_buffer(done, TARGET)
    assert again is done
    kept = [n for n in walk(done.body) if type(n) is For and annotation(n, KEY) is not None]
    assert not kept or annotation(kept[0], KEY) == 1


def test_a_tile_read_after_the_loop_keeps_one_version() -> None:
    text = script(program()).replace("B[tx] = acc[0]", "B[tx] = acc[0] + S[tx]")
    found = parse(text)
    assert isinstance(found, PrimFunc)
    assert "T.allocate((2, 32)" not in script(double_buffer(found, TARGET))
