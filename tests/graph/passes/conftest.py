"""Run a graph pass on functions in script text and check the contract of all passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.verify import verify
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import evaluate
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

SIZES = (3, 5, 2)
"""Values of the sizes of a function, in order."""
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def arguments(func: GraphFunc, truth: bool) -> list[np.ndarray]:
    """Random arrays, and zeros and ones for integers; conditions are all `truth`."""
    rng = stream(int(truth), "graph passes", func.name)
    sizes = dict(zip(func.sizes, SIZES, strict=False))
    made = []
    for p in func.params:
        shape = [evaluate(e, sizes) for e in p.type.shape]
        values = np.full(shape, truth) if p.type.dtype == "bool" and not shape else rng.standard_normal(shape)
        made.append((values > 0 if p.type.dtype in ("bool", "int64") else values).astype(dt.to_numpy(p.type.dtype)))
    return made


def check(run_pass: Callable[[IRModule], IRModule], *given: str | GraphFunc, again: bool = True) -> IRModule:
    """The module after the pass.

    Checks that all functions are well formed before and after, that the first computes the same results for all branches, and that the
    input module is unchanged.  If `again`, a second run of the pass must return the same function objects.
    """
    functions = [parse(g) if isinstance(g, str) else g for g in given]
    mod = IRModule({f.name: f for f in functions})
    text = [str(f) for f in functions]
    for f in functions:
        verify(f, mod)
    done = run_pass(mod)
    for f in done.values():
        if isinstance(f, GraphFunc):
            verify(f, done)
    main = functions[0]
    for truth in (False, True):
        arrays = arguments(main, truth)
        for a, w in zip(run(done[main.name], arrays, done), run(main, arrays, mod), strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-5)
    assert [str(f) for f in mod.values()] == text
    if again:
        repeated = run_pass(done)
        assert list(repeated) == list(done) and all(repeated[name] is done[name] for name in done), "the pass is not idempotent"
    return done


@pytest.fixture(scope="session")
def passed() -> Callable[..., IRModule]:
    """`passed(run_pass, *functions)`: see `check`."""
    return check


@pytest.fixture(scope="session")
def unchanged() -> Callable[..., None]:
    """`unchanged(run_pass, *functions)`: check that the pass returns the same function objects."""

    def same(run_pass: Callable[[IRModule], IRModule], *given: str | GraphFunc) -> None:
        functions = [parse(g) if isinstance(g, str) else g for g in given]
        mod = IRModule({f.name: f for f in functions})
        done = run_pass(mod)
        assert list(done) == list(mod) and all(done[name] is mod[name] for name in mod)

    return same
