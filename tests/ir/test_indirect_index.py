"""Test indirect indices, loaded indices bound to a variable with a range, in script, analyses and machine code."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.analysis.access_regions import reads, region
from tunesmith.ir.expr import cast, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.interpreter import interpret
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import blocks_under, fresh_copy, walk
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.ops import tensor_expression as te
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import ScriptError

TABLE, PICKED, WIDE = 7, 5, 37


def gather(name: str = "at") -> PrimFunc:
    x, index = te.placeholder((TABLE, WIDE), name="X"), te.placeholder((PICKED,), "int32", "I")
    twice = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, "Twice")
    y = te.compute((PICKED, WIDE), lambda i, j: te.lookup(cast("int64", index[i]), TABLE, lambda v: twice[v, j], name), "Y")
    return te.create_prim_func([x, index, y], "gather")


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((TABLE, WIDE)).astype(np.float32), np.array([3, 0, 6, 6, 1], np.int32)


def test_it_prints_and_parses_back() -> None:
    func = gather()
    assert 'T.lookup(T.cast("int64", I[v_i]), 7, lambda at: Twice[at, v_j])' in str(func)
    again = parse(str(func))
    assert structural.equal(func, again) and script(again) == str(func)


def test_variable_names_do_not_matter_and_extents_do() -> None:
    assert structural.digest(gather("at")) == structural.digest(gather("row")) and structural.equal(gather("at"), gather("row"))
    other = parse(str(gather()).replace("I[v_i]), 7,", "I[v_i]), 6,"))
    assert structural.digest(other) != structural.digest(gather())
    assert "extent" in str(structural.difference(gather(), other))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lambda at: Twice[at, v_j]", "3", "the last argument of T.lookup is a lambda of one variable"),
        ("lambda at: Twice[at, v_j]", "lambda at, b: Twice[at, v_j]", "a lambda of one variable"),
        ("lambda at: Twice[at, v_j]", "lambda at=1: Twice[at, v_j]", "a lambda of one variable"),
        ("lambda at: Twice[at, v_j]", "lambda v_j: Twice[v_j, v_j]", "the name `v_j` is already in use"),
        ("lambda at: Twice[at, v_j]", "lambda at: Twice[ta, v_j]", "unknown name `ta`"),
        ('T.cast("int64", I[v_i])', "I[v_i]", "the value of T.lookup must be int64, got int32"),
    ],
)
def test_the_parser_refuses(old: str, new: str, message: str) -> None:
    text = str(gather())
    assert old in text
    with pytest.raises(ScriptError, match=message.replace("[", r"\[")):
        parse(text.replace(old, new))


def test_the_verifier_refuses() -> None:
    func = gather()
    lookup = next(n for n in walk(func.body) if type(n) is IndirectIndex)

    def with_(new: IndirectIndex) -> PrimFunc:
        from tunesmith.ir.visit import transform

        return func.with_(body=transform(func.body, {IndirectIndex: lambda n, _: new}))

    verify(with_(lookup))
    with pytest.raises(ScriptError, match="an indirect index binds an IndirectVar, got a Var"):
        verify(with_(lookup.with_(var=Var("at"))))
    with pytest.raises(ScriptError, match="the value of an indirect index must be int64, got float32"):
        verify(with_(lookup.with_(value=const(1.0, "float32"))))
    with pytest.raises(ScriptError, match="is already bound outside of it"):
        verify(with_(lookup.with_(body=lookup)))
    with pytest.raises(ScriptError, match="uses the variable other, which nothing binds"):
        verify(with_(lookup.with_(extent=poly(Var("other")))))
    outside = BufferStore(func.params[2], (poly(lookup.var), poly(0)), const(0.0, "float32"))
    with pytest.raises(ScriptError, match="at, which nothing binds"):
        verify(func.with_(body=outside))


def test_the_tensor_expression_refuses_what_is_no_index() -> None:
    with pytest.raises(ScriptError, match="lookup at: the index must be an expression of type int64, got int32"):
        te.lookup(const(1, "int32"), 4, lambda v: const(0.0, "float32"))


def test_a_copy_renews_its_variables() -> None:
    func = gather()
    copy = func.with_(body=fresh_copy(func.body))
    first, second = [{n.var for n in walk(f.body) if type(n) is IndirectIndex} for f in (func, copy)]
    assert first.isdisjoint(second) and structural.equal(func, copy)


def test_the_footprint_covers_the_whole_range() -> None:
    block = blocks_under(gather().body)[-1]
    load = next(a for a in reads(block) if a.buffer.name == "Twice")
    (low, extent), (column, one) = region(block, load.indices, {})
    assert (low, extent, one) == (0, TABLE, 1) and column == block.bindings[1]


def test_the_interpreter_checks_the_range() -> None:
    x, index = data()
    out = np.zeros((PICKED, WIDE), np.float32)
    got = interpret.run(gather(), [x, index, out])[-1]
    assert np.array_equal(got, 2 * x[index])
    with pytest.raises(Exception, match="the indirect index 9 is out of range: its extent is 7"):
        interpret.run(gather(), [x, np.array([0, 9, 0, 0, 0], np.int32), out])


def scheduled(how: str) -> PrimFunc:
    if how == "as it is":
        return gather()
    if how == "default":
        return default_schedule(gather(), Target.detect())
    s = Schedule(gather())
    y = s.get_block("Y")
    if how == "inlined":
        s.compute_inline(s.get_block("Twice"))
    i, j = s.get_loops(y)
    if how == "written out":
        s.unroll(i)
        s.vectorize(j)
    elif how == "parallel":
        s.parallel(i)
    elif how == "lanes of rows":  # the indirect index differs between lanes
        s.reorder([j, i])
        s.vectorize(i)
    elif how == "computed at":
        s.compute_at(s.get_block("Twice"), i)
    return s.func


@pytest.mark.parametrize("how", ["as it is", "default", "inlined", "written out", "parallel", "lanes of rows", "computed at"])
def test_compiled_code_gathers(how: str) -> None:
    x, index = data()
    func = scheduled(how)
    verify(func)
    assert np.array_equal(interpret.run(func, [x, index, np.zeros((PICKED, WIDE), np.float32)])[-1], 2 * x[index])
    out = np.zeros((PICKED, WIDE), np.float32)
    tunesmith.build(func)(x, index, out)
    assert np.array_equal(out, 2 * x[index])


def test_two_indirect_indices_with_one_variable_do_not_share_an_address() -> None:
    x, index = data()
    tensor, picked = te.placeholder((TABLE,), name="X"), te.placeholder((PICKED,), "int64", "I")
    y = te.compute((PICKED - 1,), lambda i: te.lookup(picked[i], TABLE, lambda v: tensor[v]), "Y")
    func = te.create_prim_func([tensor, picked, y])
    s = Schedule(func)
    s.unroll(s.get_loops(s.get_block("Y"))[0])
    out = np.zeros(PICKED - 1, np.float32)
    tunesmith.build(s.func)(x[:, 0].copy(), index.astype(np.int64), out)
    assert np.array_equal(out, x[index[:-1], 0])


def test_every_schedule_of_the_space_computes_the_same() -> None:
    func = gather()
    x, index = data()
    space = generate(func, Target.detect())
    assert not space.plain and len(space.sketches) > 1
    for sketch in space.sketches:
        row = tuple([int(n) for n in sketch.space.sample(1, np.random.default_rng(0))[0]])
        y = np.zeros((PICKED, WIDE), np.float32)
        tunesmith.build(sketch.concretize(row))["gather"](x, index, y)
        np.testing.assert_array_equal(y, 2 * x[index])


def test_two_indirect_indices_that_share_their_body_have_separate_values() -> None:
    """A block inlined twice gives two indirect indices with the same variable and body."""
    f = parse("""
@T.prim_func
def f(I: T.Buffer((8,), "int64"), X: T.Buffer((12,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.lookup(I[vi], 12, lambda q: X[q])
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] * 100 + B[7 - vi]
""")
    s = Schedule(f)
    s.compute_inline(s.get_block("B"))
    i, x = np.array([3, 1, 11, 0, 5, 4, 7, 2]), np.arange(12, dtype="int32")
    for run in (interpret.run, run_threads):
        assert run(s.func, [i, x])[-1].tolist() == (i * 100 + i[::-1]).tolist()
