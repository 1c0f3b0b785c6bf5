"""Test the replacement of sizes by numbers in types, attributes, calls and assumptions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import UserError

MODEL = """
@G.function(sizes=("n", "m"))
def main(x: G.Tensor((n, m), "float32"), c: G.Tensor((), "bool")):
    G.assume(n <= 8)
    G.assume(m < n)
    p = G.arange(start=0, stop=n, step=1, dtype="int64")
    if c:
        t = G.reshape(x, shape=(n * m,))
        r = t
    else:
        u = G.reshape(x, shape=(n * m,))
        v = G.neg(u)
        r = v
    return r, p
"""


@pytest.mark.parametrize("truth", [True, False])
def test_the_bound_model_computes_the_same(truth: bool) -> None:
    mod = IRModule({"main": parse(MODEL)})
    x, c = np.arange(15, dtype=np.float32).reshape(5, 3), np.array(truth)
    for sizes in ({"n": 5}, {"m": 3}, {"n": 5, "m": 3}):
        done = bind_sizes(mod, sizes)
        verify(done["main"])
        assert [v.name for v in done["main"].sizes] == [n for n in ("n", "m") if n not in sizes]
        for a, b in zip(run(done["main"], [x, c]), run(mod["main"], [x, c]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_fully_bound_model_has_static_shapes(assert_golden: Callable[..., None]) -> None:
    assert_golden(str(bind_sizes(IRModule({"main": parse(MODEL)}), {"n": 5, "m": 3})["main"]))


def test_assumptions_are_evaluated_or_kept() -> None:
    mod = IRModule({"main": parse(MODEL)})
    assert len(bind_sizes(mod, {"n": 5})["main"].assumptions) == 1  # n <= 8 holds; m < 5 is still open
    with pytest.raises(UserError, match=r"main assumes .*, which does not hold with n = 9"):
        bind_sizes(mod, {"n": 9})


def test_unknown_sizes_are_rejected() -> None:
    with pytest.raises(UserError, match="main has no size k; it has n, m"):
        bind_sizes(IRModule({"main": parse(MODEL)}), {"k": 1})
