"""Spaces for ranges of dynamic sizes: sketches that apply to all sizes, and versions that must compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.target.target import Target
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import version_for, with_versions
from tunesmith.lower.tuned_sizes import measured_function
from tunesmith.measure import builder
from tunesmith.measure.builder import BuildJob
from tunesmith.measure.candidate import SketchCache
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search.space.dynamic_sizes import DynamicSizes
from tunesmith.search.space.rules import rows
from tunesmith.search.task import Task
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.seeds import stream

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


def test_candidates_and_their_versions_are_those_of_the_trace() -> None:
    """The parametric program of a sketch has the largest sizes; the version with dynamic sizes is replayed."""
    made, cache = task(), SketchCache()
    assert made.measured.version is not None
    for index, sketch in enumerate(made.space.sketches):
        row = tuple(sketch.space.sample(1, stream(index, "test"))[0].tolist())
        request = made.measured.request((index, row), "")
        assert request.sketch and request.version and not request.of_version().sketch
        assert cache.broken_law(request, cache.program(request)) == ""
        version = cache.program(request.of_version())
        assert structural.difference(version, replay(sketch.trace_of(row), made.measured.version).func) is None


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


def attention(n: Poly) -> PrimFunc:
    q, k, v = (te.placeholder((n, 8), name=name) for name in "qkv")
    d, a, b, c = te.reduce_axis(8, "d"), *[te.reduce_axis(n, name) for name in "abc"]
    s = te.compute((n, n), lambda i, j: te.sum(q[i, d] * k[j, d], axis=d), "S")
    m = te.compute((n,), lambda i: te.max(s[i, a], axis=a), "M")
    e = te.compute((n, n), lambda i, j: te.exp(s[i, j] - m[i]), "E")
    z = te.compute((n,), lambda i: te.sum(e[i, b], axis=b), "Z")
    o = te.compute((n, 8), lambda i, j: te.sum(e[i, c] * v[c, j], axis=c), "O")
    return te.create_prim_func([q, k, v, te.compute((n, 8), lambda i, j: o[i, j] / z[i], "Y")], "attention")


@pytest.mark.parametrize("name", ["n", "T"])  # scripts call the second T_
def test_rows_of_dynamic_length_are_kept_in_the_task(name: str) -> None:
    """Rows of up to 20 elements are kept in a workspace of constant size, and candidates run at the largest size."""
    func, box = attention(te.var(name)), SizeRanges.of({name: (17, 20)})
    made = Task("attention", measured_function(func, box), TARGET, sizes=DynamicSizes(func, box))
    fused = next(s for s in made.space.sketches if s.name == "derived")
    row = tuple(fused.space.sample(1, stream(0))[0].tolist())
    measured = replace(made.measured, sketches=[fused])
    result = BuildJob()(measured.request((0, row), json.dumps(TARGET.to_json(facts=True))))
    assert result.error is None and result.artifact is not None and result.artifact.sizes == (20,)
    inputs = [np.random.default_rng(i).standard_normal((20, 8), dtype=np.float32) for i in range(3)]
    out = np.zeros((20, 8), np.float32)
    load_call(result.artifact.code(), [*inputs, out])()
    weights = np.exp(inputs[0] @ inputs[1].T)
    assert np.allclose(out, weights / weights.sum(1, keepdims=True) @ inputs[2], atol=1e-5)
    scheduled = replay(fused.trace_of(row), version_for(func, box)).func
    lib = tunesmith.build(with_versions(func, [(box, scheduled)]), TARGET)
    for n in (3, 17, 18, 20, 33):
        some = [np.random.default_rng(i).standard_normal((n, 8), dtype=np.float32) for i in range(3)]
        out = np.zeros((n, 8), np.float32)
        lib(*some, out, n)
        weights = np.exp(some[0] @ some[1].T)
        assert np.allclose(out, weights / weights.sum(1, keepdims=True) @ some[2], atol=1e-5), n


def test_a_box_of_another_size_is_refused() -> None:
    with pytest.raises(UserError, match="softmax has no size m; it has n"):
        measured_function(softmax(), SizeRanges.of({"m": (1, 2)}))
