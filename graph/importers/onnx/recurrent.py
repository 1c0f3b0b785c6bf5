"""Convert ONNX recurrent networks by unrolling one cell per sequence element; the sequence length must be constant.

W, R and B have the shape [directions, gates * hidden, ...] and the gate order i, o, f, c (LSTM) or z, r, h (GRU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, shape_of
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode
from tunesmith.ir.poly import Index

_MOST_STEPS = 512

_ACTIVATIONS: dict[str, str] = {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "tanh": "tanh",
}


def _activations(node: OnnxNode, default: list[str], direction: int) -> list[Callable[[Datum], Datum]]:
    names = node.attr("activations") or []
    names = names[direction * len(default) : (direction + 1) * len(default)] or default
    if node.attr("activation_alpha") or node.attr("activation_beta"):
        raise node.refuse("activation_alpha and activation_beta are not supported")
    unknown = [n for n in names if n.lower() not in _ACTIVATIONS]
    if unknown:
        raise node.refuse(f"the activation {unknown[0]}")
    return [_activation(node, _ACTIVATIONS[n.lower()]) for n in names]


def _activation(node: OnnxNode, operator: str) -> Callable[[Datum], Datum]:
    limit = node.attr("clip")

    def apply(x: Datum) -> Datum:
        return node.b.call(operator, node.b.clip(x, min=-limit, max=limit) if limit else x)

    return apply


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights of one direction.

    Attributes:
        w: [input, gates * hidden].
        r: [hidden, gates * hidden].
        bias_w: input bias, [gates * hidden], or None.
        bias_r: state bias, [gates * hidden], or None.
        peepholes: input, output and forget gate, [hidden] each; or empty.
    """

    w: Datum
    r: Datum
    bias_w: Datum | None
    bias_r: Datum | None
    peepholes: tuple[Datum, ...] = ()


_Cell = Callable[[OnnxNode, Datum, tuple[Datum, ...], _Weights, list[Callable[[Datum], Datum]], int], tuple[Datum, ...]]


def _row(node: OnnxNode, x: Datum, i: int, axis: int = 0) -> Datum:
    part = node.b.strided_slice(x, axes=(axis,), begin=(i,), end=(i + 1,))
    return node.b.squeeze(part, axes=(axis,))


def _gate(node: OnnxNode, x: Datum, i: int, hidden: int) -> Datum:
    """The columns of gate `i`."""
    axis = len(x.type.shape) - 1
    return node.b.strided_slice(x, axes=(axis,), begin=(i * hidden,), end=((i + 1) * hidden,))


def _linear(node: OnnxNode, x: Datum, w: Datum, bias: Datum | None) -> Datum:
    made = node.b.matmul(x, w)
    return made if bias is None else node.b.add(made, bias)


def _rnn_cell(
    node: OnnxNode, x: Datum, state: tuple[Datum, ...], w: _Weights, f: list[Callable[[Datum], Datum]], hidden: int
) -> tuple[Datum, ...]:
    made = node.b.add(_linear(node, x, w.w, w.bias_w), _linear(node, state[0], w.r, w.bias_r))
    return (f[0](made),)


def _gru_cell(
    node: OnnxNode, x: Datum, state: tuple[Datum, ...], w: _Weights, f: list[Callable[[Datum], Datum]], hidden: int
) -> tuple[Datum, ...]:
    b, h = node.b, state[0]
    of_x, of_h = _linear(node, x, w.w, w.bias_w), _linear(node, h, w.r, w.bias_r)
    update = f[0](b.add(_gate(node, of_x, 0, hidden), _gate(node, of_h, 0, hidden)))
    reset = f[0](b.add(_gate(node, of_x, 1, hidden), _gate(node, of_h, 1, hidden)))
    if node.attr("linear_before_reset", 0):
        inner = b.multiply(reset, _gate(node, of_h, 2, hidden))
    else:
        bias = None if w.bias_r is None else _gate(node, w.bias_r, 2, hidden)
        inner = _linear(node, b.multiply(reset, h), _gate(node, w.r, 2, hidden), bias)
    new = f[1](b.add(_gate(node, of_x, 2, hidden), inner))
    return (b.add(b.multiply(b.subtract(node.like(1, new), update), new), b.multiply(update, h)),)


def _lstm_cell(
    node: OnnxNode, x: Datum, state: tuple[Datum, ...], w: _Weights, f: list[Callable[[Datum], Datum]], hidden: int
) -> tuple[Datum, ...]:
    b, (h, c) = node.b, state
    gates = b.add(_linear(node, x, w.w, w.bias_w), _linear(node, h, w.r, w.bias_r))
    i, o, forget, new = (_gate(node, gates, g, hidden) for g in range(4))
    if w.peepholes:
        i = b.add(i, b.multiply(w.peepholes[0], c))
        forget = b.add(forget, b.multiply(w.peepholes[2], c))
    i = f[0](i)
    keep = b.subtract(node.like(1, i), i) if node.attr("input_forget", 0) else f[0](forget)
    made = b.add(b.multiply(keep, c), b.multiply(i, f[1](new)))
    if w.peepholes:
        o = b.add(o, b.multiply(w.peepholes[1], made))
    return b.multiply(f[0](o), f[2](made)), made


def _recurrent(cell: _Cell, gates: int, default: list[str], states: int) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        x, b, hidden = node.input(0), node.b, node.attr("hidden_size")
        batch_first = node.attr("layout", 0)
        if batch_first:
            x = b.permute_dims(x, axes=(1, 0, 2))
        steps = x.type.shape[0].const
        if steps is None or steps > _MOST_STEPS:
            raise UnsupportedNode(f"a sequence of {x.type.shape[0]} steps; the length must be constant and at most {_MOST_STEPS}")
        direction = node.attr("direction", "forward")
        count = 2 if direction == "bidirectional" else 1
        outputs, finals = [], []
        for d in range(count):
            back = direction == "reverse" or d == 1
            weights = _weights(node, d, gates, hidden)
            state = tuple([_initial(node, x, d, 5 + s, hidden) for s in range(states)])
            made, state = _run(node, cell, x, state, weights, _activations(node, default, d), hidden, steps, back)
            outputs.append(made)
            finals.append(state)
        whole = b.concat(*[b.expand_dims(o, axes=(1,)) for o in outputs], axis=1)
        last = [b.concat(*[b.expand_dims(s[i], axes=(0,)) for s in finals], axis=0) for i in range(states)]
        if batch_first:
            whole, last = b.permute_dims(whole, axes=(2, 0, 1, 3)), [b.permute_dims(v, axes=(1, 0, 2)) for v in last]
        return whole, *last

    return convert


def _weights(node: OnnxNode, d: int, gates: int, hidden: int) -> _Weights:
    b = node.b
    w, r = (b.permute_dims(_row(node, node.input(i), d), axes=(1, 0)) for i in (1, 2))
    bias_w: Datum | None = None
    bias_r: Datum | None = None
    if node.has(3):
        bias, n = _row(node, node.input(3), d), gates * hidden
        bias_w, bias_r = (b.strided_slice(bias, axes=(0,), begin=(i * n,), end=((i + 1) * n,)) for i in (0, 1))
    peepholes: tuple[Datum, ...] = ()
    if node.has(7):
        row = _row(node, node.input(7), d)
        peepholes = tuple([_gate(node, row, i, hidden) for i in range(3)])
    return _Weights(w, r, bias_w, bias_r, peepholes)


def _initial(node: OnnxNode, x: Datum, d: int, i: int, hidden: int) -> Datum:
    if node.has(i):
        return _row(node, node.input(i), d, 1 if node.attr("layout", 0) else 0)
    shape: tuple[Index, ...] = (shape_of(x)[1], hidden)
    return node.b.full(shape=shape, value=0.0, dtype=x.type.dtype)


def _run(
    node: OnnxNode,
    cell: _Cell,
    x: Datum,
    state: tuple[Datum, ...],
    weights: _Weights,
    f: list[Callable[[Datum], Datum]],
    hidden: int,
    steps: int,
    back: bool,
) -> tuple[Datum, tuple[Datum, ...]]:
    """All outputs and the last state of one direction; finished sequences keep their state and output 0."""
    b = node.b
    lengths = None
    if node.has(4):
        lengths = b.expand_dims(cast_to(b, node.input(4), "int64"), axes=(1,))
    outputs: dict[int, Datum] = {}
    for t in range(steps)[::-1] if back else range(steps):
        new = cell(node, _row(node, x, t), state, weights, f, hidden)
        out = new[0]
        if lengths is not None:
            running = b.less(node.like(t, lengths), lengths)
            new = tuple([b.where(running, n, old) for n, old in zip(new, state, strict=True)])
            out = b.where(running, out, node.like(0, out))
        state, outputs[t] = new, out
    return b.concat(*[b.expand_dims(outputs[t], axes=(0,)) for t in range(steps)], axis=0), state


CONVERTERS: Mapping[str, Converter] = {
    "GRU": _recurrent(_gru_cell, 3, ["Sigmoid", "Tanh"], 1),
    "LSTM": _recurrent(_lstm_cell, 4, ["Sigmoid", "Tanh", "Tanh"], 2),
    "RNN": _recurrent(_rnn_cell, 1, ["Tanh"], 1),
}
