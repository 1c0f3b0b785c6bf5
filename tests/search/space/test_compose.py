"""Rules of users beside the built-in ones, before derived nests, and after built-in sketches."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.compose import built_in, continued, rest, schedule_rest, with_rest
from tunesmith.search.space.rules_table import Named, SketchWarning, find_rules, generate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
TEXTS = ["matmul(m=32,n=48,k=40)", "softmax(m=37,n=100)", "relu(shape=64x64)"]


def chain(m: int = 48, n: int = 64) -> PrimFunc:
    """B[i, j] = A[i, j] * 2; M[i] = max B[i, :]; S[i] = sum exp(B - M); C = exp(B - M) / S."""
    a = te.placeholder((m, n), name="A")
    r, q = te.reduce_axis(n, "r"), te.reduce_axis(n, "q")
    b = te.compute((m, n), lambda i, j: a[i, j] * 2.0, "B")
    top = te.compute((m,), lambda i: te.max(b[i, r], axis=r), "M")
    e = te.compute((m, n), lambda i, j: te.exp(b[i, j] - top[i]), "E")
    s = te.compute((m,), lambda i: te.sum(e[i, q], axis=q), "S")
    return te.create_prim_func([a, te.compute((m, n), lambda i, j: e[i, j] / s[i], "C")], "chain")


def rows_of_b(s: Schedule) -> None:
    s.parallel(s.get_loops(s.get_block("B"))[0])


def check(sketch: Sketch, func: PrimFunc) -> None:
    """A drawn configuration of the sketch computes a softmax of 2 * A."""
    row = tuple(sketch.space.sample(1, stream(0, sketch.name))[0].tolist())
    a = np.random.default_rng(0).standard_normal((48, 64), dtype=np.float32)
    c = np.empty_like(a)
    tunesmith.build(sketch.concretize(row), "llvm -num-cores=2")(a, c)
    e = np.exp(2 * a - (2 * a).max(1, keepdims=True))
    np.testing.assert_allclose(c, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("func", [*[workload(t).func for t in TEXTS], chain()], ids=lambda f: f.name)
def test_default_is_the_space_without_rules(func: PrimFunc) -> None:
    named, usual = generate(func, TARGET, find_rules(["default"])), generate(func, TARGET)
    assert [(s.name, s.trace.to_json()) for s in named.sketches] == [(s.name, s.trace.to_json()) for s in usual.sketches]


def test_a_rule_beside_the_built_in_ones() -> None:
    func = workload(TEXTS[0]).func

    def mine(func: PrimFunc, target: Target) -> list[Named]:
        return [("mine", lambda s: None)]

    usual = [s.name for s in generate(func, TARGET).sketches]
    assert [s.name for s in generate(func, TARGET, find_rules(["default", mine])).sketches] == [*usual, "mine"]
    assert [s.name for s in generate(func, TARGET, find_rules([mine, "default"])).sketches] == ["mine", *usual]
    with pytest.raises(UserError, match=r"several sketches named 'mine' for matmul; names are unique in a space\. Name each rule once"):
        generate(func, TARGET, [mine, mine])


def test_default_makes_fallback_sketches_for_other_loop_nests() -> None:
    func = parse(
        "@T.prim_func\ndef f(A: T.Buffer((8,), 'float32')):\n    for i in T.serial(2):\n        for j in T.serial(4):\n"
        "            with T.block('B'):\n                v = T.axis.spatial(8, i * 4 + j)\n                A[v] = T.float32(1)\n",
        "f",
    )
    assert isinstance(func, PrimFunc) and [name for name, _ in built_in(func, TARGET)] == ["fallback", "fallback serial"]


def test_the_rest_is_what_no_step_scheduled() -> None:
    s = Schedule(chain())
    assert rest(s) == ["B", "M", "E", "S", "C"]
    rows_of_b(s)
    s.split(s.get_loops(s.get_block("E"))[1], [None, 4])
    s.set_scope(s.get_block("M"), "workspace")
    s.compute_at(s.get_block("S"), s.get_loops(s.get_block("C"))[0])
    assert rest(s) == []


def test_with_rest_derives_the_other_nests() -> None:
    func = chain()
    named = with_rest("mine", rows_of_b, func, TARGET)
    space = generate(func, TARGET, [lambda func, target: named])
    assert len(space.sketches) > 1 and not space.refused
    for sketch in space.sketches:
        assert sketch.name.startswith("mine derived")
        assert next(b.name for b in Schedule(sketch.func).blocks()) == "B"  # neither inlined nor moved
        check(sketch, func)
    serial = [s for s in space.sketches if s.name.endswith("serial")]
    assert serial and all(len(s.params) > 0 for s in serial)


def test_schedule_rest_derives_one_schedule() -> None:
    func = chain()

    def steps(s: Schedule) -> None:
        rows_of_b(s)
        schedule_rest(s, TARGET)
        assert rest(s) == []
        schedule_rest(s, TARGET)

    (sketch,) = generate(func, TARGET, [lambda func, target: [("mine", steps)]]).sketches
    assert sketch.params
    check(sketch, func)


def test_with_rest_of_nothing_is_the_rule_alone() -> None:
    func = workload("relu(shape=64)").func

    def steps(s: Schedule) -> None:
        s.vectorize(s.get_loops(s.get_block(s.blocks()[0].name))[0])

    assert with_rest("mine", steps, func, TARGET) == [("mine", steps)]


def test_continued_sketches_have_the_steps() -> None:
    func = chain()

    def steps(s: Schedule) -> None:
        s.annotate(s.get_loops(s.get_block("C"))[0], "grain", 2)

    made = {s.name for s in generate(func, TARGET).sketches}
    parallel = [x for x in built_in(func, TARGET) if x[0] in made and "serial" not in x[0]]
    assert parallel
    space = generate(func, TARGET, [lambda func, target: continued(parallel, "chunks", steps)])
    assert [s.name for s in space.sketches] == [f"{n} chunks" for n, _ in parallel]
    for sketch in space.sketches:
        s = Schedule(sketch.func)
        assert dict(s.loop(s.get_loops(s.get_block("C"))[0]).annotations) == {"grain": 2}
    check(space.sketches[0], func)


def test_a_continuation_that_is_refused_is_a_warning() -> None:
    func = workload("relu(shape=64)").func
    named = continued(built_in(func, TARGET), "again", lambda s: s.get_block("zzz"))  # type: ignore[arg-type, return-value]
    with (
        pytest.warns(SketchWarning, match="again"),
        pytest.raises(tunesmith.TunesmithError, match="makes no schedule for relu that applies"),
    ):
        generate(func, TARGET, [lambda func, target: named])


def test_the_rest_is_derived_for_cpus_and_fixed_sizes_only() -> None:
    with pytest.raises(UserError, match="the rest of chain cannot be derived for cuda: derived nests are for CPUs. Schedule all"):
        with_rest("mine", rows_of_b, chain(), Target("nvidia/h200"))
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    func = te.create_prim_func([a, te.compute((n,), lambda i: a[i] * 2.0, "B")], "double")
    with pytest.raises(UserError, match="the rest of double cannot be derived: it has dynamic shapes. Give it fixed sizes"):
        schedule_rest(Schedule(func), TARGET)
