"""Test loops of graph functions: their form, text, interpretation, passes, and compiled programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir import structural
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Binding, Constant, Loop, Operand, Region, TensorType, Value, all_bindings
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.bind_sizes import bind_sizes
from tunesmith.graph.passes.common_subexpressions import common_subexpressions
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning import tasks as tasks_module
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.runtime.module import load_module
from tunesmith.support.errors import BuildError, ScriptError
from tunesmith.support.seeds import stream

TARGET = Target.detect()
TEXT = """@G.function
def main(x: G.Tensor((5, 4), "float32"), h: G.Tensor((4,), "float32")):
    two = G.constant(2.0, (), "float32")
    for t, h_0 in G.loop(5, h):
        row = G.row(x, index=t)
        y = G.multiply(row, two)
        h_1 = G.add(h_0, y)
        last, rows, sums = h_1, y, h_1
    return last, rows, sums"""


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "loop", *shape).standard_normal(shape).astype(np.float32)


X, H = data(5, 4), data(4, seed=1)


def module(text: str = TEXT) -> IRModule:
    return IRModule({"main": parse(text)})


def test_text_round_trips() -> None:
    func = parse(TEXT)
    verify(func)
    assert str(func) == TEXT
    assert structural.digest(parse(str(func))) == structural.digest(func)
    assert structural.digest(parse(TEXT.replace("loop(5", "loop(4"))) != structural.digest(func)
    assert structural.digest(parse(TEXT.replace("h_1, y, h_1", "h_1, h_1, y"))) != structural.digest(func)


def test_a_loop_without_carried_values() -> None:
    text = TEXT.replace("for t, h_0 in G.loop(5, h):", "for t in G.loop(5):").replace("G.add(h_0, y)", "G.add(h, y)")
    text = text.replace("last, rows, sums = h_1, y, h_1", "rows, sums = y, h_1").replace("return last, rows", "return rows")
    func = parse(text)
    verify(func)
    assert str(func) == text
    rows, sums = run(func, [X, H])
    np.testing.assert_allclose(rows, 2 * X)
    np.testing.assert_allclose(sums, 2 * X + H)


def test_interpretation() -> None:
    last, rows, sums = run(parse(TEXT), [X, H])
    np.testing.assert_allclose(rows, 2 * X, rtol=1e-6)
    np.testing.assert_allclose(sums, H + np.cumsum(2 * X, 0), rtol=1e-5)
    np.testing.assert_allclose(last, sums[-1])


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("G.loop(5, h)", "G.loop(0, h)", "the number of iterations"),
        ("G.loop(5, h)", "G.loop(h)", "`h` is a tensor; only sizes and numbers are allowed here"),
        ("G.loop(5, h)", "G.loop()", "a loop is over the number of iterations and the initial values"),
        ("G.loop(5, h)", "range(5)", "a loop is over the number of iterations and the initial values"),
        ("G.loop(5, h)", "G.loop(5, h, x)", "the loop names 1 carried values, and has 2 initial ones"),
        ("G.loop(5, h)", "G.loop(5, h, step=2)", "a loop has no other argument by name than `stores`"),
        ("G.loop(5, h)", "G.loop(5, two)", "the first 1 results of a loop are the next carried values, with the types of the initial"),
        ("for t, h_0", "for x, h_0", "`x` already names a tensor"),
        ("last, rows, sums = h_1, y, h_1", "last, rows, sums = row, y", "cannot assign 2 tensors to 3 names"),
        ("index=t", "index=s", "s"),
        ("index=t", "index=7", "row 7 is out of range"),
        ("return last, rows, sums", "return last, y", "`y` is not bound here"),
    ],
)
def test_texts_that_are_refused(before: str, after: str, message: str) -> None:
    assert before in TEXT
    with pytest.raises(ScriptError, match=re.escape(message)):
        parse(TEXT.replace(before, after))


def changed(**fields: Any) -> GraphFunc:
    """The function with a loop that differs in some fields."""
    func = parse(TEXT)
    (b,) = func.body.bindings
    assert isinstance(b.operation, Loop)
    given = {name: change(b.operation) if callable(change) else change for name, change in fields.items()}
    return func.with_(body=Region((Binding(b.results, replace(b.operation, **given)),), func.body.results))


def other(loop: Loop) -> Operand:
    return Constant("c", np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trips": 0}, "a loop has at least one iteration, got 0"),
        ({"trips": True}, "a loop has at least one iteration, got True"),
        ({"index": poly(1)}, "the number of the iteration must be a new Var"),
        ({"initial": lambda o: (other(o),)}, "carried value 0 is float32[4], but its initial value is float32[3]"),
        ({"initial": lambda o: (*o.initial, other(o))}, "a loop with 2 initial values must have as many parameters"),
        ({"body": lambda o: Region(o.body.bindings, ())}, "the region of a loop with 1 carried values has only 0 results"),
        ({"body": lambda o: Region((), (other(o),))}, "the region computes float32[3] for the next iteration"),
        ({"trips": 4}, "result 1 of the loop is float32[4, 4], but the value rows bound to it is float32[5, 4]"),
    ],
)
def test_ill_formed_loops(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)):
        verify(changed(**fields))


def test_values_of_the_region_are_not_visible_outside() -> None:
    func = parse(TEXT)
    loop: Any = func.body.bindings[0].operation
    for hidden in (loop.params[0], loop.body.bindings[0].results[0]):
        with pytest.raises(ScriptError, match="used outside the region that binds it"):
            verify(func.with_(body=Region(func.body.bindings, (hidden,))))


def test_shapes_do_not_depend_on_the_iteration() -> None:
    b = GraphBuilder("main")

    def body(r: RegionBuilder, t: Var, *held: Operand) -> Any:
        return [], [r.full(shape=(t,), value=1.0, dtype="float32")]

    b.loop(3, [], body)
    with pytest.raises(ScriptError, match="its shape must not depend on the iteration"):
        verify(b.finish(*b.bindings[0].results))


def test_builder_errors() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (3,))
    with pytest.raises(ScriptError, match="loop: there must be at least one iteration, got 0"):
        b.loop(0, [x], lambda r, t, h: ([h], []))
    with pytest.raises(ScriptError, match=r"loop: the carried values are \[float32\[3\]\], but the region computes \[float32\[1, 3\]\]"):
        b.loop(2, [x], lambda r, t, h: ([r.expand_dims(h, axes=(0,))], []))


# ---- passes and programs ----------------------------------------------------------------------------------------------------------------


def recurrent(steps: int = 6) -> IRModule:
    """Two loops, one backwards, with products, of which the second is inside of a loop over images."""
    b = GraphBuilder("main")
    x, h = b.input("x", (steps, 3, 8)), b.input("h", (3, 8))
    w = b.constant(data(8, 8, seed=2) * 0.3, "w")

    def step(r: RegionBuilder, t: Any, *held: Operand) -> Any:
        made = r.tanh(r.add(r.matmul(held[0], w), r.row(x, index=t)))
        return [made], [made]

    last, rows = b.loop(steps, [h], step)

    def image(r: RegionBuilder, n: Var, total: Operand) -> Any:
        part = r.row(r.permute_dims(rows, axes=(1, 0, 2)), index=n)
        inner, _ = r.loop(steps, [total], lambda q, t, s: ([q.add(s, q.row(part, index=steps - 1 - poly(t)))], [s]))
        return [inner], [r.relu(inner)]

    total, images = b.loop(3, [b.constant(np.zeros(8, np.float32))], image)
    return IRModule({"main": b.finish(last, rows, total, images)})


def inputs(steps: int = 6) -> list[np.ndarray]:
    return [data(steps, 3, 8), data(3, 8, seed=4)]


def expected(steps: int = 6) -> list[np.ndarray]:
    x, h = inputs(steps)
    w, rows = data(8, 8, seed=2) * 0.3, []
    for t in range(steps):
        h = np.tanh(h @ w + x[t])
        rows.append(h)
    sums = np.cumsum(np.stack(rows).sum(0), 0)
    return [h, np.stack(rows), sums[-1], np.maximum(sums, 0)]


def check(got: Any) -> None:
    for a, b in zip(got, expected(len(got[1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_passes() -> None:
    mod = recurrent()
    verify(mod["main"], mod)
    check(run(mod["main"], inputs(), mod))
    for p in GRAPH.passes:
        mod = p(mod, TARGET)
        verify(mod["main"], mod)
        check(run(mod["main"], inputs(), mod))
    assert all(isinstance(mod[name], PrimFunc) for name in mod if name != "main")


def test_the_lowered_text_round_trips(assert_golden: Callable[..., None]) -> None:
    mod = GRAPH(module(), TARGET)
    assert_golden("\n\n".join(str(mod[name]) for name in ("main", "store_row")))
    assert str(parse(str(mod["main"]))) == str(mod["main"])


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_compiled_programs(executor: str, tmp_path: Path) -> None:
    compiled = tunesmith.compile(recurrent(), executor=executor)
    for _ in range(2):
        check(compiled(*inputs()))
    if executor != "vm":
        check(load_module(compiled.export_library(tmp_path / "m.so"))(*inputs()))


def test_branches_in_loops_and_loops_in_branches() -> None:
    b = GraphBuilder("main")
    x, c = b.input("x", (4, 3)), b.input("c", (4,), "bool")

    def body(r: RegionBuilder, t: Var, s: Operand) -> Any:
        row = r.row(x, index=t)
        made = r.branch(r.row(c, index=t), lambda q: q.add(s, row), lambda q: q.subtract(s, row))
        return [made], [r.relu(made)]

    zero = b.constant(np.zeros(3, np.float32))
    last, rows = b.loop(4, [zero], body)
    flag = b.row(c, index=0)
    y = b.branch(flag, lambda r: r.loop(2, [last], lambda q, t, s: ([q.multiply(s, s)], []))[0], lambda r: r.neg(last))
    mod = IRModule({"main": b.finish(last, rows, y)})
    verify(mod["main"], mod)
    compiled = tunesmith.compile(mod)
    assert compiled.executor.kind == "vm"
    for flags in ([True, False, True, True], [False, False, True, False]):
        given = [data(4, 3), np.array(flags)]
        sums = np.cumsum(np.where(given[1][:, None], given[0], -given[0]), 0)
        answers = sums[-1], np.maximum(sums, 0), sums[-1] ** 4 if flags[0] else -sums[-1]
        for results in (compiled(*given), run(mod["main"], given, mod)):
            for got, want in zip(results, answers, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_number_of_functions_does_not_depend_on_the_length() -> None:
    few, many = [GRAPH(recurrent(steps), TARGET) for steps in (2, 40)]
    assert len(few) == len(many)
    check(tunesmith.compile(recurrent(40))(*inputs(40)))


def test_tasks_are_weighted_by_the_iterations_and_copies_of_rows_are_none() -> None:
    tasks = {t.name: t.weight for t in extract_tasks(GRAPH(recurrent(), TARGET))}
    assert tasks["fused_matmul_add_tanh"] == 6 and tasks["op_add"] == 18 and tasks["op_relu"] == 3
    assert not any("row" in name for name in tasks)


def test_a_log_covers_a_model_with_a_loop(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    search = tunesmith.Search("random", seed=1, leaders=0)
    tunesmith.tune(recurrent(), log=log, search=search, budget=2, workers=0, progress=False)
    compiled = tunesmith.compile(recurrent(), records=log, strict=True)
    assert {c.status for c in compiled.coverage} == {"used", "plain"}
    assert all("it copies a row" in c.reason for c in compiled.coverage if c.status == "plain")
    check(compiled(*inputs()))
    bytes_of = {r.workload: r.policy["constant_bytes"] for r in Database.from_log(log).records()}
    tasks = extract_tasks(GRAPH(recurrent(), TARGET))
    assert all(t.in_loop for t in tasks) and {bytes_of[t.digest] for t in tasks} == {0}


def test_only_small_constants_of_a_loop_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function outside of the loop, too, takes its weights from memory."""

    def looped(outside: bool) -> dict[str, bool]:
        b = GraphBuilder("main")
        x, w = b.input("x", (4,)), b.constant(np.eye(4, dtype=np.float32))
        step = lambda r, t, h: ((r.tanh(r.matmul(h, w)),), ())  # noqa: E731
        (h,) = b.loop(5, [x], step)
        mod = IRModule({"main": b.finish(b.tanh(b.matmul(h, w)) if outside else h)})
        return {t.name: t.in_loop for t in extract_tasks(GRAPH(mod, TARGET))}

    assert set(looped(False).values()) == {True}
    assert set(looped(True).values()) == {False}
    monkeypatch.setattr(tasks_module, "CACHED_BYTES", 63)
    assert set(looped(False).values()) == {False}


def test_dead_code_and_common_subexpressions_in_a_region() -> None:
    text = TEXT.replace("h_1 = G.add(h_0, y)", "again = G.row(x, index=t)\n        z = G.exp(again)\n        h_1 = G.add(h_0, y)")
    mod = dead_code(common_subexpressions(module(text)))
    assert structural.digest(mod["main"]) == structural.digest(parse(TEXT))


def test_dynamic_sizes_around_a_loop() -> None:
    n = Var("n")
    b = GraphBuilder("main")
    x = b.input("x", (4, n))
    last, rows = b.loop(4, [b.row(x, index=0)], lambda r, t, s: ([r.add(s, r.row(x, index=t))], [s]))
    mod = IRModule({"main": b.finish(last, rows)})
    compiled = tunesmith.compile(mod)
    for columns in (3, 7):
        given = [data(4, columns)]
        for got, want in zip(compiled(*given), run(mod["main"], given, mod), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    bound = bind_sizes(mod, {"n": 3})
    verify(bound["main"], bound)
    assert all(v.type.is_static for binding in all_bindings(bound["main"].body) for v in binding.results)
    np.testing.assert_allclose(run(bound["main"], [data(4, 3)], bound)[0], run(mod["main"], [data(4, 3)], mod)[0])


def test_rows_of_numbers() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    last, rows = b.loop(4, [b.constant(np.array(0.0, np.float32))], lambda r, t, s: ([r.add(s, r.row(x, index=t))], [s]))
    mod = IRModule({"main": b.finish(last, rows)})
    given = np.arange(4, dtype=np.float32)
    got = tunesmith.compile(mod)(given)
    assert got[0] == 6 and list(got[1]) == [0, 0, 1, 3]


@pytest.mark.parametrize("seed", range(12))
def test_loops_compute_what_unrolled_bindings_compute(seed: int) -> None:
    """Random regions, with values from outside, rows, products, and branches."""
    rng = stream(seed, "random loop")
    steps, width = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    plan = [(int(rng.integers(6)), int(rng.integers(1 << 30)), int(rng.integers(1 << 30))) for _ in range(int(rng.integers(2, 9)))]
    weights = rng.standard_normal((width, width)).astype(np.float32) * 0.3
    carried, stacked = int(rng.integers(1, 3)), int(rng.integers(0, 3))

    def region(r: RegionBuilder, t: Any, *held: Operand) -> tuple[list[Operand], list[Operand]]:
        w, flag = r.constant(weights), r.row(flags, index=t)
        known: list[Any] = [*held, r.row(x, index=t), r.row(x, index=steps - 1 - poly(t)), y]
        for kind, i, j in plan:
            a, b = known[i % len(known)], known[j % len(known)]
            if kind == 5:
                known.append(r.branch(flag, lambda q, a=a, b=b: q.minimum(a, b), lambda q, a=a: q.tanh(a)))
            else:
                makers = (lambda a, b: r.add(a, b), lambda a, b: r.matmul(a, w), lambda a, b: r.tanh(a), lambda a, b: r.multiply(a, b))
                known.append(r.tanh(makers[kind % 4](a, b)))
        return known[-carried:], known[-stacked - carried : -carried] if stacked else []

    results: list[list[np.ndarray]] = []
    given = [data(steps, 2, width, seed=seed), data(2, width, seed=seed + 1), rng.random(steps) < 0.5]
    for unrolled in (False, True):
        g = GraphBuilder("main")
        x, y, flags = g.input("x", (steps, 2, width)), g.input("y", (2, width)), g.input("flags", (steps,), "bool")
        held: list[Operand] = [y] * carried
        if unrolled:
            rows: list[list[Operand]] = []
            for t in range(steps):
                held, made = region(g, t, *held)
                rows.append(made)
            columns = [g.concat(*[g.expand_dims(v, axes=(0,)) for v in column], axis=0) for column in zip(*rows, strict=True)]
            func = g.finish(*held, *columns)
        else:
            func = g.finish(*g.loop(steps, held, region))
        mod = IRModule({"main": func})
        verify(func, mod)
        for p in (None, GRAPH):
            done = mod if p is None else p(mod, TARGET)
            results.append(run(done["main"], given, done))
        results.append(list(tunesmith.compile(mod)(*given)) if len(func.results) > 1 else [tunesmith.compile(mod)(*given)])
    for other_results in results[1:]:
        for a, b in zip(results[0], other_results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_model_without_functions_runs_and_is_not_exported(tmp_path: Path) -> None:
    b = GraphBuilder("main")
    x, y = b.input("x", (2, 2)), b.input("y", (2, 2))
    compiled = tunesmith.compile(IRModule({"main": b.finish(*b.loop(3, [x, y], lambda r, t, h, k: ([k, h], [])))}))
    given = [data(2, 2), data(2, 2, seed=1)]
    assert all(np.array_equal(a, b) for a, b in zip(compiled(*given), reversed(given), strict=True))
    with pytest.raises(BuildError, match="the model calls no function, and so has no code"):
        compiled.export_library(tmp_path / "m.so")


def test_a_loop_that_was_not_lowered_is_refused() -> None:
    from tunesmith.graph.emit.graph_program import emit_graph_program

    value = Value("x", TensorType.of((2,)))
    loop = Loop(Var("t"), 2, (), (), Region((), (value,)))
    func = GraphFunc("main", (value,), Region((Binding((Value("y", TensorType.of((2, 2))),), loop),), (value,)))
    with pytest.raises(BuildError, match="the loop for y has no functions that store its rows"):
        emit_graph_program(IRModule({"main": func}))
