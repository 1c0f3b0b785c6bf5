"""Define one step of a long short-term memory (Hochreiter and Schmidhuber, 1997), with the gates of `torch.nn.LSTMCell`."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import Expr, call
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.matmul import matmul
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.ops.unary import UNARY
from tunesmith.support.errors import ScriptError

GATES = 4
"""Columns of the weights: input gate, forget gate, cell candidate, output gate."""


def lstm_cell(x: Tensor, hidden: Tensor, cell: Tensor, w: Tensor, r: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The new hidden state and the new cell state.

    The stages are G and G_1 (products with the input and the hidden state), A (their sum with the bias), cell_new and hidden_new.

    Args:
        x: X[m, k], the input.
        hidden: H[m, n].
        cell: C[m, n].
        w: W[k, 4n], the weights of the input.
        r: R[n, 4n], the weights of the hidden state.
        bias: a vector of 4n.
    Raises:
        ScriptError: the shapes do not fit.
    """
    m, n = cell.shape
    if hidden.shape != cell.shape or bias.shape != (n * GATES,) or r.shape != (n, n * GATES) or w.shape[1:] != bias.shape:
        raise ScriptError(f"lstm_cell: {hidden!r}, {cell!r}, {w!r}, {r!r} and {bias!r} do not fit together")
    of_x, of_h = matmul(x, w, name="G"), matmul(hidden, r, name="G")
    sums = te.compute(of_x.shape, lambda i, j: of_x[i, j] + of_h[i, j] + bias[j], "A")

    def gate(number: int, i: Poly, j: Poly) -> Expr:
        return call("tanh" if number == 2 else "sigmoid", sums[i, j + n * number])

    new = te.compute((m, n), lambda i, j: gate(1, i, j) * cell[i, j] + gate(0, i, j) * gate(2, i, j), "cell_new")
    return te.compute((m, n), lambda i, j: gate(3, i, j) * call("tanh", new[i, j]), "hidden_new"), new


def _tensors(*, m: int, n: int, k: int, dtype: str) -> list[Tensor]:
    shapes = {"X": (m, k), "H": (m, n), "C": (m, n), "W": (k, GATES * n), "R": (n, GATES * n), "bias": (GATES * n,)}
    inputs = [te.placeholder(shape, dtype, name) for name, shape in shapes.items()]
    return [*inputs, *lstm_cell(*inputs)]


def _reference(
    x: np.ndarray, hidden: np.ndarray, cell: np.ndarray, w: np.ndarray, r: np.ndarray, bias: np.ndarray, /, **_: object
) -> list[np.ndarray]:
    wide = [a.astype(np.float64) for a in (x, w, hidden, r)]
    parts = np.split(wide[0] @ wide[1] + wide[2] @ wide[3] + bias, GATES, axis=1)
    enter, forget, leave = [UNARY["sigmoid"][1](parts[k]) for k in (0, 1, 3)]
    new = forget * cell + enter * np.tanh(parts[2])
    return [(leave * np.tanh(new)).astype(x.dtype), new.astype(x.dtype)]


def _flops(*, m: int, n: int, k: int, **_: object) -> int:
    """Those of both matrix products."""
    return 2 * m * GATES * n * (k + n)


LSTM_CELL = Operator(
    "lstm_cell",
    (IntParameter("m"), IntParameter("n"), IntParameter("k"), FLOATS),
    _tensors,
    _reference,
    _flops,
    constants=("W", "R", "bias"),
)
