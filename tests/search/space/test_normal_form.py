"""Test that every legal script has a space: nests in another order, nests of several blocks, and blocks that keep their nest."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.space.derive.normal_form import normal_form
from tunesmith.search.space.rules_table import built_in, find_rules, generate
from tunesmith.search.space.sketch import Space
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
GPU = Target("cuda -arch=sm_90")


def product(order: str, name: str = "matmul") -> PrimFunc:
    made = parse(f"""
@T.prim_func
def {name}(A: T.Buffer((48, 40), "float32"), W: T.Buffer((40, 64), "float32"), C: T.Buffer((48, 64), "float32")):
    for {order} in T.grid({", ".join({"i": "48", "j": "64", "k": "40"}[x] for x in order.split(", "))}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vk] * W[vk, vj]
""")
    assert isinstance(made, PrimFunc)
    return made


@T.prim_func
def centred(A: T.Buffer((24, 40), "float32"), C: T.Buffer((24, 40), "float32")):
    m = T.alloc_buffer((24,), "float32")
    for i in T.serial(24):
        for k in T.serial(40):
            with T.block("m"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    m[vi] = 0.0
                m[vi] += A[vi, vk]
        for j in T.serial(40):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] - m[vi]


@T.prim_func
def together(A: T.Buffer((16, 32), "float32"), B: T.Buffer((16, 32), "float32"), C: T.Buffer((16, 32), "float32")):
    for i, j in T.grid(16, 32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0


@T.prim_func
def stages(A: T.Buffer((64, 32), "float32"), W: T.Buffer((64,), "float32"), Z: T.Buffer((64, 32), "float32")):
    X = T.alloc_buffer((64, 32), "float32")
    Y = T.alloc_buffer((64,), "float32")
    for i in T.serial(64):
        for j in T.serial(32):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vi, vj] * 2.0
        with T.block("Y"):
            vi = T.axis.spatial(64, i)
            Y[vi] = W[vi] * 3.0
    for j, i in T.grid(32, 64):
        with T.block("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = X[vi, vj] + Y[vi]


@T.prim_func
def recurrence(A: T.Buffer((40, 8), "float32"), D: T.Buffer((40, 8), "float32"), E: T.Buffer((40, 8), "float32")):
    """B reads what C wrote in the iteration before; the nest of E is apart."""
    C = T.alloc_buffer((41, 8), "float32")
    for j in T.serial(8):
        with T.block("zero"):
            vj = T.axis.spatial(8, j)
            C[0, vj] = 0.0
    for i in T.serial(40):
        for j in T.serial(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] + C[vi, vj]
        for j in T.serial(8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi + 1, vj] = D[vi, 7 - vj] * 0.5
    for j, i in T.grid(8, 40):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = D[vi, vj] * 2.0


@T.prim_func
def state(A: T.Buffer((3000, 40), "float32"), D: T.Buffer((3000, 40), "float32")):
    """C holds the last row, which the next one reads."""
    C = T.alloc_buffer((40,), "float32")
    for i in T.serial(3000):
        for j in T.serial(40):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] + T.select(vi > 0, C[vj], T.float32(0.0))
        for j in T.serial(40):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vj] = D[vi, 39 - vj] * 0.5


@T.prim_func
def row_buffer(A: T.Buffer((3000, 40), "float32"), D: T.Buffer((3000, 40), "float32")):
    """C holds one row, which only its own iteration reads."""
    C = T.alloc_buffer((40,), "float32")
    for i in T.serial(3000):
        for j in T.serial(40):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vj] = A[vi, vj] * 0.5
        for j in T.serial(40):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = C[39 - vj] + 1.0


@T.prim_func
def shifted(A: T.Buffer((30, 40), "float32"), B: T.Buffer((30, 40), "float32"), C: T.Buffer((30, 40), "float32")):
    for i, j in T.grid(29, 40):
        with T.block("B"):
            vi = T.axis.spatial(30, i + 1)
            vj = T.axis.spatial(40, j)
            B[vi, vj] = A[vi, vj] * 2.0
    for j, i in T.grid(40, 30):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + 1.0


@T.prim_func
def below_if(A: T.Buffer((30, 40), "float32"), B: T.Buffer((30, 40), "float32")):
    for i, j in T.grid(30, 40):
        if A[i, j] > 0.0:
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0


@T.prim_func
def triangle(A: T.Buffer((30, 30), "float32"), B: T.Buffer((30, 30), "float32"), C: T.Buffer((30,), "float32")):
    for i in T.serial(30):
        for j in T.serial(i + 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(30, i)
            C[vi] = B[vi, 0] + 1.0


def arrays(func: PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random([e.as_int() for e in b.shape], "float32") for b in func.params]  # type: ignore[union-attr]


def check(space: Space, func: PrimFunc) -> None:
    """Two configurations of each sketch compute what the interpreter computes, and replay to the program of the sketch."""
    expected = run(func, arrays(func))
    for sketch in space.sketches:
        for row in sketch.space.sample(2, stream(0, sketch.name)).tolist():
            program = sketch.concretize(tuple(row))
            assert structural.equal(program, replay(sketch.trace_of(tuple(row)), func).func), sketch.name
            found = arrays(func)
            tunesmith.build(program, TARGET)[func.name](*found)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=sketch.name)


def names(func: PrimFunc, target: Target = TARGET) -> list[str]:
    return [s.name for s in generate(func, target).sketches]


def is_parallel(func: PrimFunc) -> bool:
    return any(type(n) is For and n.kind in ("parallel", "thread") for n in walk(func.body))


@pytest.mark.parametrize("order", ["i, k, j", "k, j, i", "j, i, k"])
def test_the_order_of_loops_does_not_change_the_space(order: str) -> None:
    func = product(order)
    for target in (TARGET, GPU):
        found, expected = generate(func, target).sketches, generate(product("i, j, k"), target).sketches
        assert [s.name for s in found] == [s.name for s in expected]
        assert [structural.digest(s.func) for s in found] == [structural.digest(s.func) for s in expected]
    check(Space(generate(func, TARGET).sketches[:2]), func)
    a, w, c = arrays(func)
    tunesmith.compile(func, TARGET)["matmul"](a, w, c)
    np.testing.assert_allclose(c, a @ w, rtol=1e-4)


@pytest.mark.parametrize(
    ("func", "first"), [(centred, "rows"), (together, "pointwise"), (stages, "pointwise")], ids=lambda x: getattr(x, "name", x)
)
def test_blocks_of_one_nest_get_nests_of_their_own(func: PrimFunc, first: str) -> None:
    space = generate(func, TARGET)
    assert space.sketches[0].name == first and not space.plain and not space.refused
    assert {"fission", "get_block", "get_loops"} <= {i.kind for i in space.sketches[0].trace.instructions}
    check(space, func)
    assert generate(func, GPU).sketches and not generate(func, GPU).plain


def test_divided_nests_have_the_space_of_separate_ones() -> None:
    form = normal_form(centred)
    assert not form.reasons and [i.kind for i in form.steps.instructions] == ["get_block", "get_loops", "fission"]
    assert names(centred) == names(form.func) and normal_form(form.func).func is form.func


def test_functions_in_normal_form_have_no_steps() -> None:
    func = workload("softmax(m=37,n=100)").func
    assert normal_form(func).func is func and not normal_form(func).steps.instructions


def test_an_illegal_fission_keeps_the_nest_and_names_its_blocks() -> None:
    """The other blocks have the sketches of the derivation."""
    space = generate(recurrence, TARGET)
    assert space.sketches[0].name.startswith("derived")
    shared = [line for line in space.plain if "shares" in line]
    assert [re.sub(": a later.*", "", line) for line in shared] == [
        "block B of recurrence keeps plain loops: it shares loop i with block C: fission refused [order]",
        "block C of recurrence keeps plain loops: it shares loop i with block B: fission refused [order]",
    ]
    check(space, recurrence)
    assert generate(recurrence, GPU).plain[:2] == tuple(shared)


def test_values_of_an_iteration_stay_in_it() -> None:
    """A loop whose iterations pass values through an intermediate buffer is serial; one with a buffer for each iteration is parallel."""
    for func, expected in ((state, False), (row_buffer, True)):
        space = generate(func, TARGET)
        assert [s.name for s in space.sketches] == ["fallback"] and len(space.plain) == 2
        assert is_parallel(space.sketches[0].func) is expected
        check(space, func)
    assert not any(is_parallel(s.func) for s in generate(row_buffer, GPU).sketches), "threads would share the buffer"


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (shifted, "block B of shifted keeps plain loops: its variable vi is 1 + i, not a loop of its own"),
        (below_if, "block B of below_if keeps plain loops: it is below an `if` outside of blocks; move the condition into the block"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_other_nests_are_named(func: PrimFunc, why: str) -> None:
    for target in (TARGET, GPU):
        space = generate(func, target)
        assert space.plain == (why,)
    check(generate(func, TARGET), func)


def test_a_triangle_is_divided() -> None:
    space = generate(triangle, TARGET)
    assert space.sketches and is_parallel(space.sketches[0].func)
    check(space, triangle)
    assert is_parallel(generate(triangle, GPU).sketches[0].func)


@pytest.mark.parametrize("func", [centred, together, recurrence, shifted, below_if], ids=lambda f: f.name)
def test_rules_by_name_give_nothing_for_other_nests(func: PrimFunc) -> None:
    """A rule that a search names gets the function as it is."""
    for name in ("contraction", "rows", "reductions", "pointwise", "stages"):
        assert find_rules([name])[0](func, TARGET) == []
    for name in ("gpu_contraction", "gpu_rows", "gpu_reductions", "gpu_pointwise"):
        assert find_rules([name])[0](func, GPU) == []
    assert [s.name for s in generate(func, TARGET, [built_in]).sketches] == names(func)


def test_nests_that_are_scheduled_already_stay_as_they_are() -> None:
    s = Schedule(together)
    s.parallel(s.get_loops(s.get_block("B"))[0])
    func = s.func
    message = "together, which is scheduled already: loop i is parallel, and block B: it shares loop j with block C"
    with pytest.raises(BuildError, match=message):
        generate(func, TARGET)
    assert built_in(func, TARGET) == [] and normal_form(func).func is func
    assert analytic_schedule(func, TARGET) is func


def test_a_space_without_a_sketch_names_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(names: Sequence[str]) -> tuple[()]:
        return ()

    monkeypatch.setattr("tunesmith.search.space.rules_table.find_rules", none)
    with pytest.raises(
        BuildError, match=r"no sketch rule applies to below_if \(block B of below_if keeps plain loops: it is below an `if`"
    ):
        generate(below_if, TARGET)
