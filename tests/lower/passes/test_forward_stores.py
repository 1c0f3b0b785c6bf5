"""forward_stores keeps the last value of a recurrence in a register, and nothing that another store may have changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Allocate
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.forward_stores import forward_stores
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


def function(*body: str) -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body)
    return parse(f'@T.prim_func\ndef f(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):\n{lines}')


def registers(f: PrimFunc) -> int:
    return sum(type(n) is Allocate and n.buffer.scope == "register" for n in walk(f.body))


def test_recurrences_keep_their_values(assert_golden: Callable[[str], None]) -> None:
    f = function(
        "for j in T.serial(15):",
        "    C[j + 1] = C[j] + A[j + 1]",
        "    C[2 * j + 32] = A[j] * C[2 * j + 30] + C[j]",
        "for j in T.serial(3):",
        "    C.vstore([4 * j + 4], C.vload([4 * j], lanes=4, stride=1) + A.vload([4 * j], lanes=4, stride=1), stride=1)",
    )
    assert_golden(str(forward_stores(f, TARGET)))


@pytest.mark.parametrize(
    "body",
    [
        ["for j in T.serial(8):", "    C[j] = A[j]"],
        ["for j in T.serial(8):", "    C[3] = C[3] + A[j]"],
        ["for j in T.serial(8):", "    C[j + 2] = C[j] + A[j]"],
        ["for j in T.serial(8):", "    C[j] = T.select(0 < j, C[j - 1], T.float32(0)) + A[j]"],
        ["for j in T.serial(8):", "    C[j + 1] = C[j] + A[j]", "    C[j + 1] = C[j + 1] * 2.0"],
        ["for j in T.serial(8):", "    C[j + 1] = C[j] + A[j]", "    C[8 - j] = A[j]"],
        ["for j in T.serial(8):", "    C[j + 1] = C[j] + A[j]", "    for i in T.serial(2):", "        C[i] = A[i]"],
        ["for j in T.serial(n - 1):", "    C[j + 1] = C[j] + A[j]"],
        ["for j in T.parallel(8):", "    C[j] = A[j]"],
    ],
    ids=["no recurrence", "accumulator", "two before", "guarded", "stored twice", "other store", "inner loop", "may be empty", "parallel"],
)
def test_other_loops_are_kept(body: list[str]) -> None:
    f = function(*body)
    assert forward_stores(f, TARGET) is f


def test_a_loop_with_more_values_keeps_none() -> None:
    f = function("for j in T.serial(8):", "    C[j + 1] = C[j] + A[j]", "    C[j + 17] = C[j + 16] + A[j]")
    assert registers(forward_stores(f, TARGET)) == 2
    assert forward_stores.with_options(most=1)(f, TARGET) is f
    with pytest.raises(UserError, match="keeps at least 0 values"):
        forward_stores.with_options(most=-1)(f, TARGET)


def test_later_statements_read_what_the_iteration_before_stored() -> None:
    """The register has the new value then."""
    f = function("for j in T.serial(8):", "    C[j + 1] = C[j] + A[j]", "    C[j + 32] = C[j]")
    g = forward_stores(f, TARGET)
    a, c = np.arange(64, dtype="float32"), np.ones(64, "float32")
    np.testing.assert_array_equal(result(g, a, c), result(f, a, c))


def result(f: PrimFunc, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    return run(f, [a, c], {v: 8 for v in f.params if isinstance(v, Var)})[1]


def random_function(rng: np.random.Generator) -> PrimFunc:
    """A loop nest with one to three stores, most of which read what they stored in the iteration before."""
    step, outer = int(rng.choice([1, 1, 2])), int(rng.choice([0, 4, 8]))
    first = rng.permutation([1, 2, 3, 9, 17, 25])[: rng.integers(1, 4)].tolist()

    def place(offset: int) -> str:
        return f"C[{step if rng.random() < 0.98 else 1} * j + {outer} * i + {offset}]"

    def value(offset: int) -> str:
        read = [place(offset if rng.random() < 0.7 else int(rng.choice(first))), place(int(rng.choice(first) + rng.choice([0, step])))]
        return " + ".join(read) if rng.random() < 0.8 else f"T.select(A[j] < 0.5, {read[0]}, {read[1]}) + {rng.choice(read)}"

    stores = [f"        {place(k + step)} = A[j] + 0.5 * ({value(k)})" for k in first]
    return function(f"for i in T.serial({rng.integers(1, 3)}):", f"    for j in T.serial({rng.integers(1, 6)}):", *stores)


def test_random_loops_compute_the_same() -> None:
    rng, changed = stream(7, "forward_stores"), 0
    for _ in range(300):
        f = random_function(rng)
        g = forward_stores(f, TARGET)
        changed += g is not f
        a, c = rng.random(64, "float32"), rng.random(64, "float32")
        np.testing.assert_array_equal(result(g, a, c), result(f, a, c), err_msg=str(f))
    assert 50 < changed < 290
