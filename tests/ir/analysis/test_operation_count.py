"""Test operation counts: those of contractions equal the declared ones, and schedules keep them."""

from __future__ import annotations

import pytest

from tunesmith.ir.analysis.operation_count import MOST, operation_count
from tunesmith.ir.script.parser import parse
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule


@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=3,n=5,k=7)",
        "matmul(m=1,n=1,k=1,ta=1)",
        "batch_matmul(b=2,m=3,n=5,k=7,tb=1)",
        "dense(m=3,n=5,k=7,bias=0)",
        "conv2d(n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2,stride=2)",
        "conv2d(n=2,h=7,w=6,ci=4,co=6,kh=3,kw=2,groups=2,dilation=2,layout=NCHW)",
        "conv2d(n=1,h=6,w=5,ci=3,co=3,kh=3,kw=3,groups=3)",
        "conv2d(n=1,h=6,w=5,ci=3,co=2,kh=3,kw=3,pad=1)",
    ],
)
def test_contractions_have_the_declared_count(text: str) -> None:
    case = workload(text)
    assert operation_count(case.func) == case.flops


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("dense(m=3,n=5,k=7,activation=relu)", 3 * 5 * (14 + 1 + 1)),
        ("softmax(m=3,n=5)", 3 * 5 * (1 + 2 + 1 + 1)),
        ("mean(shape=3x5,axis=1)", 15 + 3),
        ("exp(shape=6)", 6),
    ],
)
def test_epilogues_reductions_and_calls(text: str, count: int) -> None:
    assert operation_count(workload(text).func) == count


FUNCTION = """
@T.prim_func
def f(A: T.Buffer((12, 5), "float32"), I: T.Buffer((16,), "int64"), C: T.Buffer((16, 5), "float32")):
    for i, j in T.grid(16, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            {}
"""


@pytest.mark.parametrize(
    ("statement", "each"),
    [
        ("C[vi, vj] = A[0, vj]", 0),
        ("C[vi, vj] = A[vi % 12, vj] * 2.0", 1),
        ("C[vi, vj] = T.fma(A[0, vj], A[0, vj], A[1, vj])", 2),
        ("C[vi, vj] = T.tanh(A[0, vj])", 1),
        ("C[vi, vj] = T.reinterpret(A[0, vj], dtype='float32')", 0),
        ("C[vi, vj] = T.max(A[0, vj], 0.0) if A[0, vj] > 1.0 else A[0, vj] - 1.0", 2),
        ("C[vi, vj] = T.cast('float32', T.cast('int32', A[0, vj]))", 0),
        ("C[vi, vj] = T.lookup(I[vi] * 2 - 1, 12, lambda q: A[q, vj] / 3.0)", 1),
        ("for k in range(4):\n                C[vi, vj] = A[k, vj] + 1.0", 4),
        ("if vi < 3:\n                C[vi, vj] = A[0, vj] + 1.0", 1),
        ("C[vi, vj] = T.cast('float32', vi * 7 % 5)", 0),
        ("C[vi, vj] = A[2, vj] if (A[0, vj] > 1.0) or (A[1, vj] < 0.0) else A[3, vj]", 0),
    ],
)
def test_statements(statement: str, each: int) -> None:
    assert operation_count(parse(FUNCTION.format(statement))) == 80 * each


def test_loops_without_blocks() -> None:
    text = '@T.prim_func\ndef f(A: T.Buffer((6,), "float32")):\n    for i in range(2):\n        for j in range(3):\n            {}\n'
    assert operation_count(parse(text.format("A[i * 3 + j] = A[0] + A[1]"))) == 6


def test_init_is_counted_once_for_each_element() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((4, 5), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 5):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = A[vi, 0] * 2.0
            C[vi] = C[vi] + A[vi, vk]
"""
    assert operation_count(parse(text)) == 4 + 20


def test_schedules_keep_the_count() -> None:
    case = workload("matmul(m=7,n=5,k=9)")
    s = Schedule(case.func)
    block = s.get_block("C")
    i, j, _k = s.get_loops(block)
    s.split(i, [None, 4])
    s.cache_write(block, "global")
    s.split(j, [None, 3])
    assert operation_count(s.func) == case.flops
    s.decompose_reduction(block, s.get_loops(block)[-1])
    assert operation_count(s.func) == case.flops


def test_dynamic_sizes_have_no_count() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    assert operation_count(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, "Y")])) is None


def test_shared_parts_count_for_each_use() -> None:
    def made(e: object) -> object:
        return e * e  # type: ignore[operator]

    x = te.placeholder(4, name="X")
    func = te.create_prim_func([x, te.compute(4, lambda i: made(x[i] + 1.0), "Y")])
    assert operation_count(func) == 4 * 3 == operation_count(parse(str(func)))


NEST = """
@T.prim_func
def f(A: T.Buffer((40, 40), "float32"), B: T.Buffer((40, 40), "float32")):
    for i in T.serial(40):
        for j in T.serial({}):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                {}
"""


@pytest.mark.parametrize(
    ("extent", "statement", "count"),
    [
        ("i + 1", "B[vi, vj] = A[vi, vj] * 2.0", 820),
        ("40 - i", "B[vi, vj] = A[vi, vj] * 2.0", 820),
        ("T.max(i - 4, 0)", "B[vi, vj] = A[vi, vj] * 2.0", sum(max(i - 4, 0) for i in range(40))),
        ("i // 2 + 1", "B[vi, vj] = A[vi, vj] * 2.0", sum(i // 2 + 1 for i in range(40))),
        ("i + 1", "for k in range(vj + 1):\n                    B[vi, vj] = A[vi, k] * 2.0", sum(i * (i + 1) // 2 for i in range(41))),
        ("40", "for k in range(vi * 2 + 1):\n                    B[vi, vj] = A[vi, vj] * 2.0", 40 * 1600),
        ("i + 1", "B[vi, vj] = A[vi, vj]", 0),
    ],
)  # fmt: skip
def test_extents_that_depend_on_other_loops(extent: str, statement: str, count: int) -> None:
    assert operation_count(parse(NEST.format(extent, statement))) == count


def test_the_init_of_a_triangular_reduction_runs_once_for_each_element() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((3000, 3000), "float32"), C: T.Buffer((3000,), "float32")):
    for i in T.serial(3000):
        for k in T.serial(i + 1):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = A[vi, 0] * 2.0
                C[vi] = C[vi] + A[vi, vk]
"""
    assert operation_count(parse(text)) == 3000 + 3000 * 3001 // 2


def test_too_many_iterations_that_are_counted_one_by_one_have_no_count() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer(({n}, 4), "float32")):
    for i in T.serial({n}):
        for j in T.serial(i % 5):
            A[i, j] = A[i, j] * 2.0
"""
    assert operation_count(parse(text.format(n=MOST))) == sum(i % 5 for i in range(MOST))
    assert operation_count(parse(text.format(n=MOST + 1))) is None
