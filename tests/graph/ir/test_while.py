"""Test loops with a condition of data, sizes that are read from tensors, and recursion: form, text, passes, and compiled programs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.emit.lowered_form import CopyStep, WhileStep, lowered_form
from tunesmith.graph.ir import structural
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Binding, Constant, Operand, ReadSize, Region, While, all_bindings
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.common_subexpressions import common_subexpressions
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.inline_functions import inline_functions
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import load_module
from tunesmith.support.errors import BuildError, RunError, ScriptError, UserError

TARGET = Target.detect()
TEXT = """@G.function
def main(x: G.Tensor((4,), "float32"), limit: G.Tensor((), "float32"), k: G.Tensor((), "int64")):
    zero = G.constant(0, (), "int64")
    one = G.constant(1, (), "int64")
    two = G.constant(2.0, (), "float32")
    for i, h in G.while_loop(zero, x):
        total = G.sum(h)
        more = G.less(total, limit)
        while more:
            j = G.add(i, one)
            doubled = G.multiply(h, two)
            count, last = j, doubled
    n = G.read_size(k)
    full = G.full(shape=(n,), value=1.0, dtype="float32")
    joined = G.concat(last, full, axis=0)
    return count, joined"""
X = np.full(4, 0.25, np.float32)


def expected(limit: float, k: int) -> tuple[int, np.ndarray]:
    count, h = 0, X
    while h.sum() < limit:
        count, h = count + 1, h * 2
    return count, np.concatenate([h, np.ones(k, np.float32)])


def check(found: Sequence[np.ndarray], limit: float, k: int) -> None:
    count, joined = expected(limit, k)
    assert found[0] == count
    np.testing.assert_array_equal(found[1], joined)


CASES = [(0.5, 2), (20.0, 0), (100.0, 5), (1.0, 1)]


def arguments(limit: float, k: int) -> list[np.ndarray]:
    return [X, np.float32(limit)[...], np.array(k)]


def module(text: str = TEXT) -> IRModule:
    return IRModule({"main": parse(text)})


def test_text_round_trips() -> None:
    func = parse(TEXT)
    verify(func)
    assert str(func) == TEXT
    digest = structural.digest(func)
    assert structural.digest(parse(str(func))) == digest
    for before, after in [("j, doubled", "i, doubled"), ("G.less(", "G.greater("), ("(n,)", "(n + 1,)"), ("(zero, x)", "(one, x)")]:
        assert structural.digest(parse(TEXT.replace(before, after))) != digest


@pytest.mark.parametrize(("limit", "k"), CASES)
def test_interpretation(limit: float, k: int) -> None:
    check(run(parse(TEXT), arguments(limit, k)), limit, k)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("G.while_loop(zero, x)", "G.while_loop(zero)", "the loop names 2 carried values, and has 1 initial ones"),
        ("G.while_loop(zero, x)", "G.while_loop(zero, x, n=1)", "its last statement is `while c:`"),
        ("while more:", "while total:", "the condition of a loop must be bool[]"),
        ("while more:", "while gone:", "`gone` is not bound here"),
        ("j = G.add(i, one)", "j = G.add(i, total)", "`total` is not bound here"),
        ("count, last = j, doubled", "count, last = doubled, j", "the results of a while_loop are the next carried values"),
        ("count, last = j, doubled", "count = j", "the results of a while_loop are the next carried values"),
        ("return count, joined", "return count, h", "`h` is not bound here"),
        ("G.read_size(k)", "G.read_size(limit)", "one size is read from int64[], got float32[]"),
        ("n = G.read_size(k)", "n, m = G.read_size(k)", "one size is read"),
        ("G.read_size(k)", "G.read_size(k, at_most=n)", "unknown name `n`"),
        ("n = G.read_size(k)", "x = G.read_size(k)", "`x` already names a tensor"),
        ("shape=(n,)", "shape=(k,)", "`k` is a tensor; only sizes and numbers are allowed here"),
    ],
)
def test_texts_that_are_refused(before: str, after: str, message: str) -> None:
    assert before in TEXT
    with pytest.raises(ScriptError, match=re.escape(message)):
        parse(TEXT.replace(before, after))


def test_sizes_that_a_region_reads_are_unknown_outside() -> None:
    text = TEXT.replace("            j = ", "            m = G.read_size(i)\n            j = ").replace("shape=(n,)", "shape=(m,)")
    with pytest.raises(ScriptError, match="`m`"):
        parse(text)


def changed(**fields: Any) -> GraphFunc:
    """The function with a loop that differs in some fields."""
    func = parse(TEXT)
    first, *others = func.body.bindings
    assert isinstance(first.operation, While)
    given = {name: change(first.operation) for name, change in fields.items()}
    return func.with_(body=Region((Binding(first.results, replace(first.operation, **given)), *others), func.body.results))


SMALL = Constant("c", np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"initial": lambda o: (o.initial[0], SMALL)}, "carried value 1 is float32[4], but its initial value is float32[3]"),
        ({"initial": lambda o: o.initial[:1]}, "a loop with 1 initial values must have as many parameters, got 2"),
        ({"body": lambda o: replace(o.body, results=o.body.results[:1])}, "the region of a loop with 2 carried values has 1 results"),
        ({"body": lambda o: Region((), (o.params[0], SMALL))}, "carried value 1 is float32[4], but the region computes float32[3]"),
        ({"condition": lambda o: Region((), o.params)}, "the condition of a loop must be one bool[], got int64[], float32[4]"),
        ({"body": lambda o: replace(o.body, results=(o.body.results[0], o.condition.bindings[0].results[0]))}, "used outside the region"),
        ({"initial": lambda o: (), "params": lambda o: (), "body": lambda o: Region((), (SMALL,))}, "which is not bound before"),
    ],
)
def test_ill_formed_loops(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)):
        verify(changed(**fields))


def test_ill_formed_readings() -> None:
    b = GraphBuilder("main")
    k = b.input("k", (), "int64")
    n = b.read_size(k)
    y = b.full(shape=(n,), value=1.0, dtype="float32")
    func = b.finish(y)
    verify(func)
    read, full = func.body.bindings
    for bindings, message in [
        ((full, read), "uses the size n, which no parameter has as an extent by itself"),
        ((read, read, full), "a size that is read must be a new Var, got n"),
        ((Binding((), ReadSize(SMALL, n)), full), "a size is read from int64[], got float32[3]"),
        ((Binding((), ReadSize(k, poly(n))), full), "a size that is read must be a new Var"),  # type: ignore[arg-type]
        ((Binding((y,), ReadSize(k, n)),), "has 0 results, but 1 values are bound to them"),
        ((Binding((), ReadSize(k, n, poly(n))), full), "the limit of the size n, n, uses the size n"),
        ((Binding((), ReadSize(k, n, n)), full), "the limit of the size n must be an index expression (Poly), got Var"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ScriptError, match=re.escape(message)):
            verify(func.with_(body=Region(bindings, (y,))))


def test_builders_refuse() -> None:
    b = GraphBuilder("main")
    x, c = b.input("x", (2,)), b.input("c", (), "bool")
    with pytest.raises(ScriptError, match="there must be a carried value"):
        b.while_loop([], lambda r: c, lambda r: [])
    with pytest.raises(ScriptError, match=re.escape("the condition must be bool[], got float32[2]")):
        b.while_loop([x], lambda r, y: y, lambda r, y: [y])
    with pytest.raises(ScriptError, match="the region computes"):
        b.while_loop([x], lambda r, y: c, lambda r, y: [y, y])
    with pytest.raises(ScriptError, match=re.escape("a size is read from int64[], got float32[2]")):
        b.read_size(x)


# ---- passes --------------------------------------------------------------------------------------------------------------------


def test_a_reading_is_dead_without_its_size() -> None:
    func = parse(TEXT)
    kinds = lambda mod: [type(b.operation).__name__ for b in mod["main"].body.bindings]  # noqa: E731
    assert kinds(dead_code(IRModule({"main": func}))) == ["While", "ReadSize", "Call", "Call"]
    alone = func.with_(body=Region(func.body.bindings, func.body.results[:1]))
    assert kinds(dead_code(IRModule({"main": alone}))) == ["While"]


def test_equal_calls_in_both_regions_stay() -> None:
    """A call of the condition is not visible in the region, an outer one is."""
    text = TEXT.replace("            j = ", "            again = G.sum(h)\n            j = ").replace(
        "doubled = G.multiply(h, two)", "doubled = G.multiply(h, again)"
    )
    done = common_subexpressions(module(text))
    verify(done["main"])
    assert str(done["main"]).count("G.sum(") == 2


def test_tasks_count_the_functions_of_a_loop_once() -> None:
    lowered = GRAPH(module(), TARGET)
    assert {t.weight for t in extract_tasks(lowered)} == {1}
    assert any("sum" in t.name for t in extract_tasks(lowered))


def test_functions_with_loops_and_sizes_are_inlined_twice() -> None:
    b = GraphBuilder("main")
    x, k = b.input("x", (4,)), b.input("k", (), "int64")
    inner = GraphBuilder("part")
    p, q = inner.input("p", (4,)), inner.input("q", (), "int64")
    n = inner.read_size(q)
    total = inner.sum(inner.full(shape=(n,), value=1.0, dtype="float32"))
    (looped,) = inner.while_loop([p], lambda r, v: r.less(r.sum(v), total), lambda r, v: [r.add(v, r.constant(1.0))])
    part = inner.finish(looped)
    (first,) = b.call_function("part", [x, k], [x.type])
    (second,) = b.call_function("part", [first, b.multiply(k, b.constant(np.array(3)))], [x.type])
    mod = IRModule({"main": b.finish(second), "part": part})
    done = inline_functions(mod)
    assert list(done) == ["main"]
    verify(done["main"])
    sizes = {op.size for c in all_bindings(done["main"].body) if isinstance(op := c.operation, ReadSize)}
    assert len(sizes) == 2
    for k_value in (0, 3):
        want = run(mod["main"], [X, np.array(k_value)], mod)[0]
        np.testing.assert_array_equal(run(done["main"], [X, np.array(k_value)])[0], want)
        np.testing.assert_array_equal(tunesmith.compile(mod, TARGET)(X, np.array(k_value)), want)


# ---- compiled programs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return tunesmith.compile(module(), TARGET)


@pytest.mark.parametrize(("limit", "k"), CASES)
def test_compiled(model: Any, limit: float, k: int) -> None:
    assert model.executor.kind == "vm"
    check(model(*arguments(limit, k)), limit, k)
    assert model.executor.outputs[1].shape == ("n+4",)


def test_calls_of_one_model(model: Any, tmp_path: Path) -> None:
    """Reused outputs, profiles, traces, and a library that is loaded again."""
    for i, a in enumerate(arguments(20.0, 3)):
        model.executor.set_input(i, a)
    model.executor.run()
    check([model.executor.get_output(0), model.executor.get_output(1)], 20.0, 3)
    rows = {r.function: r for r in model.profile(*arguments(20.0, 3), repeats=2)}
    assert rows["op_multiply"].calls == 2 * expected(20.0, 3)[0]
    assert rows["op_multiply"].microseconds > 0
    traced = tunesmith.debug.trace(model, *arguments(20.0, 3))
    np.testing.assert_array_equal(traced.calls[-1].array, expected(20.0, 3)[1])
    model.export_library(tmp_path / "model.so")
    check(load_module(tmp_path / "model.so")(*arguments(1.5, 2)), 1.5, 2)


def test_a_size_beyond_its_limit_is_an_error(tmp_path: Path) -> None:
    """The limit may depend on other sizes; it is part of scripts, digests and saved programs."""
    text = """@G.function(sizes=("m",))
def main(x: G.Tensor((m,), "float32"), k: G.Tensor((), "int64")):
    n = G.read_size(k, at_most=m + 1)
    y = G.full(shape=(n,), value=1.0, dtype="float32")
    return y"""
    func = parse(text)
    assert str(func) == text and structural.digest(func) != structural.digest(parse(text.replace(", at_most=m + 1", "")))
    model = tunesmith.compile(IRModule({"main": func}), TARGET)
    model.export_library(tmp_path / "model.so")
    a = np.zeros(3, np.float32)
    for call in (lambda *xs: run(func, xs)[0], model, load_module(tmp_path / "model.so")):
        assert call(a, np.int64(4)).shape == (4,)
        with pytest.raises(RunError, match="the size n is read from a tensor, which must be at most 4, and is 5"):
            call(a, np.int64(5))


def test_a_negative_size_is_an_error(model: Any) -> None:
    for call in (model, lambda *a: run(parse(TEXT), a)):
        with pytest.raises(RunError, match="the size n is read from a tensor, which must be at least 0, and is -1"):
            call(*arguments(1.0, -1))
    check(model(*arguments(20.0, 2)), 20.0, 2)


def test_carried_values_that_change_places() -> None:
    """Fibonacci numbers, a rotation, and a value that stays: no copy may overwrite a value that is still needed."""
    b = GraphBuilder("main")
    n = b.input("n", (), "int64")
    one, zero = b.constant(np.array(1)), b.constant(np.array(0))
    given = [b.input(name, (3,), "int64") for name in "abcd"]
    more = lambda r, i, *v: r.less(i, n)  # noqa: E731
    results = b.while_loop([zero, *given], more, lambda r, i, p, q, s, t: [r.add(i, one), q, r.add(p, q), t, s])
    kept = b.while_loop([zero, results[1]], more, lambda r, i, v: [r.add(i, one), v])
    func = b.finish(*results, kept[1])
    arrays = [np.arange(3) + 10 * k for k in range(4)]
    compiled = tunesmith.compile(IRModule({"main": func}), TARGET)
    for trips in (0, 1, 2, 7):
        want = run(func, [np.array(trips), *arrays])
        for found, w in zip(compiled(np.array(trips), *arrays), want, strict=True):
            np.testing.assert_array_equal(found, w)


def test_a_call_writes_the_next_value_if_nothing_reads_the_old_one() -> None:
    """`doubled` reads h, so that it is copied; a sum of others would be stored directly."""
    lowered = GRAPH(module(TEXT.replace("G.multiply(h, two)", "G.multiply(x, two)")), TARGET)
    loop = next(s for s in lowered_form(lowered).steps if isinstance(s, WhileStep))
    assert sum(isinstance(s, CopyStep) for s in loop.body) == 1
    loop = next(s for s in lowered_form(GRAPH(module(), TARGET)).steps if isinstance(s, WhileStep))
    assert sum(isinstance(s, CopyStep) for s in loop.body) == 2


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_nested_loop_reads_a_carried_value_after_its_results_have_initial_values(executor: str) -> None:
    """The storage of a result of the inner loop is written before the loop, while the old carried value is still to be read."""
    b = GraphBuilder("main")
    x, y = b.input("x", (3,)), b.input("y", (3,))
    one, two, zero = [b.constant(np.array(n)) for n in (1, 2, 0)]

    def body(r: RegionBuilder, v: Operand, i: Operand, total: Operand) -> list[Operand]:
        more = lambda q, a, c, k: q.less(k, two)  # noqa: E731
        a, c, _ = r.while_loop([y, v, zero], more, lambda q, a, c, k: [q.add(a, c), c, q.add(k, one)])
        return [a, r.add(i, one), r.add(total, c)]

    initial = [x, zero, b.constant(np.zeros(3, np.float32))]
    results = b.while_loop(initial, lambda r, v, i, total: r.less(i, two), body)
    func = b.finish(*results)
    given = [np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)]
    model = tunesmith.compile(IRModule({"main": func}), TARGET, executor=executor)
    for found, want in zip(model(*given), run(func, given), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_rows_of_a_loop_are_the_next_carried_value(executor: str) -> None:
    """The rows are stored one by one, between reads of the old value."""
    b = GraphBuilder("main")
    x, one, two = b.input("x", (3,)), b.constant(np.array(1)), b.constant(np.array(2))

    def body(r: RegionBuilder, v: Operand, i: Operand) -> list[Operand]:
        step = lambda q, t, s: ([q.add(s, q.max(v))], [q.add(q.sum(v), s)])  # noqa: E731
        return [r.loop(3, [b.constant(np.float32(0))], step)[1], r.add(i, one)]

    results = b.while_loop([x, b.constant(np.array(0))], lambda r, v, i: r.less(i, two), body)
    func = b.finish(*results)
    given = [np.array([1, 2, 3], np.float32)]
    model = tunesmith.compile(IRModule({"main": func}), TARGET, executor=executor)
    for found, want in zip(model(*given), run(func, given), strict=True):
        np.testing.assert_array_equal(found, want)


def test_sizes_in_a_loop_are_read_in_each_iteration() -> None:
    """Sum of the lengths 0 + 1 + ... + (k - 1), each that of a tensor of its own."""
    b = GraphBuilder("main")
    k = b.input("k", (), "int64")
    one, zero = b.constant(np.array(1)), b.constant(np.array(0))

    def step(r: RegionBuilder, i: Operand, total: Operand) -> list[Operand]:
        n = r.read_size(i)
        return [r.add(i, one), r.add(total, r.sum(r.full(shape=(n, 3), value=1, dtype="int64")))]

    results = b.while_loop([zero, zero], lambda r, i, total: r.less(i, k), step)
    compiled = tunesmith.compile(IRModule({"main": b.finish(*results)}), TARGET)
    for k_value in (0, 1, 50, 3):
        assert [int(v) for v in compiled(np.array(k_value))] == [k_value, 3 * sum(range(k_value))]


STATIC = TEXT.replace("    n = G.read_size(k)\n", "").replace("(n,)", "(1,)")
C = pytest.param("c", marks=pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here"))


def test_functions_of_sizes_that_are_read_are_tuned(tmp_path: Path) -> None:
    """For ranges of the sizes by their names, as for dynamic shapes of inputs."""
    few: dict[str, Any] = {"search": tunesmith.Search("random", seed=1, leaders=0), "budget": 2, "workers": 0, "progress": False}
    with pytest.raises(UserError, match="the model has the dynamic size n: pass the sizes to tune it for"):
        tunesmith.tune(module(), TARGET, log=tmp_path / "log.jsonl", **few)
    with pytest.raises(UserError, match="main has no size m"):
        tunesmith.tune(module(), TARGET, log=tmp_path / "log.jsonl", sizes="n=4 m=4", **few)
    tunesmith.tune(module(), TARGET, log=tmp_path / "log.jsonl", sizes="n=1..8", **few)
    model = tunesmith.compile(module(), TARGET, tmp_path / "log.jsonl")
    assert any(c.sizes and c.status == "used" for c in model.coverage), model.coverage
    for limit, k in CASES:
        check(model(*arguments(limit, k)), limit, k)


def test_what_each_executor_runs() -> None:
    for executor in ("graph", "aot"):
        with pytest.raises(BuildError, match=re.escape('Compile it for the virtual machine: executor="vm"')):
            tunesmith.compile(module(), TARGET, executor=executor)
    with pytest.raises(BuildError, match=re.escape("main has branches or `while` loops")):
        tunesmith.compile(module(STATIC), TARGET, executor="graph")
    check(tunesmith.compile(module(STATIC), TARGET)(*arguments(9.0, 1)), 9.0, 1)


@pytest.mark.parametrize("kind", ["llvm", C])
def test_loops_and_branches_ahead_of_time(kind: str, tmp_path: Path) -> None:
    """A loop in a branch in a loop: memory of what the outer loop needs is not used again in the inner one."""
    b = GraphBuilder("main")
    x, n = b.input("x", (4,)), b.input("n", (), "int64")
    one, zero, two = b.constant(np.array(1)), b.constant(np.array(0)), b.constant(np.array(2))
    outside = b.exp(x)

    def inner(r: RegionBuilder, h: Operand, limit: Operand) -> Operand:
        return r.while_loop([zero, h], lambda q, j, v: q.less(j, limit), lambda q, j, v: [q.add(j, one), q.tanh(q.add(v, outside))])[1]

    def body(r: RegionBuilder, i: Operand, h: Operand, other: Operand) -> list[Operand]:
        even = r.equal(r.mod(i, two), zero)
        made = r.branch(even, lambda q: inner(q, h, i), lambda q: q.neg(h), name="made")
        return [r.add(i, one), r.add(made, r.sin(other)), h]

    results = b.while_loop([zero, x, outside], lambda r, i, *v: r.less(i, n), body)
    mod = IRModule({"main": b.finish(*results, outside)})
    model = tunesmith.compile(mod, kind, executor="aot")
    assert isinstance(model, tunesmith.CompiledModel)
    loaded = model
    if kind == "llvm":
        model.export_library(tmp_path / "model.so")
        loaded = load_module(tmp_path / "model.so")
    for trips in (0, 1, 2, 7):
        want = run(mod["main"], [X, np.array(trips)])
        for call in (model, loaded):
            for found, w in zip(call(X, np.array(trips)), want, strict=True):
                np.testing.assert_allclose(found, w, rtol=1e-5, atol=1e-6)


# ---- recursion -------------------------------------------------------------------------------------------------------------------


def power() -> IRModule:
    """x ** n by repeated squaring: two functions that call each other; sizes of the operands are those of the callers."""
    m = Var("m")
    mod = {}
    for name, other in (("power", "square"), ("square", "power")):
        b = GraphBuilder(name)
        n, x = b.input("n", (), "int64"), b.input("x", (m,), "int64")
        two, one = b.constant(np.array(2)), b.constant(np.array(1))
        if name == "square":
            (half,) = b.call_function(other, [b.floor_divide(n, two), x], [x.type])
            mod[name] = b.finish(b.multiply(half, half))
            continue

        def odd(r: RegionBuilder, n: Operand = n, x: Operand = x, one: Operand = one) -> Operand:
            return r.multiply(x, r.call_function("power", [r.subtract(n, one), x], [x.type])[0])

        def even(r: RegionBuilder, n: Operand = n, x: Operand = x, other: str = other) -> Operand:
            return r.call_function(other, [n, x], [x.type])[0]

        ones = b.full(shape=(m,), value=1, dtype="int64")
        is_odd = b.equal(b.mod(n, two), one)
        rest = lambda r, is_odd=is_odd, odd=odd, even=even: r.branch(is_odd, odd, even)  # noqa: E731
        mod[name] = b.finish(b.branch(b.less(n, one), lambda r, ones=ones: ones, rest))
    b = GraphBuilder("main")
    n, x = b.input("n", (), "int64"), b.input("x", (m,), "int64")
    mod["main"] = b.finish(b.add(b.call_function("power", [n, x], [x.type])[0], x))
    return IRModule(mod)


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    mod = power()
    for f in mod.values():
        verify(f, mod)
    model = tunesmith.compile(mod, TARGET)
    model.export_library(tmp_path / "power.so")
    loaded = load_module(tmp_path / "power.so")
    x = np.array([2, 3, -1])
    for n in (0, 1, 2, 9, 13):
        for call in (model, loaded, lambda *a: run(mod["main"], a, mod)[0]):
            np.testing.assert_array_equal(call(np.array(n), x), x**n + x)
    assert {t.weight for t in extract_tasks(GRAPH(mod, TARGET))} <= {1, 2}


def test_recursion_without_an_end() -> None:
    b = GraphBuilder("forever")
    x = b.input("x", (2,))
    forever = b.finish(b.call_function("forever", [b.relu(x)], [x.type])[0])
    b = GraphBuilder("main")
    x = b.input("x", (2,))
    mod = IRModule({"main": b.finish(b.call_function("forever", [x], [x.type])[0]), "forever": forever})
    model = tunesmith.compile(mod, TARGET)
    for call in (model, lambda a: run(mod["main"], [a], mod)):
        with pytest.raises(RunError, match=r"calls itself more than 10000 times|infinite recursion"):
            call(np.ones(2, np.float32))
    with pytest.raises(BuildError, match="functions that call themselves"):
        tunesmith.compile(mod, TARGET, executor="graph")
    with pytest.raises(BuildError, match="must not be recursive"):
        inline_functions(mod)
