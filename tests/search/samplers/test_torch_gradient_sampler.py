"""Test the gradient sampler: descent on the analytic cost, domains, constraints, settings, error messages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.models.registry import make_model
from tunesmith.ir.poly import evaluate
from tunesmith.search.samplers.sampler import Result
from tunesmith.search.samplers.torch_gradient_sampler import Descent, GradientSampler, GradientSettings
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.sampler_conformance import TARGET, example_task

SMALL = GradientSettings(starts=32, sketches=2, steps=12, every=4, draft=512)


@pytest.mark.parametrize("name", ["usual", "joint"])
def test_descent_lowers_the_analytic_cost(name: str) -> None:
    """The cost is compared after rounding to admissible rows."""
    sketch = example_task(name).space.sketches[0]
    rows = sketch.space.sample(64, stream(0, "descent"))
    visited = Descent(sketch, TARGET).run(rows, replace(SMALL, steps=24))
    assert len(visited) == 6 and all(v.shape == rows.shape and v.dtype == np.int64 for v in visited)
    for column, p in enumerate(sketch.params):
        assert all(p.domain[0] <= v[:, column].min() and v[:, column].max() <= p.domain[-1] for v in visited)
    model = sketch.analytic(TARGET)
    before, after = model.seconds(rows), model.seconds(sketch.space.nearest(visited[-1], stream(0, "near")))
    assert np.median(after / before) < 0.8


def violation(sketch: Sketch, rows: np.ndarray) -> float:
    """Total constraint violation of the rows."""
    total = 0
    for row in rows.tolist():
        values = [(c.kind, evaluate(c.expr, dict(zip(sketch.params, row, strict=True)))) for c in sketch.constraints]
        total += sum(abs(v) if kind == "eq0" else max(v, 0) for kind, v in values)
    return total


def test_constraints_keep_points_near_admissible_rows() -> None:
    sketch = example_task("joint").space.sketches[0]
    rows = sketch.space.sample(32, stream(1, "descent"))
    descent = Descent(sketch, TARGET)
    free, bound = (descent.run(rows, replace(SMALL, steps=24, penalty=p))[-1] for p in (0.0, 10.0))
    assert violation(sketch, bound) < 0.8 * violation(sketch, free)


def test_rounds_cover_all_sketches_and_the_measured_best() -> None:
    task = example_task("usual")
    s = GradientSampler(task, make_model("xgb"), 0, SMALL)
    draft = s.generator.draw(256, stream(0, "draft"))
    turns = [sorted(s._starts(draft, stream(i, "turn"))) for i in range(2)]
    assert turns == [[0, 1], [2, 3]]
    best = s.ask(8)[0]
    s.tell([Result(best, 1e-9)])
    later = [s._starts(draft, stream(i, "turn")) for i in range(4)]
    assert all(best.sketch in t and len(t) == 2 for t in later)
    assert {k for t in later for k in t} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "changes", [{"starts": 0}, {"sketches": 0}, {"steps": 0}, {"every": 0}, {"draft": 0}, {"rate": 0.0}, {"penalty": -1.0}]
)
def test_settings_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="needs counts >= 1, rate > 0 and penalty >= 0"):
        GradientSettings(**changes)


def test_the_random_share_is_checked() -> None:
    with pytest.raises(UserError, match="random_share must be between 0 and 1, got 2"):
        GradientSettings(random_share=2)


def test_without_torch_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"the sampler `gradient` needs the package `torch`.*pip install 'tunesmith\[torch\]'"):
        GradientSampler(example_task("usual"), make_model("random"))
