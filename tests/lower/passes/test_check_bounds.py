"""bounds_check=True checks every index, binding and indirect index at run time, and skips the failing access."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import TensorType
from tunesmith.ir.function import IRModule
from tunesmith.ir.interpreter import interpret
from tunesmith.ir.poly import poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError, RunError, UserError

GATHER = """
@T.prim_func
def f(A: T.Buffer((12,), "float32"), I: T.Buffer((4,), "int64"), C: T.Buffer((4, 3), "float32")):
    D = T.alloc_buffer((4,), "float32")
    for i in T.parallel(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = T.cast(I[vi], "float32") * 0.0
    for i, j in T.grid(4, 3):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.lookup(I[vi], 12, lambda q: A[q + vj]) + D[vi] if vi > 0 else 1.0
"""


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(RunError) as caught:
        call(*arguments)  # type: ignore[operator]
    return str(caught.value)


def test_checked_function_computes_the_same_and_reports_bad_indices() -> None:
    s = Schedule(parse(GATHER))
    s.vectorize(s.get_loops(s.get_block("C"))[1])
    f = tunesmith.build(s, bounds_check=True)["f"]
    a, c = np.arange(12, dtype="float32"), np.zeros((4, 3), "float32")
    good = np.array([99, 1, 9, 3])
    f(a, good, c)
    np.testing.assert_array_equal(c, interpret.run(s.func, [a, good])[-1])
    for bad, message in (
        ([1, 1, 10, 3], "f: the index of the load of A in block C is 12, and the extent is 12: out of bounds"),
        ([1, -1, 9, 3], "f: the value of the indirect index q in block C is -1, and the extent is 12: out of bounds"),
        ([1, 1, 9, 12], "f: the value of the indirect index q in block C is 12, and the extent is 12: out of bounds"),
    ):
        assert message in refusal(f, a, np.array(bad), c)
    f(a, good, c)
    assert "expected float32[12]" in refusal(f, a[:4], good, c)


def test_nothing_is_stored_after_a_failed_check() -> None:
    f = parse("""
@T.prim_func
def f(I: T.Buffer((4,), "int64"), C: T.Buffer((4,), "int32")):
    for i in T.serial(4):
        C[i] = 1
        if I[i] > 3:
            C[i + 2] = 7
""")
    memory = np.zeros(8, "int32")
    message = refusal(tunesmith.build(f, bounds_check=True)["f"], np.array([0, 0, 9, 0]), memory[:4])
    assert "the index of the store to C is 4, and the extent is 4" in message
    assert memory.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


def test_bindings_are_checked() -> None:
    f = parse("""
@T.prim_func
def f(n: T.int64, C: T.Buffer((n,), "int32")):
    for i in T.serial(n + 1):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = 1
""")
    f = f.with_(params=(f.params[1], f.params[0]))
    memory = np.zeros(8, "int32")
    message = refusal(tunesmith.build(f, bounds_check=True)["f"], memory[:5], 5)
    assert "f: the iteration variable vi in block C is 5, and the extent is 5: out of bounds" in message
    assert memory.tolist() == [1] * 5 + [0] * 3


def test_operators_and_functions_without_an_index_to_check() -> None:
    made = tunesmith.compile("dense(m=7,n=9,k=5,activation=gelu)", bounds_check=True)
    rng = np.random.default_rng(0)
    x, w, b = [rng.standard_normal(s).astype("float32") for s in ((7, 5), (5, 9), (9,))]
    got, wanted = np.zeros((7, 9), "float32"), np.zeros((7, 9), "float32")
    (name,) = made.artifact.functions
    made[name](x, w, b, got)
    made.bind(x, w, b, got)()
    tunesmith.compile("dense(m=7,n=9,k=5,activation=gelu)")[name](x, w, b, wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    one = parse('@T.prim_func\ndef g(C: T.Buffer((), "int32")):\n    C[()] = 3\n')
    c = np.zeros((), "int32")
    tunesmith.build(one, bounds_check=True)["g"](c)
    assert c == 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_checking_does_not_change_how_results_are_rounded(dtype: str) -> None:
    """An accumulated product is rounded once in both programs."""
    f = parse(f"""
@T.prim_func
def f(A: T.Buffer((1000,), "{dtype}"), B: T.Buffer((1000,), "{dtype}"), C: T.Buffer((1000,), "{dtype}")):
    for i in T.serial(1000):
        with T.block("C"):
            vi = T.axis.spatial(1000, i)
            C[vi] = C[vi] * T.{dtype}(3) + A[vi] * B[vi] - A[vi] * A[vi]
""")
    rng = np.random.default_rng(0)
    a, b, c = [(rng.standard_normal(1000) * 10).astype(dtype) for _ in range(3)]
    plain, checked = c.copy(), c.copy()
    tunesmith.build(f)["f"](a, b, plain)
    tunesmith.build(f, bounds_check=True)["f"](a, b, checked)
    np.testing.assert_array_equal(checked, plain)


def test_checking_skips_padding_terms() -> None:
    """An infinite weight next to padding gives no NaN, with and without checks."""
    f = parse("""
@T.prim_func
def f(A: T.Buffer((4,), "float32"), W: T.Buffer((3,), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 3):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + T.if_then_else(vi + vk >= 1 and vi + vk < 5, A[vi + vk - 1], 0.0) * W[vk]
""")
    a, w = np.ones(4, "float32"), np.array([np.inf, 1, 2], "float32")
    plain, checked = np.zeros(4, "float32"), np.zeros(4, "float32")
    tunesmith.build(f)["f"](a, w, plain)
    tunesmith.build(f, bounds_check=True)["f"](a, w, checked)
    assert plain[0] == 3
    np.testing.assert_array_equal(checked, plain)


def model() -> IRModule:
    pick = parse("""
@T.prim_func
def pick(X: T.Buffer((7, 4), "float32"), I: T.Buffer((5,), "int64"), Y: T.Buffer((5, 4), "float32")):
    for i, j in T.grid(5, 4):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.lookup(I[vi], 7, lambda q: X[q, vj])
""")
    build = GraphBuilder("main")
    table, at = build.input("table", (7, 4)), build.input("at", (5,), "int64")
    (y,) = build.call_function("pick", [build.exp(table), at], [TensorType((poly(5), poly(4)), "float32")])
    return IRModule({"main": build.finish(y), "pick": pick})


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_models_are_checked(executor: str) -> None:
    made = tunesmith.compile(model(), executor=executor, bounds_check=True)
    table = np.arange(28, dtype="float32").reshape(7, 4)
    at = np.array([0, 6, 3, 1, 2])
    np.testing.assert_array_equal(made(table * 0, at), table[at] * 0 + 1)
    assert "pick: the value of the indirect index q in block Y is 7, and the extent is 7: out of bounds" in refusal(
        made, table, np.array([0, 7, 3, 1, 2])
    )


def test_unsupported_programs_are_refused() -> None:
    with pytest.raises(BuildError, match="bounds_check=True: the backend of opencl generates no checks"):
        tunesmith.build(parse(GATHER), Target("opencl"), bounds_check=True)
    bound = parse("""
@T.prim_func
def f(C: T.Buffer((8,), "int32")):
    for i in T.thread_binding(8, "threadIdx.x"):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = 1
""")
    with pytest.raises(BuildError, match="takes CPU programs of loops and blocks, but the loop i is bound to threadIdx.x"):
        tunesmith.build(bound, bounds_check=True)
    with pytest.raises(UserError, match="bounds_check=True raises errors in Python"):
        tunesmith.compile(model(), executor="aot", bounds_check=True)
