"""Test the operators of expressions: powers, bits and conditions, and the refusals of Python's own operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.expr import Expr
from tunesmith.ir.interpreter.interpret import run
from tunesmith.support.errors import ScriptError

Element = Callable[..., Expr]

X = np.float32([[0.5, -1.5, 2.25], [3.0, -0.25, 1.0]])
N = np.int32([[5, -3, 0], [1, 2, -2]])
U = np.uint8([[5, 255, 0], [1, 2, 128]])
x, n, u = (te.placeholder((2, 3), d, name) for d, name in (("float32", "x"), ("int32", "n"), ("uint8", "u")))


def computed(element: Element) -> np.ndarray:
    """The elements, which a compiled function and the interpreter agree on."""
    y = te.compute((2, 3), element, "y")
    func = te.create_prim_func([x, n, u, y])
    wanted = run(func, [X, N, U])[3]
    out = np.zeros_like(wanted)
    tunesmith.build(func)(X, N, U, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    return wanted


@pytest.mark.parametrize(
    ("element", "wanted"),
    [
        (lambda i, j: x[i, j] ** 2, X**2),
        (lambda i, j: x[i, j] ** 3.0, X**3),
        (lambda i, j: te.pow(x[i, j], 4), X**4),
        (lambda i, j: x[i, j] ** 0, X**0),
        (lambda i, j: x[i, j] ** 1, X),
        (lambda i, j: te.abs(x[i, j]) ** 0.5, np.abs(X) ** 0.5),
        (lambda i, j: te.abs(x[i, j]) ** x[i, j], np.abs(X) ** X),
        (lambda i, j: 2 ** x[i, j], 2**X),
        (lambda i, j: n[i, j] ** 3, N**3),
        (lambda i, j: np.power(x[i, j], 2), X**2),
        (lambda i, j: te.cast("float32", (i + j) ** 2), np.float32([[0, 1, 4], [1, 4, 9]])),
        (lambda i, j: n[i, j] & 3, N & 3),
        (lambda i, j: 3 & n[i, j], 3 & N),
        (lambda i, j: n[i, j] | 4, N | 4),
        (lambda i, j: 4 | n[i, j], N | 4),
        (lambda i, j: n[i, j] ^ 6, N ^ 6),
        (lambda i, j: 6 ^ n[i, j], N ^ 6),
        (lambda i, j: n[i, j] << 2, N << 2),
        (lambda i, j: 1 << (n[i, j] & 3), 1 << (N & 3)),
        (lambda i, j: n[i, j] >> 1, N >> 1),
        (lambda i, j: 64 >> (n[i, j] & 3), 64 >> (N & 3)),
        (lambda i, j: ~n[i, j], ~N),
        (lambda i, j: ~u[i, j], ~U),
        (lambda i, j: te.select((n[i, j] > 1) & (x[i, j] > 0), x[i, j], 0.0), np.where((N > 1) & (X > 0), X, 0)),
        (lambda i, j: te.select((n[i, j] > 1) | (x[i, j] > 0), x[i, j], 0.0), np.where((N > 1) | (X > 0), X, 0)),
        (lambda i, j: te.select((n[i, j] > 1) ^ (x[i, j] > 0), x[i, j], 0.0), np.where((N > 1) ^ (X > 0), X, 0)),
        (lambda i, j: te.select(~(x[i, j] > 0), x[i, j], 0.0), np.where(X > 0, 0, X)),
        (lambda i, j: te.select(~(j > 0) & (i > 0), 1.0, x[i, j]), np.where(np.arange(6).reshape(2, 3) == 3, 1, X)),
    ],
)
def test_operators_are_those_of_numpy(element: Element, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(computed(element), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (lambda i, j: n[i, j] ** 5, "the power of a value of type int32 takes the exponents 0 to 4, as numbers: write products, or cast"),
        (lambda i, j: 2**i, "the power of a value of type int64 takes the exponents 0 to 4"),
        (lambda i, j: (i > j) ** 2, "the power of a value of type bool takes"),
        (lambda i, j: x[i, j] & 1, "`&` is for integers and conditions, got float32"),
        (lambda i, j: x[i, j] & (i > j), "`&` of conditions needs a bool condition, got float32"),
        (lambda i, j: (i > 1) | (i == j), r"`\|` of conditions: the condition is the Python value False.*Write te.equal\(a, b\)"),
        (lambda i, j: te.sqrt(n[i, j]), "te.sqrt takes floats, got int32; cast the operand, for example to float32"),
        (lambda i, j: te.abs(i > j), "te.abs takes numbers, got bool; cast the operand to an integer type"),
        (lambda i, j: (x[i, j] > 0) + (i > j), r"`\+` is for numbers, got a condition; cast it to an integer type"),
        (lambda i, j: (i > 1) << 1, "`<<` is for integers, got a condition; cast it to an integer type"),
        (lambda i, j: te.select(i > 0 and i < 2, x[i, j], 0.0), r"Instead of `p and q`.* write te.all\(p, q\), te.any\(p, q\)"),
        (lambda i, j: te.select(0 < i < 2, x[i, j], 0.0), r"`a < b < c` write .* te.all\(a < b, b < c\), or p & q, p \| q and ~p"),
        (lambda i, j: x[n[i, j], 0], r'of type int32, which is data: .* te.lookup\(cast\("int64", value\), extent, lambda v: x\[v\]\)'),
        (lambda i, j: x[te.cast("int64", n[i, j]), 0], r"bound by te.lookup\(value, extent, lambda v: x\[v\]\), in scripts T.lookup"),
        (lambda i, j: x[x[i, j], 0], "an index expression was expected .*, got a value of type float32$"),
        (lambda i, j: te.select(i > 1, 1.0, 0.0), r"select: at least one operand .*, got 1.0 and 0.0: write te.const\(1.0, dtype\)"),
        (lambda i, j: x[i, :], "got a slice: write an index for each dimension, and reduce over an axis of reduce_axis"),
        (lambda i, j: math.exp(x[i, j]), "functions of math and float.. take numbers. Use those of te, such as te.exp, in scripts T.exp"),
    ],
)
def test_refusals(element: Element, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        te.compute((2, 3), element, "y")
