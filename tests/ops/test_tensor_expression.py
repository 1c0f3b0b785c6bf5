"""Test tensor expressions: the programs they create, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Const, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Param, Var
from tunesmith.ir.stmt import Block, BufferStore, For
from tunesmith.ir.structural import equal
from tunesmith.ir.visit import blocks_under, path_to_block, walk
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import ScriptError


def matmul_tensors(m: te.Index, n: te.Index, k: te.Index) -> list[te.Tensor]:
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), "k")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=[r]), name="C")]


def loops(func: PrimFunc, block: str) -> list[str]:
    return [s.var.name for s in path_to_block(func.body, block) or [] if isinstance(s, For)]


def test_matmul_is_one_block_with_readable_names() -> None:
    func = te.create_prim_func(matmul_tensors(3, 4, 5), "matmul")
    assert [func.name, [b.name for b in func.buffers], func.allocs] == ["matmul", ["A", "B", "C"], ()]
    (block,) = blocks_under(func.body)
    assert loops(func, "C") == ["i", "j", "k"]
    assert [(i.var.name, i.extent, i.kind) for i in block.iters] == [("v_i", 3, "S"), ("v_j", 4, "S"), ("v_k", 5, "R")]
    a, b = np.arange(15, dtype=np.float32).reshape(3, 5), np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(run(func, [a, b])[2], a @ b)


def test_the_function_holds_plain_buffers_and_new_ones_each_time() -> None:
    tensors = matmul_tensors(3, 4, 5)
    first, second = te.create_prim_func(tensors), te.create_prim_func(tensors)
    assert equal(first, second)
    assert all(type(b) is Buffer for b in first.buffers)
    assert not set(first.buffers) & set(second.buffers)
    assert not {n.var for n in walk(first.body) if isinstance(n, For)} & {n.var for n in walk(second.body) if isinstance(n, For)}


@pytest.mark.parametrize(
    ("reduction", "op", "identity", "fold"),
    [
        (te.sum, "add", 0.0, np.sum),
        (te.prod, "mul", 1.0, np.prod),
        (te.max, "max", -np.inf, np.max),
        (te.min, "min", np.inf, np.min),
    ],
)
def test_reductions_accumulate_with_the_old_value_first(
    reduction: Callable[..., Expr], op: str, identity: float, fold: Callable[..., np.ndarray]
) -> None:
    x = te.placeholder((3, 4, 5), name="X")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(5, "s")
    func = te.create_prim_func([x, te.compute((4,), lambda j: reduction(x[r, j, s], axis=[r, s]), name="Y")])
    (block,) = blocks_under(func.body)
    assert isinstance(block.init, BufferStore) and isinstance(block.init.value, Const) and block.init.value.value == identity
    assert isinstance(block.body, BufferStore) and isinstance(block.body.value, Binary) and block.body.value.op == op
    old = block.body.value.a
    assert isinstance(old, BufferLoad) and old.buffer is block.body.buffer and old.indices == block.body.indices
    data = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5) % 7 - 3
    np.testing.assert_array_equal(run(func, [data])[1], fold(data, axis=(0, 2)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_extremes_of_integers_start_at_the_end_of_the_type(dtype: str) -> None:
    x, r = te.placeholder(3, dtype, "X"), te.reduce_axis(3)
    top, low = te.compute((), lambda: te.max(x[r], r), "top"), te.compute((), lambda: te.min(x[r], r), "low")
    info = np.iinfo(dtype)
    for value in (info.min, info.max, 3):
        _, largest, smallest = run(te.create_prim_func([x, top, low]), [np.full(3, value, dtype)])
        assert largest == value and smallest == value


def test_stages_follow_their_producers_and_share_them() -> None:
    x = te.placeholder((4, 6), name="X")
    r = te.reduce_axis(6, "j")
    total = te.compute((4,), lambda i: te.sum(x[i, r], r), "S")
    centred = te.compute((4, 6), lambda i, j: x[i, j] - total[i] / 6.0, "D")
    square = te.compute((4,), lambda i: te.sum(centred[i, r] * centred[i, r], r), "V")
    func = te.create_prim_func([x, square, centred])
    assert [b.name for b in blocks_under(func.body)] == ["S", "D", "V"]
    assert [b.name for b in func.allocs] == ["S"]
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    _, v, d = run(func, [data])
    want = data - data.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(d, want, rtol=1e-6)
    np.testing.assert_allclose(v, (want**2).sum(axis=1), rtol=1e-6)


def test_equal_names_are_numbered() -> None:
    x = te.placeholder(4, name="T")
    first = te.compute(4, lambda i: x[i] + 1.0, "T")
    other = te.compute(4, lambda i: first[i] * 2.0, "T_1")
    last = te.compute(4, lambda i: first[i] + other[i], "T")
    func = te.create_prim_func([x, last])
    names = [b.name for b in func.buffers]
    assert names[0] == "T" and len(set(names)) == 4 and names.count("T_1") == 1
    assert [b.name for b in blocks_under(func.body)] == ["T", "T_1", "T_2"]


def test_loops_are_named_after_the_lambda_or_by_axes() -> None:
    x = te.placeholder((1, 2, 3, 4, 5), name="X")
    y = te.compute((1, 2), lambda row, col: x[row, col, 0, 0, 0], "Y")
    z = te.compute((2, 3, 4), lambda *i: x[(0, *i, 0)], "Z")
    u = te.compute(x.shape, lambda *i: x[i], "U")
    v = te.compute((2,), lambda *i: x[0, i[0], 0, 0, 0], "V", axes=["n"])
    func = te.create_prim_func([x, y, z, u, v])
    assert [loops(func, b) for b in "YZUV"] == [["row", "col"], ["i", "j", "k"], ["i0", "i1", "i2", "i3", "i4"], ["n"]]


def test_conditions_keep_reads_in_range() -> None:
    x = te.placeholder(4, name="X")
    y = te.compute(7, lambda i: te.if_then_else(te.all(i >= 2, i < 6, te.poly(0) < 1), x[i - 2], -1.0), "Y")
    out = run(te.create_prim_func([x, y]), [np.arange(4, dtype=np.float32)])[1]
    np.testing.assert_array_equal(out, [-1, -1, 0, 1, 2, 3, -1])


def test_numbers_and_indices_are_values() -> None:
    one = te.compute((2, 2), lambda i, j: 1, "one", dtype="float32")
    ramp = te.compute(3, lambda i: 2 * i + 1, "ramp")
    assert ramp.dtype == "int64"
    func = te.create_prim_func([one, ramp])
    ones, odd = run(func, [])
    np.testing.assert_array_equal(ones, np.ones((2, 2)))
    np.testing.assert_array_equal(odd, [1, 3, 5])


@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (-1, True)])
def test_a_scan_computes_an_axis_in_order(axis: int, reverse: bool) -> None:
    a = te.placeholder((3, 5), name="A")
    b = te.compute((3, 5), lambda i, j: a[i, j] * 2.0, "B")
    c = te.scan((3, 5), lambda previous, i, j: 0.5 * previous + b[i, j], 1.0, axis=axis, reverse=reverse, name="C")
    func = te.create_prim_func([a, te.compute((3, 5), lambda i, j: c[i, j] + 1.0, "D")])
    assert [b.name for b in blocks_under(func.body)] == ["B", "C", "D"]
    data = np.arange(15, dtype=np.float32).reshape(3, 5)
    want, previous = np.zeros_like(data), np.ones(5 if axis == 0 else 3, np.float32)
    rows = np.moveaxis(want, axis, 0)
    for n in reversed(range(len(rows))) if reverse else range(len(rows)):
        previous = rows[n] = 0.5 * previous + 2 * np.moveaxis(data, axis, 0)[n]
    np.testing.assert_array_equal(run(func, [data])[1], want + 1)


def test_a_scan_may_start_from_an_expression() -> None:
    first, a = te.placeholder((), name="first"), te.placeholder((4,), "int32", name="A")
    c = te.scan((4,), lambda previous, *i: te.maximum(previous, a[i]), te.cast("int32", first[()]), name="C", dtype="int32")
    func = te.create_prim_func([first, a, c])
    assert run(func, [np.array(5, np.float32), np.array([3, 7, 2, 9], np.int32)])[2].tolist() == [5, 7, 7, 9]


def test_a_scatter_updates_elements_in_order() -> None:
    x, at, v = te.placeholder((4, 3), "int32", name="X"), te.placeholder((5,), "int64", name="I"), te.placeholder((5, 3), "int32", name="V")
    y = te.scatter(x, (5, 3), lambda k, c: (at[k], c), lambda old, k, c: 2 * old + v[k, c], where=lambda k, c: v[k, c] > 0, name="Y")
    func = te.create_prim_func([x, at, v, te.compute((4, 3), lambda i, j: y[i, j] + 1, "Z")])
    assert [b.name for b in blocks_under(func.body)] == ["Y_initial", "Y", "Z"]
    assert loops(func, "Y") == ["k", "c"]
    a, i, b = np.arange(12, dtype=np.int32).reshape(4, 3), np.array([1, 3, 1, 0, 1]), np.arange(-7, 8, dtype=np.int32).reshape(5, 3)
    want = a.copy()
    for k in range(5):
        want[i[k]] = np.where(b[k] > 0, 2 * want[i[k]] + b[k], want[i[k]])
    np.testing.assert_array_equal(run(func, [a, i, b])[3], want + 1)


def test_a_histogram_counts() -> None:
    x = te.placeholder((9,), "int64", name="X")
    y = te.scatter(lambda b: 0, 9, lambda i: (x[i],), lambda old, i: old + 1, shape=4, name="Y", dtype="int32")
    data = np.array([3, 1, 1, 0, 3, 3, 1, 3, 0])
    assert run(te.create_prim_func([x, y]), [data])[1].tolist() == [2, 3, 0, 4]


def test_a_scatter_of_one_element() -> None:
    x, at = te.placeholder((2, 3), name="X"), te.placeholder((2,), "int64", name="I")
    y = te.scatter(x, (), lambda: (at[0], at[1]), lambda old: old + 10.0, name="Y")
    got = run(te.create_prim_func([x, at, y]), [np.zeros((2, 3), np.float32), np.array([1, 2])])[2]
    assert got.tolist() == [[0, 0, 0], [0, 0, 10]]


def test_symbolic_sizes_become_scalar_parameters() -> None:
    m, shift = te.var("m"), te.var("shift")
    x = te.placeholder((m + 2, 3), name="X")
    r = te.reduce_axis(m, "r")
    y = te.compute(3, lambda j: te.sum(x[r + shift, j], r), "Y")
    func = te.create_prim_func([x, y])
    scalars = [p for p in func.params if isinstance(p, Var)]
    assert [p.name for p in scalars] == ["m", "shift"] and func.params[:2] == func.buffers
    data = np.arange(18, dtype=np.float32).reshape(6, 3)
    np.testing.assert_array_equal(run(func, [data], dict(zip(scalars, (4, 1), strict=True)))[1], data[1:5].sum(axis=0))


def test_sizes_may_be_params() -> None:
    m, k = Param("m", range(1, 5)), Param("k", range(1, 8))
    func = te.create_prim_func(matmul_tensors(m, 2, k))
    assert not [p for p in func.params if isinstance(p, Var)]
    a, b = np.ones((3, 7), np.float32), np.ones((7, 2), np.float32)
    np.testing.assert_array_equal(run(func, [a, b], {m: 3, k: 7})[2], np.full((3, 2), 7.0))


def test_a_scalar_result_has_no_spatial_loop() -> None:
    x, r = te.placeholder(5, name="X"), te.reduce_axis(5, "k")
    func = te.create_prim_func([x, te.compute((), lambda: te.sum(x[r], r), "Y")])
    (block,) = blocks_under(func.body)
    assert isinstance(block, Block) and [i.kind for i in block.iters] == ["R"]
    assert run(func, [np.arange(5, dtype=np.float32)])[1] == 10


X = te.placeholder((4, 5), name="X")
H = te.placeholder((4, 5), "float16", name="H")
B = te.placeholder((4, 5), "bool", name="B")
R = te.reduce_axis(5, "r")
Q = te.reduce_axis(4, "q")
FOREIGN: list[te.Poly] = []
te.compute(4, lambda i: (FOREIGN.append(i), X[i, 0])[1], "keep")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: X[0], "X has 2 dimensions and was indexed with 1"),
        (lambda: te.compute((4, 5), lambda i: X[i, 0], "Y"), "compute Y: the shape has 2 dimensions and the function takes 1 indices"),
        (lambda: te.compute(4, lambda i, j: X[i, j], "Y"), "compute Y: the shape has 1 dimensions and the function takes 2 indices"),
        (lambda: te.compute(4, lambda i: X[i, 0], "Y", axes=["a", "b"]), "compute Y: the shape has 1 dimensions, and axes= has 2 names"),
        (lambda: te.compute(4, lambda i: 1.0 + te.sum(X[i, R], R), "Y"), "compute Y: a reduction over r is nested in a formula"),
        (lambda: te.compute((), lambda: te.sum(te.sum(X[Q, R], R), Q), "Y"), "a reduction over r is nested in a formula"),
        (lambda: te.compute(4, lambda i: X[i, R], "Y"), "uses the axis r, which is not reduced; add it to axis="),
        (lambda: te.compute((), lambda: te.sum(X[Q, R], R), "Y"), "uses the axis q, which is not reduced"),
        (lambda: te.compute(4, lambda i: te.sum(X[i, R], i), "Y"), "sum: axis=i is not an axis to reduce over; make one with reduce_axis"),
        (lambda: te.compute(4, lambda i: te.max(X[i, R], R + 1), "Y"), "max: axis=1 \\+ r is not an axis to reduce over"),
        (lambda: te.compute(4, lambda i: te.min(X[i, R], [R, R]), "Y"), "min: the axis r is listed twice"),
        (lambda: te.compute(4, lambda i: te.prod(X[i, R], []), "Y"), "prod: no axis is given"),
        (lambda: te.sum(X[0, R]), r"sum: no axis is given. Pass axis=reduce_axis\(extent, name\)"),
        (lambda: te.max(X), r"max: an element is reduced, not the tensor X: index it, as in max\(X\[i, r\], axis=r\)"),
        (lambda: X + B, r"\+ combines elements and not whole tensors: index the tensors in .* compute, X\[i, j\] \+ B\[i, j\]$"),
        (lambda: X * 2.0, r"X\[i, j\] \* 2.0$"),
        (lambda: 2.0 - X, r"2.0 - X\[i, j\]$"),
        (lambda: -X, r"-X\[i, j\]$"),
        (lambda: X[0, 0] / X, r"^an operand is an element or a number, got the Tensor X: index it, as in X\[\.\.\.\]$"),
        (lambda: te.placeholder((), name="s") < X, r"s\[\(\)\] < X\[i, j\]$"),
        (lambda: te.sum(2.0, R), "sum: an expression is reduced, got 2.0"),
        (lambda: te.sum(B[0, R], R), "sum: values of type bool cannot be reduced"),
        (lambda: te.compute(4, lambda i: X[FOREIGN[0], 0], "Y"), "compute Y: the formula uses the index i of another compute"),
        (lambda: te.compute((4, 5), lambda i, j: X[i, j] + H[i, j], "Y"), "operands have different types float32 and float16"),
        (lambda: te.compute((4, 5), lambda i, j: H[i, j], "Y", dtype="float32"), "compute Y: the element is float16, not float32"),
        (lambda: te.compute(4, lambda i: 1.0, "Y"), "compute Y: the element is the number 1.0; give its type"),
        (lambda: te.compute(4, lambda i: "x", "Y"), "compute Y: the function must return an expression, got str"),
        (lambda: te.compute(4, lambda i: Buffer("P", (4,))[i], "Y"), "compute Y: P is a buffer, not a tensor"),
        (lambda: te.scan(4, lambda p, i: p + X[i, 0], 0.0, axis=1, name="Y"), "scan Y: axis=1 is not an axis of 1 dimensions"),
        (lambda: te.scan((), lambda p: p, 0.0, name="Y"), "scan Y: axis=-1 is not an axis of 0 dimensions"),
        (lambda: te.scan(4, lambda: 0.0, 0.0, name="Y"), "scan Y: the function takes the previous element, and then 1 indices"),
        (lambda: te.scan(4, lambda p: p, 0.0, name="Y"), "the function takes 0 indices, after the previous element"),
        (lambda: te.scan(4, lambda p, i: p + X[i, 0], 0.0, name="Y", dtype="int32"), "operands have different types int32 and float32"),
        (
            lambda: te.scan(4, lambda p, i: p, X[0, 0], name="Y", dtype="int32"),
            "init is .* of type int32, got float32",
        ),
        (lambda: te.scan(4, lambda p, i: p, "0", name="Y"), "init is an expression or a number of type float32, got '0'. Pass dtype="),
        (lambda: te.scan(4, lambda p, i: p < 1.0, 0.0, name="Y"), "the update must return an expression of type float32, got bool"),
        (lambda: te.scan(4, lambda p, i: None, 0.0, name="Y"), "the update must return an expression of type float32, got NoneType: None"),
        (lambda: te.scan(4, lambda p, i: te.sum(p * X[i, R], R), 0.0, name="Y"), "scan Y: the update is a reduction; move it"),
        (lambda: te.scan(4, lambda p, i: p + X[FOREIGN[0], 0], 0.0, name="Y"), "scan Y: the formula uses the index i of another compute"),
        (lambda: te.scan(4, lambda p, i: sum([p] * 3000), 0.0, name="Y"), "scan Y: the update is too deep or too large an expression"),
        (lambda: te.scatter(X, 3, lambda k: (k,), lambda old, k: old, name="Y"), "scatter Y: at must return a tuple of 2 indices"),
        (lambda: te.scatter(X, 3, lambda k: k, lambda old, k: old, name="Y"), "scatter Y: at must return a tuple of 2 indices"),
        (lambda: te.scatter(X, 3, lambda k: (X[k, 0], k), lambda old, k: old, name="Y"), "index 0 is a value of type float32; cast it"),
        (lambda: te.scatter(X, 3, lambda k: (k, k), lambda old, k: old < 1.0, name="Y"), "an expression of type float32, got bool"),
        (lambda: te.scatter(X, 3, lambda k: (k, k), lambda old, k: "x", name="Y"), "an expression of type float32, got str: 'x'"),
        (lambda: te.scatter(X, 3, lambda k: (k, k), lambda old, k: te.sum(X[k, R], R), name="Y"), "a formula is a reduction; move it"),
        (lambda: te.scatter(X, 3, lambda k: (k, k), lambda old, k: sum([old] * 3000), name="Y"), "a formula is too deep or too large"),
        (lambda: te.scatter(X, 3, lambda k: (k, k), lambda old, k: old, where=lambda k: 1, name="Y"), "where must return a condition"),
        (lambda: te.scatter(X, 3, lambda k: (FOREIGN[0], k), lambda old, k: 1.0, name="Y"), "uses the index i of another compute"),
        (lambda: te.scatter(lambda i: 0.0, 3, lambda k: (k,), lambda old, k: old, name="Y"), "the shape is not known. Pass shape="),
        (lambda: te.scatter(lambda i: te.sum(X[i, R], R), 3, lambda k: (k,), lambda o, k: o, shape=4, name="Y"), "without reduction"),
        (lambda: te.placeholder((4, 0), name="Z"), "placeholder Z: the extent 0 is not positive"),
        (lambda: te.placeholder((4, R), name="Z"), "placeholder Z: the extent r depends on an axis"),
        (lambda: te.placeholder((4, 1.5), name="Z"), "an index expression was expected"),
        (lambda: te.placeholder(4, "float31"), "unknown dtype 'float31'"),
        (lambda: te.reduce_axis((1, 5), "r"), "reduce_axis r: a range is \\(0, extent\\)"),
        (lambda: te.reduce_axis(0, "r"), "reduce_axis r: the extent 0 is not positive"),
        (lambda: te.max(X[0, 0], 0.0), r"max: axis= takes results of reduce_axis, got 0.0.*; of two operands write te.maximum\(a, b\)"),
        (lambda: te.min(X[0, 0], X[0, 1]), r"axis= takes .*, got a value of type float32.*write te.minimum\(a, b\)"),
        (lambda: te.max(0.0, X[0, 0]), r"max: an expression is reduced, got 0.0. te.max\(value, axis=r\) reduces .*te.maximum\(a, b\)"),
        (lambda: te.sum(X[0, 0], FOREIGN[0]), r"is not an axis to reduce over; make one with reduce_axis.*of two operands write a \+ b"),
        (lambda: te.all(R < 2, True), r"all: the condition is the Python value True.*te.equal\(a, b\)"),
        (lambda: te.create_prim_func([X]), "create_prim_func main: no tensor is computed"),
        (lambda: te.create_prim_func([te.compute(4, lambda i: X[i, 0])], "f"), "create_prim_func f: the input X is read, but it is not in"),
        (lambda: te.create_prim_func([X, X, te.compute(4, lambda i: X[i, 0])]), "the tensor X is listed twice"),
        (lambda: te.create_prim_func([Buffer("P", (4,))]), "a parameter is a tensor, got Buffer"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        make()


def test_intrinsics_are_functions_too() -> None:
    a = te.placeholder((4,), name="A")
    func = te.create_prim_func([a, te.compute((4,), lambda i: te.exp(a[i]).astype("float64"), name="C")])
    x = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)
    assert np.allclose(run(func, [x])[1], np.exp(x))
    with pytest.raises(AttributeError, match=r"te has no expp; its functions are .*, and the intrinsics .*exp.* Did you mean 'exp'"):
        _ = te.expp


def test_a_cast_takes_the_type_first() -> None:
    a = te.placeholder((4,), name="A")
    with pytest.raises(ScriptError, match=r"cast takes an element type and an expression, as in cast\('float32', x\)"):
        te.cast(a[0], "float64")  # type: ignore[arg-type]


def test_functions_of_numpy_are_refused_and_operators_are_not() -> None:
    a = te.placeholder((8, 9), name="A")
    for function, instead in ((np.exp, "te.exp, in scripts T.exp"), (np.abs, "te.abs, in scripts T.abs"), (np.arctan, "functions of te")):
        with pytest.raises(ScriptError, match=f"takes numbers, not symbolic expressions: use .*{instead}"):
            te.compute((8,), lambda i, f=function: f(a[i, 0]))
    with pytest.raises(ScriptError, match="numpy.sqrt .* use te.sqrt"):
        te.compute((8,), lambda i: np.sqrt(i))
    for element, wanted in (
        (lambda i: np.float32(2) * a[i, 0], lambda i: 2.0 * a[i, 0]),
        (lambda i: np.float32(2) - a[i, 0], lambda i: 2.0 - a[i, 0]),
        (lambda i: a[np.int64(1) + i - 1, 0] + np.float32(1), lambda i: a[i, 0] + 1.0),
        (lambda i: np.add(a[i, 0], 1.0), lambda i: a[i, 0] + 1.0),
        (lambda i: a[np.int64(2) * i - i, 0], lambda i: a[i, 0]),
    ):
        made, same = (te.create_prim_func([a, te.compute((8,), f, name="B")]) for f in (element, wanted))
        assert equal(made, same)


def test_python_conditions_are_refused_with_a_suggestion() -> None:
    a = te.placeholder((8,), name="A")
    for element in (lambda i: max(a[i], 0.0), lambda i: a[i] if a[i] > 0 else 0.0, lambda i: np.maximum(a[i], 0.0)):
        with pytest.raises(
            ScriptError, match=r"te.select\(cond, a, b\), te.maximum\(a, b\) and te.minimum\(a, b\); in scripts T.select, T.max"
        ):
            te.compute((8,), element)


def test_comparisons_of_indices_and_values() -> None:
    a = te.placeholder((3, 3), name="A")

    def element(i: te.Poly, j: te.Poly) -> Expr:
        return te.if_then_else(te.any(te.equal(i, j), te.logical_not(te.not_equal(a[i, j], 0.5))), a[i, j], 0.0)

    data = np.float32([[1, 2, 0.5], [4, 5, 6], [0.5, 8, 9]])
    func = te.create_prim_func([a, te.compute((3, 3), element, "Y")])
    assert run(func, [data])[1].tolist() == [[1, 0, 0.5], [0, 5, 0], [0.5, 0, 9]]
    assert isinstance(te.any(), Const) and isinstance(te.all(), Const)
    for wrong in (lambda i, j: te.select(i == j, a[i, j], 0.0), lambda i, j: te.logical_not(a[i, j] == 0.5), lambda i, j: te.any(i != j)):
        with pytest.raises(ScriptError, match=r"`==` and `!=` of expressions compare the objects. Write te.equal\(a, b\)"):
            te.compute((3, 3), wrong)
    with pytest.raises(ScriptError, match="logical_not needs a bool condition, got float32"):
        te.compute((3, 3), lambda i, j: te.logical_not(a[i, j]))


def test_numbers_of_numpy_are_numbers() -> None:
    size = np.int64(4)
    given = te.create_prim_func(matmul_tensors(size, size, size))  # type: ignore[arg-type]
    assert equal(given, te.create_prim_func(matmul_tensors(4, 4, 4)))
    assert te.placeholder(size, name="A").shape == (4,)  # type: ignore[arg-type]
    with pytest.raises(ScriptError, match=r"an index expression was expected .*, got float: 4\.5"):
        te.placeholder((4.5,), name="A")  # type: ignore[arg-type]
