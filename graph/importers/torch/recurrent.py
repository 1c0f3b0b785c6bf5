"""Convert torch's recurrent layers (LSTM, GRU, RNN) to loops over the sequence.

The products with the inputs of all steps are one product before the loop.  The region of the loop has the product with the hidden state
and the elementwise operators of one step, so that a sequence of any length has as many functions as one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunesmith.graph.importers.torch.call import TorchCall, converts
from tunesmith.graph.importers.torch.nn import transposed
from tunesmith.graph.importers.torch.random import dropped
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Poly, Var, poly

State = tuple[Operand, ...]
"""The hidden state, and the cell of an LSTM."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one direction of one layer.

    Attributes:
        inputs: [gates * hidden, inputs].
        hidden: [gates * hidden, hidden].
        biases: [gates * hidden] each, for the products with the inputs and with the hidden state; None without biases.
        projection: [projected, hidden] of an LSTM whose hidden state is projected; else None.
    """

    inputs: Operand
    hidden: Operand
    biases: tuple[Operand, Operand] | None
    projection: Operand | None


Step = Callable[[TorchCall, Operand, State, Weights], State]
"""One step: the converter in the region, the products with the inputs, the state and the weights -> the next state."""


def _gate(call: TorchCall, x: Operand, i: int, count: int) -> Operand:
    """Gate i of [batch, count * hidden]."""
    size = x.type.shape[1].as_int() // count
    return call.emit("strided_slice", x, axes=(1,), begin=(i * size,), end=((i + 1) * size,))


def _lstm_step(call: TorchCall, inputs: Operand, state: State, weights: Weights) -> State:
    h, c = state
    gates = call.emit("add", call.emit("matmul", h, transposed(call, weights.hidden)), inputs)
    take, forget, cell, out = [_gate(call, gates, i, 4) for i in range(4)]
    kept = call.emit("multiply", call.emit("sigmoid", forget), c)
    c = call.emit("add", kept, call.emit("multiply", call.emit("sigmoid", take), call.emit("tanh", cell)))
    h = call.emit("multiply", call.emit("sigmoid", out), call.emit("tanh", c))
    return h if weights.projection is None else call.emit("matmul", h, transposed(call, weights.projection)), c


def _gru_step(call: TorchCall, inputs: Operand, state: State, weights: Weights) -> State:
    (h,) = state
    own = call.emit("matmul", h, transposed(call, weights.hidden))
    own = own if weights.biases is None else call.emit("add", own, weights.biases[1])
    reset, update = [call.emit("sigmoid", call.emit("add", _gate(call, inputs, i, 3), _gate(call, own, i, 3))) for i in range(2)]
    new = call.emit("tanh", call.emit("add", _gate(call, inputs, 2, 3), call.emit("multiply", reset, _gate(call, own, 2, 3))))
    return (call.emit("add", new, call.emit("multiply", update, call.emit("subtract", h, new))),)


def _rnn_step(function: str) -> Step:
    def step(call: TorchCall, inputs: Operand, state: State, weights: Weights) -> State:
        return (call.emit(function, call.emit("add", call.emit("matmul", state[0], transposed(call, weights.hidden)), inputs)),)

    return step


def _direction(call: TorchCall, x: Operand, state: State, weights: Weights, step: Step, backward: bool) -> tuple[Operand, State]:
    """The hidden states of all steps, [steps, batch, hidden], and the state after the last one."""
    length = x.type.shape[0].const
    if length is None:
        call.refuse("the number of steps of its sequence is dynamic; fix it, or call the model once for each step")
    products = call.emit("matmul", x, transposed(call, weights.inputs))
    if weights.biases is not None:
        products = call.emit("add", products, weights.biases[0])
        if step is not _gru_step:  # whose reset gate multiplies the second bias
            products = call.emit("add", products, weights.biases[1])

    def body(b: RegionBuilder, t: Var, *held: Operand) -> tuple[Sequence[Operand], Sequence[Operand]]:
        inner = replace(call, builder=b)
        index: Poly = length - 1 - poly(t) if backward else poly(t)
        made = step(inner, inner.emit("row", products, index=index), held, weights)
        return made, made[:1]

    *last, rows = call.builder.loop(length, state, body, name=call.name)
    return (call.emit("flip", rows, axes=(0,)) if backward else rows), tuple(last)


def _layers(
    step: Step,
    call: TorchCall,
    x: Operand,
    states: Sequence[Operand],
    params: Sequence[Operand],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Operand]:
    """The hidden states of the last layer, and the last states of all layers."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    has_projection = each > (4 if has_biases else 2)
    if batch_first:
        x = call.emit("permute_dims", x, axes=(1, 0, 2))
    last: list[State] = []
    for layer in range(num_layers):
        made = []
        for d in range(directions):
            n = layer * directions + d
            own = list(params[n * each : (n + 1) * each])
            biases = (own[2], own[3]) if has_biases else None
            weights = Weights(own[0], own[1], biases, own[-1] if has_projection else None)
            state = tuple([call.emit("row", s, index=n) for s in states])
            rows, state = _direction(call, x, state, weights, step, d == 1)
            made.append(rows)
            last.append(state)
        x = made[0] if len(made) == 1 else call.emit("concat", *made, axis=2)
        if layer + 1 < num_layers and train:
            x, _ = dropped(call, x, dropout)
    if batch_first:
        x = call.emit("permute_dims", x, axes=(1, 0, 2))
    return [x, *[_stacked(call, column) for column in zip(*last, strict=True)]]


def _stacked(call: TorchCall, parts: Sequence[Operand]) -> Operand:
    rows = [call.emit("expand_dims", p, axes=(0,)) for p in parts]
    return rows[0] if len(rows) == 1 else call.emit("concat", *rows, axis=0)


@converts("aten.lstm.input")
def lstm(call: TorchCall, x: Operand, states: Sequence[Operand], params: Sequence[Operand], *options: Any) -> list[Operand]:
    """All layers and directions of an LSTM: hidden states of all steps, last hidden states, last cells."""
    return _layers(_lstm_step, call, x, states, params, *options)


@converts("aten.gru.input")
def gru(call: TorchCall, x: Operand, state: Operand, params: Sequence[Operand], *options: Any) -> list[Operand]:
    """All layers and directions of a GRU: hidden states of all steps, last hidden states."""
    return _layers(_gru_step, call, x, [state], params, *options)


@converts("aten.rnn_tanh.input")
def rnn_tanh(call: TorchCall, x: Operand, state: Operand, params: Sequence[Operand], *options: Any) -> list[Operand]:
    """All layers and directions of an Elman network with tanh."""
    return _layers(_rnn_step("tanh"), call, x, [state], params, *options)


@converts("aten.rnn_relu.input")
def rnn_relu(call: TorchCall, x: Operand, state: Operand, params: Sequence[Operand], *options: Any) -> list[Operand]:
    """All layers and directions of an Elman network with relu."""
    return _layers(_rnn_step("relu"), call, x, [state], params, *options)
