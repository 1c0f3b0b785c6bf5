"""Spaces for ranges of dynamic sizes: sketches that apply to all sizes, and versions that must compile."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tunesmith import te
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.tuned_sizes import measured_function
from tunesmith.measure import builder
from tunesmith.measure.builder import BuildJob
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search.space.dynamic_sizes import DynamicSizes
from tunesmith.search.space.rules import rows
from tunesmith.search.task import Task
from tunesmith.support.errors import BuildError, UserError

TARGET = Target("llvm")
BOX = SizeRanges.of({"n": (5, 8)})


def softmax() -> PrimFunc:
    n = te.var("n")
    x, k, k2 = te.placeholder((6, n), name="X"), te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    top = te.compute((6,), lambda i: te.max(x[i, k], axis=[k]), "top")
    e = te.compute((6, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    s = te.compute((6,), lambda i: te.sum(e[i, k2], axis=[k2]), "s")
    return te.create_prim_func([x, te.compute((6, n), lambda i, j: e[i, j] / s[i], "Y")], "softmax")


def task(box: SizeRanges = BOX) -> Task:
    return Task("softmax", measured_function(softmax(), box), TARGET, sizes=DynamicSizes(softmax(), box))


def test_sketches_apply_to_all_sizes() -> None:
    space = task().space
    assert space.sketches and any("does not apply for n=5..8" in line for line in space.refused)
    for sketch in space.sketches:
        row = tuple([min(p.domain) for p in sketch.params])
        assert [v.name for v in sizes_of(replay(sketch.trace_of(row), softmax()).func)] == ["n"]


def test_single_sizes_have_the_whole_space() -> None:
    single = task(SizeRanges.of({"n": (8, 8)}))
    assert single.sizes is not None and single.sizes.version is None
    assert len(single.space.sketches) > len(task().space.sketches) and single.digest != task().digest
    assert single.measured.version_script == ""


def scratch(func: PrimFunc, target: Target) -> list[tuple[str, Callable[[Schedule], None]]]:
    """The schedules with a buffer of one row, whose length must be a number."""
    return [(name, apply) for name, apply in rows.sketches(func, target) if "scratch" in name]


def test_no_applicable_sketch_is_an_error() -> None:
    made = Task("softmax", measured_function(softmax(), BOX), TARGET, rules=(scratch,), sizes=DynamicSizes(softmax(), BOX))
    with pytest.raises(BuildError, match="no schedule of softmax applies to all sizes n=5..8 .*Tune it for single sizes"):
        made.space  # noqa: B018


def test_a_candidate_must_compile_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task().measured
    row = tuple(min(p.domain) for p in task().space.sketches[0].params)
    request = made.request((0, row), json.dumps(TARGET.to_json(facts=True)))
    assert "size_ranges" in request.version
    assert BuildJob()(request).error is None
    monkeypatch.setattr(builder, "MOST_LINES", 10)
    error = BuildJob()(request).error
    assert error is not None and error.kind == "build_error" and "[code-size] the version for a range of sizes has" in error.message


def test_a_box_of_another_size_is_refused() -> None:
    with pytest.raises(UserError, match="softmax has no size m; it has n"):
        measured_function(softmax(), SizeRanges.of({"m": (1, 2)}))
