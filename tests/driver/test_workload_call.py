"""Functions of Python files take parameters, as operators do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunesmith.driver.workload_call import split_call, split_function
from tunesmith.driver.workloads import find_module, find_subject, find_subjects
from tunesmith.support.errors import UserError

FILE = """
from tunesmith import te
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ops.workload import workload

def doubled(m: int = 300, dtype="float32", *, is_in_place=False):
    assert isinstance(m, int) and isinstance(is_in_place, bool)
    x = te.placeholder((m,), dtype, name="X")
    return [x, te.compute((m,), lambda i: x[i] + x[i], name="Y")]

def sized(m, n):
    return workload(f"relu(shape={m}x{n})")

def model(rows=4):
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(b.tanh(b.input("x", (rows,))))})

def free(**given):
    return sized(**given)

program = workload("relu(shape=4)").func
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_texts() -> None:
    assert split_call("a.py:f") == ("a.py:f", {}) and split_call("a.py:f()") == ("a.py:f", {})
    assert split_call("a.py:f( m = 3, n=-1, x=0.5, d=float16, q='a b', t=True, z=None )") == (
        "a.py:f",
        {"m": 3, "n": -1, "x": 0.5, "d": "float16", "q": "a b", "t": True, "z": None},
    )
    assert split_call("a.py:f(m=[1)") == ("a.py:f", {"m": "[1"})


def test_texts_of_functions_of_models() -> None:
    assert split_function("a.py:f") == ("a.py:f", None) and split_function("b/a.py:f/g/h[n=1..2]") == ("b/a.py:f", "g/h[n=1..2]")
    assert split_function("a (1)/b.py:f( x = c:/d )/g") == ("a (1)/b.py:f(x=c:/d)", "g")
    assert split_function("a.py:f( q = 'a b' , r = 1 )") == ("a.py:f(q='a b',r=1)", None)
    assert split_function("a.py:f((") == ("a.py:f((", None)


def test_parameters_are_passed(file: Path) -> None:
    subject = find_subject(f"{file}:doubled( m = 8, dtype=float64, is_in_place=True)")
    assert subject.name == f"{file}:doubled(m=8,dtype=float64,is_in_place=True)" and subject.func.name == "doubled"
    assert [(b.shape[0].as_int(), b.dtype) for b in subject.func.buffers] == [(8, "float64")] * 2
    assert [s.flops for s in find_subjects([f"{file}:doubled", f"{file}:doubled(m=8)"])] == [300, 8]
    assert find_subject(f"{file}:sized(m=3,n=4)").name == find_subject(f"{file}:free(m=3,n=4)").name == "relu(shape=3x4)"
    assert list(find_module(f"{file}:doubled(m=8)")) == ["doubled"]


def test_models_have_parameters(file: Path) -> None:
    for text in (f"{file}:model(rows=8)", f"{file}:model( rows = 8 )/op_tanh"):
        (subject,) = find_subjects(text)
        assert subject.name == "model(rows=8)/op_tanh" and subject.flops == find_subject("tanh(shape=8)").flops
    assert list(find_module(f"{file}:model(rows=8)")) == ["main"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("doubled(n=3)", "doubled has no parameter 'n'; it has m, dtype, is_in_place"),
        ("doubled(dtypes=float16)", "Did you mean 'dtype'"),
        ("doubled(3)", r"'3' is not of the form key=value. Spell it .*mine.py:doubled\(key=value,...\)"),
        ("doubled(m=3 dtype=float16)", "is more than one parameter. Separate parameters by commas"),
        ("doubled(m=3,m=4)", "the parameter m is given twice"),
        ("doubled(m=x)", "raised AssertionError"),
        ("sized(m=3)", r"is called without them all, but n of sized has no default.*, or pass .*mine.py:sized\(n=...\)"),
        ("sized", r"is called without arguments, but m, n of sized have no default.*, or pass .*mine.py:sized\(m=...,n=...\)"),
        ("program(m=3)", "mine.py:program is a PrimFunc, which takes no parameters"),
    ],
)
def test_refusals(file: Path, call: str, message: str) -> None:
    for find in (find_subjects, find_module):
        with pytest.raises(UserError, match=message):
            find(f"{file}:{call}")


def test_script_text_takes_no_parameters(file: Path) -> None:
    file.write_text('@T.prim_func\ndef f(A: T.Buffer((8,), "float32")):\n    for i in range(8):\n        A[i] = 0.0\n')
    assert find_subject(f"{file}:f").func.name == "f"
    with pytest.raises(UserError, match="takes no parameters"):
        find_subjects(f"{file}:f(m=3)")
