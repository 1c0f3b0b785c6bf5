"""Test means and deviations of sets of elements against numpy, and the stages that compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.visit import blocks_under
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.moments import deviations, reciprocal_root, sets_along, standardised
from tunesmith.support.seeds import stream


@pytest.mark.parametrize("axes", [(2,), (0,), (1, 2), (0, 2), (0, 1, 2)])
def test_deviations_are_those_of_numpy(axes: tuple[int, ...]) -> None:
    x = te.placeholder((3, 4, 5), "float64", "X")
    sets = sets_along(x, axes)
    mean, scale = deviations(x, sets, 0.5)
    func = te.create_prim_func([x, mean, scale])
    assert [b.name for b in blocks_under(func.body)] == ["S", "M", "V", "R"]
    data = stream(0, "moments").random((3, 4, 5))
    _x, got_mean, got_scale = run(func, [data])
    np.testing.assert_allclose(got_mean, data.mean(axes), rtol=1e-12)
    np.testing.assert_allclose(got_scale, 1 / np.sqrt(data.var(axes) + 0.5), rtol=1e-12)
    assert sets.count == math.prod([(3, 4, 5)[a] for a in axes])


def test_the_statistics_have_the_loops_of_the_axes_that_remain() -> None:
    sets = sets_along(te.placeholder((3, 4, 5), name="X"), (1,))
    assert (list(sets.loops), [str(a) for a in sets.axes], list(sets.shape)) == (["i", "k"], ["j"], [3, 5])


def test_a_root_mean_square() -> None:
    x = te.placeholder((2, 3), "float64", "X")
    sets = sets_along(x, (1,))
    root = reciprocal_root(sets.sum(lambda at, _: x[at] * x[at], "S"), sets.count, 0.0)
    data = np.array([[1.0, 2.0, 2.0], [3.0, 0.0, 0.0]])
    np.testing.assert_allclose(run(te.create_prim_func([x, root]), [data])[1], [3**-0.5, 3**-0.5], rtol=1e-12)


def test_standardised_rows_have_mean_zero_and_variance_one() -> None:
    made = standardised(stream(0, "moments").random((3, 40)), (1,), 0.0)
    np.testing.assert_allclose(made.mean(1), 0, atol=1e-12)
    np.testing.assert_allclose(made.var(1), 1, rtol=1e-12)
