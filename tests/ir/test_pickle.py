"""Test pickled and copied programs: equal structure, new variables in the same order, use in another process."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectVar
from tunesmith.ir.interpreter import interpret
from tunesmith.ir.poly import Param, Poly, Var, add, ceildiv, maximum, minimum, mod, mul, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.ops.tensor import ReduceAxis, SpatialAxis
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.testing.program_fuzz.evaluate import start
from tunesmith.testing.program_fuzz.generate import generate as random_program
from tunesmith.testing.program_fuzz.render import render

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
WORKLOADS = (
    "matmul(m=32,n=32,k=32)",
    "conv2d(n=1,h=8,w=8,ci=4,co=8,kh=3,kw=3,stride=2,pad=1,bias=1,relu=1)",
    "softmax(m=16,n=40)",
    "relu(shape=64)",
)


def again(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


def variables(func: PrimFunc) -> set[Var]:
    return {v for x in walk(func.body) if isinstance(x, Poly) for v in x.vars}


# ---- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [again, copy.deepcopy])
@pytest.mark.parametrize("text", WORKLOADS)
def test_functions_keep_their_structure_and_text(text: str, made: Any) -> None:
    func = workload(text).func
    new = made(func)
    assert new is not func and structural.difference(new, func) is None
    assert script(new) == script(func) and structural.digest(new) == structural.digest(func)
    assert not variables(new) & variables(func) and not set(new.buffers) & set(func.buffers)


def test_scheduled_functions_keep_their_structure() -> None:
    """The parametric programs of all sketches, and their programs for a row."""
    for text in WORKLOADS[:2]:
        for sketch in generate(workload(text).func, TARGET).sketches:
            func, params = again((sketch.func, sketch.params))
            assert script(func) == script(sketch.func)
            assert [p.domain for p in params] == [p.domain for p in sketch.params]
            assert {p for p in variables(func) if isinstance(p, Param)} <= set(params) and set(params).isdisjoint(sketch.params)
            row = tuple(sketch.space.sample(1, np.random.default_rng(0))[0].tolist())
            assert structural.difference(again(sketch).concretize(row), sketch.concretize(row)) is None


def test_pickled_nodes_remain_immutable() -> None:
    func = again(workload("relu(shape=64)").func)
    with pytest.raises(AttributeError, match="IR nodes never change"):
        func.body.body = None


# ---- variables --------------------------------------------------------------------------------------------------------


def test_variables_keep_their_identity_within_one_pickle_only() -> None:
    v = Var("v")
    a, b, expression = again((v, v, poly(v) + 1))
    assert a is b and a.name == "v" and expression == poly(a) + 1
    assert a is not v and a is not again(v) and expression != poly(v) + 1 and a.key != v.key
    assert a.vars == {a} and expression.vars == {a}


def test_copies_have_distinct_keys() -> None:
    """Also copies of one variable: the sum of two is one of two terms, in an order of its own."""
    v = Var("v")
    a, b = again(v), again(v)
    assert len({v.key, a.key, b.key}) == 3
    assert poly(a) * b == poly(b) * a and len((poly(a) + b).terms) == 2


def test_the_order_of_variables_is_kept() -> None:
    variables = [Var(f"v{i}") for i in range(20)]
    backwards = again(variables[::-1])
    new = again([*backwards[10:], *backwards[:10]])
    ordered = sorted(new, key=lambda v: v.key)
    assert [v.name for v in ordered] == [f"v{i}" for i in range(20)]
    later = Var("later")
    assert sorted([later, *backwards], key=lambda v: v.key)[-1] is later


def test_attributes_of_variables_survive() -> None:
    n = Var("n")
    extent = poly(n) + 3
    given = [Param("p", (4, 2, 8)), IndirectVar("i"), SpatialAxis("s"), ReduceAxis("r", extent)]
    made, m = again((given, n))
    assert [(type(v), v.name) for v in made] == [(Param, "p"), (IndirectVar, "i"), (SpatialAxis, "s"), (ReduceAxis, "r")]
    assert made[0].domain == (2, 4, 8) and made[3].extent == poly(m) + 3


# ---- index expressions ------------------------------------------------------------------------------------------------


def expressions(a: Var, b: Var, p: Param) -> list[Poly]:
    return [
        poly(0),
        poly(7),
        poly(-1000),
        poly(a),
        add(mul(poly(a), poly(b)), poly(3)),
        mod(poly(a) * 5 + b, poly(p)) * p + a * poly(p),
        ceildiv(poly(b) + 1, poly(p) * 4),
        minimum(poly(a) * 2, poly(b) + p, 30),
        maximum(poly(b), mod(poly(a), 8) + a),
    ]


def test_index_expressions_equal_those_of_the_new_variables() -> None:
    a, b, p = Var("a"), Var("b"), Param("p", range(1, 9))
    made, x, y, q = again((expressions(a, b, p), a, b, p))
    want = expressions(x, y, q)
    assert made == want and [hash(e) for e in made] == [hash(e) for e in want]
    assert {e: i for i, e in enumerate(made)} == {e: i for i, e in enumerate(want)}
    assert list(map(repr, made)) == list(map(repr, expressions(a, b, p)))


def test_index_expressions_are_normal_forms_whatever_the_numbers_of_their_variables() -> None:
    """Variables of two processes may have one number: then the order of their copies is that of the pickle."""
    foreign = again(Var("foreign"))
    own, p = Var("own"), Param("p", range(1, 9))
    own.key = (0, foreign.key[1])
    assert own.key < foreign.key
    y, made, x, q = again((foreign, expressions(own, foreign, p), own, p))
    assert y.key < x.key
    assert made == expressions(x, y, q)


# ---- another process --------------------------------------------------------------------------------------------------

_LOAD = """
import pickle, sys
from tunesmith.ir import structural
from tunesmith.ir.poly import Var, ceildiv, minimum, mod, poly
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.search.space.rules_table import generate
others = [Var(f"other{i}") for i in range(1000)]  # their numbers are those of the variables in the pickle
func, (a, b), made, digest, text = pickle.load(open(sys.argv[1], "rb"))
want = [poly(a) * b + 3, mod(poly(a), poly(b)), ceildiv(poly(b), 4) + a, minimum(poly(a), poly(b) * 2)]
assert made == want and [hash(e) for e in made] == [hash(e) for e in want] and {want[1]: 1}[made[1]] == 1
assert made[0] - 3 - poly(b) * a == 0
assert structural.digest(func) == digest and script(func) == text
for sketch in generate(func, Target("llvm -mcpu=x86-64-v3 -num-cores=2")).sketches:
    print(sketch.name)
"""


@pytest.mark.parametrize("check", ["1", ""])
def test_another_process_generates_the_same_space(check: str, tmp_path: Path) -> None:
    """Also one whose nodes are not frozen."""
    func, a, b = workload("conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,pad=1,bias=1,relu=1)").func, Var("a"), Var("b")
    assert func.constants
    made = [poly(a) * b + 3, mod(poly(a), poly(b)), ceildiv(poly(b), 4) + a, minimum(poly(a), poly(b) * 2)]
    (tmp_path / "program").write_bytes(pickle.dumps((func, (a, b), made, structural.digest(func), script(func))))
    environment = {**os.environ, "TUNESMITH_CHECK": check}
    found = subprocess.run([sys.executable, "-c", _LOAD, str(tmp_path / "program")], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    names = found.stdout.splitlines()
    assert names == [s.name for s in generate(func, TARGET).sketches]
    assert any(name.startswith("winograd F(4)") for name in names)


# ---- random programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_survive(first: int) -> None:
    compared = 0
    for seed in range(first, first + 10):
        generated = random_program(seed)
        if generated is None:
            continue
        program = generated.program
        func: Any = parse(render(program))
        new = again(func)
        assert structural.difference(new, func) is None and structural.digest(new) == structural.digest(func)
        assert script(new) == script(func)
        for binding in program.bindings:
            memory = start(program, binding, seed).memory
            results = []
            for f in (func, new):
                arrays = [memory[b.name].array() for b in program.params]
                sizes = [v for v in f.params if isinstance(v, Var)]
                results.append(interpret.run(f, arrays, dict(zip(sizes, binding, strict=True))))
            for x, y in zip(*results, strict=True):
                assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
            compared += 1
    assert compared >= 8
