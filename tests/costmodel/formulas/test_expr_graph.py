"""Expression graphs: sharing, folding, and agreement of numpy and LLVM programs with Python on random graphs."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

from tunesmith.codegen.vector_vm.compile import DagKernel
from tunesmith.costmodel.formulas.expr_graph import CHUNK, OPERATIONS, Dag, Num, NumpyProgram
from tunesmith.ir.poly import Param, Var, ceildiv, evaluate, maximum, minimum, mod, poly
from tunesmith.support.errors import InternalError, UserError
from tunesmith.support.seeds import stream

A, B, C = (Param(n, range(1, 100)) for n in "abc")


def one_by_one(dag: Dag, root: Num, row: list[int]) -> float:
    """The value of a node in plain Python."""
    values: list[float] = []
    for op, args in dag.nodes[: root.id + 1]:
        x = [] if op in ("const", "param") else [values[int(a)] for a in args]
        if op == "const":
            values.append(args[0])
        elif op == "param":
            values.append(float(row[int(args[0])]))
        elif op == "where":
            values.append(x[1] if x[0] > 0 else x[2])
        elif op in ("gt", "eq"):
            values.append(float(x[0] > x[1] if op == "gt" else x[0] == x[1]))
        elif op == "slog2":
            values.append(math.log2(x[0] + 1))
        elif op in ("min", "max"):
            values.append(min(x) if op == "min" else max(x))
        elif op in ("add", "sub", "mul"):
            values.append(x[0] + x[1] if op == "add" else x[0] - x[1] if op == "sub" else x[0] * x[1])
        elif op == "div":
            values.append(x[0] / x[1])
        else:
            f = math.floor(x[0] / x[1])
            values.append(float(f if op == "floordiv" else math.ceil(x[0] / x[1]) if op == "ceildiv" else x[0] - f * x[1]))
    return values[root.id]


def random_graph(seed: int, size: int) -> tuple[Dag, list[Num]]:
    """Nodes of every operation; divisors are >= 1, logarithms of values >= 0.

    Logarithms are used only by other logarithms: a difference in the last bit could change the result of a comparison.
    """
    rng = stream(seed, "graph")
    dag = Dag((A, B, C))
    pool = [dag.poly(poly(p)) for p in (A, B, C)] + [dag.const(2.0), dag.one, dag.zero]
    logs: list[Num] = [dag.slog2(pool[0])]
    for _ in range(size):
        op = OPERATIONS[rng.integers(len(OPERATIONS))]
        x = [pool[i] for i in rng.integers(len(pool), size=3)]
        if op == "slog2":
            logs.append(dag.slog2(dag.maximum(x[0], logs[-1])))
        elif op in ("div", "floordiv", "ceildiv", "mod"):
            pool.append(dag.make(op, dag.minimum(dag.maximum(x[0], 0.0), 1e6), dag.maximum(x[1], 1.0)))
        elif op == "where":
            pool.append(dag.where(*x))
        else:
            pool.append(dag.minimum(dag.maximum(dag.make(op, *x[:2]), -1e6), 1e6))
    return dag, pool + logs


@pytest.mark.parametrize("seed", range(4))
def test_numpy_and_llvm_agree_with_python(seed: int) -> None:
    dag, roots = random_graph(seed, 120)
    rows = stream(seed, "rows").integers(1, 100, (53, 3))
    expected = np.array([[one_by_one(dag, r, row) for row in rows.tolist()] for r in roots])
    assert np.allclose(NumpyProgram(dag, roots)(rows), expected, rtol=1e-12, atol=1e-12)
    usable = [r for r, e in zip(roots, expected, strict=True) if (e >= 0).all()]
    kernel = DagKernel(dag.nodes, 3, [(r.id, log) for r in usable for log in (False, True)], [r.id for r in roots])
    table, columns = kernel(rows)
    assert np.allclose(columns, expected, rtol=1e-12, atol=1e-12)
    plain = NumpyProgram(dag, usable)(rows)
    assert np.allclose(table[:, 0::2], plain.T, rtol=1e-6)
    assert np.allclose(table[:, 1::2], np.log2(plain.T + 1), rtol=1e-6, atol=3e-7)


def test_numpy_chunks_are_joined() -> None:
    dag, roots = random_graph(9, 60)
    rows = stream(1, "rows").integers(1, 100, (CHUNK + 3, 3))
    f = NumpyProgram(dag, roots)
    assert np.array_equal(f(rows)[:, CHUNK - 2 :], f(rows[CHUNK - 2 :]))
    assert f(rows[:0]).shape == (len(roots), 0)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 40])
def test_every_number_of_rows_and_any_width_of_table(n: int) -> None:
    dag = Dag((A, B, C))
    a, b, three = dag.poly(poly(A)), dag.poly(poly(B)), dag.const(3)
    total = a + b
    rows = stream(n, "rows").integers(1, 100, (n, 3))
    kernel = DagKernel(dag.nodes, 3, [(a.id, False)] * 9 + [(b.id, False)] * 9 + [(three.id, True)], [total.id])
    table, columns = kernel(rows)
    assert table.shape == (n, 19) and columns.shape == (1, n)
    assert np.array_equal(table, np.column_stack([rows[:, [0] * 9 + [1] * 9], np.full(n, 2)]))
    assert np.array_equal(columns[0], rows[:, 0] + rows[:, 1])


def test_only_a_table_of_values_and_only_columns() -> None:
    dag = Dag((A,))
    a = dag.poly(poly(A))
    rows = np.arange(1, 34)[:, None]
    assert np.array_equal(DagKernel(dag.nodes, 1, [(a.id, False)], [])(rows)[0], rows)
    assert np.array_equal(DagKernel(dag.nodes, 1, [], [a.id])(rows)[1], rows.T)


@pytest.mark.parametrize("n", [0, 1, 16, 53])
def test_a_pickled_kernel_gives_the_same_bits(n: int) -> None:
    dag, roots = random_graph(5, 60)
    kernel = DagKernel(dag.nodes, 3, [(r.id, log) for r in roots[:5] for log in (False, True)] + [(dag.const(3).id, True)], [roots[-1].id])
    rows = stream(n, "rows").integers(1, 100, (n, 3))
    data = pickle.dumps(kernel)
    again = pickle.loads(data)
    for _ in range(2):  # both kernels remain usable
        for x, y in zip(kernel(rows), again(rows), strict=True):
            assert x.tobytes() == y.tobytes() and x.shape == y.shape
    assert pickle.dumps(again) == data


def test_a_pickled_kernel_runs_in_another_process() -> None:
    dag, roots = random_graph(6, 60)
    rows = stream(1, "rows").integers(1, 100, (20, 3))
    kernel = DagKernel(dag.nodes, 3, [(roots[0].id, False)], [r.id for r in roots])
    code = "import pickle, sys; k, rows = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(pickle.dumps(k(rows)))"
    found = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((kernel, rows)), capture_output=True, check=True)
    assert [x.tobytes() for x in pickle.loads(found.stdout)] == [x.tobytes() for x in kernel(rows)]


def test_an_output_table_is_filled_and_another_shape_refused() -> None:
    dag = Dag((A,))
    kernel = DagKernel(dag.nodes, 1, [(dag.poly(poly(A)).id, True)], [])
    out = np.zeros((5, 1), np.float32)
    assert kernel(np.full((5, 1), 7), out)[0] is out and (out == 3).all()
    with pytest.raises(UserError, match=r"`out` must be C-contiguous float32 of shape \[4, 1\], got float32 of shape \[5, 1\]"):
        kernel(np.full((4, 1), 7), out)
    with pytest.raises(UserError, match=r"rows of 1 columns are needed.*shape \[4, 2\]"):
        kernel(np.full((4, 2), 7))


def test_index_expressions_are_exact() -> None:
    polys = [
        ceildiv(1000, poly(A) * B),
        mod(poly(C) * 7, A),
        minimum(poly(A) * B, C, 50),
        maximum(poly(A) - B, 0) + 3,
        poly(A) * A - 2 * poly(B) * C,
    ]
    dag = Dag((A, B, C))
    rows = stream(0, "polys").integers(1, 100, (64, 3))
    got = NumpyProgram(dag, [dag.poly(p) for p in polys])(rows)
    for row, values in zip(rows.tolist(), got.T.tolist(), strict=True):
        assert values == [evaluate(p, dict(zip((A, B, C), row, strict=True))) for p in polys]


def test_integers_up_to_53_bits_divide_exactly() -> None:
    dag = Dag((A, B))
    roots = [dag.make(op, dag.poly(poly(A) * 2**46 - 1), dag.poly(poly(B))) for op in ("floordiv", "ceildiv", "mod")]
    rows = stream(0, "big").integers(1, 100, (99, 2))
    expected = [[v // int(b), -(-v // int(b)), v % int(b)] for a, b in rows if (v := int(a) * 2**46 - 1)]
    for got in (NumpyProgram(dag, roots)(rows), DagKernel(dag.nodes, 2, [], [r.id for r in roots])(rows)[1]):
        assert got.T.tolist() == expected


def test_equal_expressions_are_one_node_and_identities_vanish() -> None:
    dag = Dag((A, B))
    a, b = dag.poly(poly(A)), dag.poly(poly(B))
    assert (a * b + 1).id == (1 + b * a).id
    assert (a + 0).id == a.id and (a * 1).id == a.id and (a * 0).const == 0 and (a / 1).id == a.id and (a - a).const == 0
    assert dag.where(dag.one, a, b).id == a.id and dag.where(a > b, a, a).id == a.id
    truth = a > b
    assert (
        dag.maximum(truth, 0.0).id == truth.id
        and dag.maximum(truth, 1.0).const == 1
        and dag.minimum(truth * (b > 3.0), 1.0).id == (truth * (b > 3.0)).id
    )
    assert dag.product([]).const == 1 and dag.total([]).const == 0 and dag.largest([]).const == 0
    assert dag.make("mod", 7, 4).const == 3 and dag.make("ceildiv", 7, 4).const == 2 and dag.slog2(dag.const(7)).const == 3


def test_refusals() -> None:
    dag = Dag((A,))
    with pytest.raises(UserError, match=r"contains i, which is not a column of this sketch \(columns: a\)"):
        dag.poly(poly(Var("i")) + 1)
    with pytest.raises(InternalError, match="no truth value"):
        bool(dag.poly(poly(A)))
    with pytest.raises(InternalError, match="unknown operation 'sin'"):
        DagKernel([("param", (0.0,)), ("sin", (0, 0))], 1, [], [1])
