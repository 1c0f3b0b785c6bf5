"""Versions by sizes: each size runs its version, and size 0 gives empty outputs and identity elements."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.analysis.out_of_bounds import check_out_of_bounds
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.empty_sizes import empty_version
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import lower_versions, takes_empty, versions_of, with_versions
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import RunError

TARGET = Target("llvm")
BUILDS = ["compile", "build", "checked"]


def built(func: PrimFunc, how: str) -> tunesmith.CompiledModule:
    if how == "compile":
        return tunesmith.compile(func, TARGET)
    return tunesmith.build(func, TARGET, bounds_check=how == "checked")


def filled(value: float, n: te.Index) -> PrimFunc:
    """Y[i] = X[i] + value, so that outputs show which version ran."""
    x = te.placeholder((n,), name="X")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] + value, "Y")], "f")


def versioned() -> PrimFunc:
    n = te.var("n")
    base, ranged = filled(100.0, n), filled(20.0, n)
    size = base.params[2]
    s = Schedule(ranged)
    (loop,) = s.get_loops(s.get_block("Y"))
    s.vectorize(s.split(loop, [None, 8])[1])
    moved = s.func.with_(params=(*s.func.params[:2], size))
    return with_versions(base, [(SizeRanges.of({"n": (3, 3)}), filled(1.0, 3)), (SizeRanges.of({"n": (5, 40)}), moved)])


def test_each_size_runs_its_version() -> None:
    f = versioned()
    verify(f)
    check_out_of_bounds(f)
    again = parse(str(f))
    assert isinstance(again, PrimFunc)
    for g in (f, again):
        call = tunesmith.build(g, TARGET)["f"]
        for n, added in ((0, 0), (1, 100), (2, 100), (3, 1), (4, 100), (5, 20), (13, 20), (40, 20), (41, 100), (300, 100)):
            x, y = np.arange(n, dtype="float32"), np.zeros(n, "float32")
            call(x, y, n)
            np.testing.assert_array_equal(y, x + added)


def test_versions_are_found_again() -> None:
    versions, rest = versions_of(versioned())
    assert [str(box) for box, _ in versions] == ["n=3", "n=5..40"]
    assert versions_of(rest) == ([], rest)


def test_each_version_is_lowered_for_its_sizes() -> None:
    seen: list[str] = []

    def lowering(func: PrimFunc, target: Target) -> PrimFunc:
        seen.append(str(func.attr("size_ranges")) if any(not hasattr(p, "shape") for p in func.params) else "constant")
        return CPU(func, target)

    lower_versions(versioned(), TARGET, lowering)
    assert seen == ["None", "constant", "constant", "n=5..40"], "the rest, n = 0, n = 3, the range"


def reductions() -> PrimFunc:
    n, m = te.var("n"), te.var("m")
    x = te.placeholder((n, m), name="X")
    k, k1, k2 = te.reduce_axis(m, "k"), te.reduce_axis(n, "k1"), te.reduce_axis(m, "k2")
    top = te.compute((n,), lambda i: te.max(x[i, k], axis=[k]), "top")
    total = te.compute((), lambda: te.sum(x[k1, k2], axis=[k1, k2]), "total")
    return te.create_prim_func([x, top, total], "f")


@pytest.mark.parametrize("how", BUILDS)
def test_reductions_over_no_elements_give_the_identity(how: str) -> None:
    call = built(reductions(), how)["f"]
    for n, m in ((0, 0), (0, 3), (3, 0), (7, 0), (1, 1), (40, 50)):
        x, top, total = np.ones((n, m), "float32"), np.full(n, 7, "float32"), np.full((), 7, "float32")
        call(x, top, total, n, m)
        np.testing.assert_array_equal(top, np.full(n, 1 if m else -np.inf))
        assert total == n * m


def rest_of(reduced: list[int]) -> PrimFunc:
    """Sums, a maximum and a nested sum of the elements of X from index 2 on, for the sizes n and m."""
    n, m = te.var("n"), te.var("m")
    x, k, k1, k2 = te.placeholder((n, m), name="X"), *[te.reduce_axis(e - 2, name) for e, name in ((n, "k"), (n, "k1"), (m, "k2"))]
    columns = te.compute((m,), lambda j: te.max(x[k + 2, j], axis=[k]), "columns")
    total = te.compute((), lambda: te.sum(x[k1 + 2, k2 + 2], axis=[k1, k2]), "total")
    func = te.create_prim_func([x, columns, total], "f")
    if not reduced:
        return func
    s = Schedule(func)
    for name in ("columns", "total"):
        loops = s.get_loops(s.get_block(name))
        inner = s.split(loops[-1], [None, *reduced])
        s.decompose_reduction(s.get_block(name), inner[0] if name == "columns" else loops[0])
    return s.func


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("reduced", [[], [8]])
def test_extents_that_become_0_for_other_sizes(target: str, reduced: list[int]) -> None:
    call = tunesmith.build(rest_of(reduced), target)["f"]
    for n, m in ((5, 4), (2, 4), (1, 4), (5, 2), (2, 2), (40, 50)):
        x = np.arange(n * m, dtype="float32").reshape(n, m)
        columns, total = np.full(m, 7, "float32"), np.full((), 7, "float32")
        call(x, columns, total, n, m)
        np.testing.assert_array_equal(columns, x[2:].max(0, initial=-np.inf))
        assert total == x[2:, 2:].sum()


@pytest.mark.parametrize("how", BUILDS)
def test_a_product_over_no_terms_is_zero(how: str) -> None:
    k = te.var("k")
    a, b, r = te.placeholder((20, k), name="A"), te.placeholder((k, 40), name="B"), te.reduce_axis(k, "r")
    f = te.create_prim_func([a, b, te.compute((20, 40), lambda i, j: te.sum(a[i, r] * b[r, j], axis=[r]), "C")], "f")
    call = built(f, how)["f"]
    for size in (0, 1, 17):
        x, y, c = np.ones((20, size), "float32"), np.ones((size, 40), "float32"), np.full((20, 40), 7, "float32")
        call(x, y, c, size)
        np.testing.assert_array_equal(c, size)


def test_the_empty_version_has_only_inits() -> None:
    f = reductions()
    n, m = f.params[-2:]
    text = str(empty_version(f, m))  # type: ignore[arg-type]
    assert 'top[v_i] = T.float32("-inf")' in text and "T.max" not in text
    assert "top" not in str(empty_version(f, n)).split("):")[1]  # type: ignore[arg-type]


def test_functions_that_are_not_defined_for_zero_refuse_it() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    f = te.create_prim_func([x, te.compute((n - 1,), lambda i: x[i + 1] * 2.0, "Y")], "f")
    assert not takes_empty(f) and takes_empty(filled(1.0, n))
    with pytest.raises(RunError, match=r"argument 2 \(n\): expected an int from 1 to 2147483647, got 0"):
        tunesmith.build(f, TARGET)["f"](np.zeros(0, "float32"), np.zeros(0, "float32"), 0)


def test_negative_sizes_are_refused() -> None:
    call = tunesmith.build(filled(1.0, te.var("n")), TARGET)["f"]
    with pytest.raises(RunError, match=r"argument 2 \(n\): expected an int from 0 to 2147483647, got -1"):
        call(np.zeros(1, "float32"), np.zeros(1, "float32"), -1)
