"""Define the operators that baselines may support: parameters, input shapes and output shape.

    matmul(m, n, k)            A[m,k] B[k,n] -> [m,n]
    batch_matmul(b, m, n, k)   A[b,m,k] B[b,k,n] -> [b,m,n]
    dense(m, n, k)             X[m,k] W[k,n] (bias[n]) -> [m,n]; bias = 0 | 1, activation = none | relu | gelu (exact, with erf)
    conv2d(n, h, w, ci, co, kh, kw)   NHWC: X[n,h,w,ci] W[kh,kw,ci/groups,co]; NCHW: X[n,ci,h,w] W[co,ci/groups,kh,kw]; (bias[co])
                               -> as X; stride, pad (all four sides), dilation, groups, layout = NHWC | NCHW, bias = 0 | 1, relu = 0 | 1
    softmax(m, n)              X[m,n] -> [m,n], along n
    sum(m, n)                  X[m,n] -> [n] for axis = 0, [m] for 1, [] for all
    layer_norm(m, n)           X[m,n] gamma[n] beta[n] -> [m,n], along n; eps is a text, "1e-5"
    relu(...)                  X -> as X; the parameters are the extents in order, under any names
    add(...)                   A B -> as A; the same

W, bias, gamma and beta are constants, which a baseline may prepare untimed.  A, B and X are not constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tunesmith.support.errors import RunError

Param = int | str
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator with validated parameters, including defaults, and validated inputs.

    Attributes:
        name: the operator.
        params: all its parameters.
        inputs: C-contiguous arrays of one dtype, in the order of the table above.
        output: shape of the result.
        dtype: numpy name of the common dtype of inputs and output.
    """

    name: str
    params: Mapping[str, Param]
    inputs: Mapping[str, np.ndarray]
    output: Shape
    dtype: str

    def number(self, name: str) -> int:
        """An integer parameter."""
        return int(self.params[name])

    def text(self, name: str) -> str:
        """A string parameter."""
        return str(self.params[name])

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


@dataclass(frozen=True, slots=True)
class _Operator:
    extents: tuple[str, ...]
    inputs: Callable[[OperatorCall], dict[str, Shape]]
    output: Callable[[OperatorCall], Shape]
    defaults: Mapping[str, Param] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def operator_call(op: str, params: Mapping[str, Param], inputs: Mapping[str, np.ndarray]) -> OperatorCall | None:
    """Validate a request; None if there is no such operator.

    Args:
        op: name of the operator.
        params: its parameters; a `dtype` among them is ignored in favour of the inputs' dtype.
        inputs: arrays by name; additional arrays are ignored.

    Raises:
        RunError: a parameter is missing, unknown or out of range, or an input is missing or has the wrong shape or dtype.
    """
    if op in _ELEMENTWISE:
        operator = _elementwise(op, params)
    elif op in _OPERATORS:
        operator = _OPERATORS[op]
    else:
        return None
    params = {key: value for key, value in params.items() if key != "dtype"}
    draft = OperatorCall(op, _checked_params(op, operator, params), {}, (), "")
    shapes, arrays = operator.inputs(draft), {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise RunError(f"{draft}: input {name} is missing; it needs {', '.join(shapes)}")
        if inputs[name].shape != shape:
            raise RunError(f"{draft}: input {name} has shape {inputs[name].shape}, expected {shape}")
        arrays[name] = np.ascontiguousarray(inputs[name])
    dtypes = sorted({str(array.dtype) for array in arrays.values()})
    if len(dtypes) != 1:
        raise RunError(f"{draft}: the inputs have dtypes {', '.join(dtypes)}, expected a common dtype")
    return OperatorCall(op, draft.params, arrays, operator.output(draft), dtypes[0])


def _checked_params(op: str, operator: _Operator, params: Mapping[str, Param]) -> dict[str, Param]:
    missing = [name for name in operator.extents if name not in params]
    unknown = sorted(params.keys() - {*operator.extents, *operator.defaults})
    if missing or unknown:
        known = ", ".join([*operator.extents, *(f"{name}={value}" for name, value in operator.defaults.items())])
        wrong = [f"parameter {name} is missing" for name in missing] + [f"parameter {name} is unknown" for name in unknown]
        raise RunError(f"{op}: {'; '.join(wrong)}. It takes {op}({known})")
    checked: dict[str, Param] = {}
    for name in (*operator.extents, *operator.defaults):
        value = params.get(name, operator.defaults.get(name, 0))
        if isinstance(value, (bool, np.integer)):
            value = int(value)
        if name in operator.choices:
            if str(value) not in operator.choices[name]:
                raise RunError(f"{op}: parameter {name}: expected {' or '.join(operator.choices[name])}, got {value!r}")
            checked[name] = str(value)
        elif name == "eps":
            checked[name] = _eps(op, value)
        else:
            least = 0 if name == "pad" else 1
            if not isinstance(value, int) or value < least:
                raise RunError(f"{op}: parameter {name}: expected an integer of at least {least}, got {value!r}")
            checked[name] = int(value)
    return checked


def _eps(op: str, value: Param) -> str:
    try:
        good = float(value) >= 0
    except ValueError:
        good = False
    if not good:
        raise RunError(f"{op}: parameter eps: expected the text of a number of at least 0, got {value!r}")
    return str(value)


def _elementwise(op: str, params: Mapping[str, Param]) -> _Operator:
    extents = tuple(name for name in params if name != "dtype")  # in the given order

    def shape(call: OperatorCall) -> Shape:
        return tuple(call.number(name) for name in extents)

    return _Operator(extents, lambda call: {name: shape(call) for name in _ELEMENTWISE[op]}, shape)


def _of(call: OperatorCall, *names: str) -> Shape:
    return tuple(call.number(name) for name in names)


def _dense_inputs(call: OperatorCall) -> dict[str, Shape]:
    shapes = {"X": _of(call, "m", "k"), "W": _of(call, "k", "n")}
    return {**shapes, "bias": _of(call, "n")} if call.number("bias") else shapes


def _conv2d_inputs(call: OperatorCall) -> dict[str, Shape]:
    n, h, w, ci, co, kh, kw, groups = _of(call, "n", "h", "w", "ci", "co", "kh", "kw", "groups")
    if ci % groups or co % groups:
        raise RunError(f"{call}: groups must divide ci and co")
    if call.text("layout") == "NHWC":
        shapes: dict[str, Shape] = {"X": (n, h, w, ci), "W": (kh, kw, ci // groups, co)}
    else:
        shapes = {"X": (n, ci, h, w), "W": (co, ci // groups, kh, kw)}
    return {**shapes, "bias": (co,)} if call.number("bias") else shapes


def _conv2d_output(call: OperatorCall) -> Shape:
    n, co, stride, pad, dilation = _of(call, "n", "co", "stride", "pad", "dilation")
    h, w = (
        (call.number(size) + 2 * pad - dilation * (call.number(kernel) - 1) - 1) // stride + 1
        for size, kernel in (("h", "kh"), ("w", "kw"))
    )
    if h < 1 or w < 1:
        raise RunError(f"{call}: the kernel does not fit into the padded input")
    return (n, h, w, co) if call.text("layout") == "NHWC" else (n, co, h, w)


_ELEMENTWISE = {"relu": ("X",), "add": ("A", "B")}
_FLAG = ("0", "1")
_OPERATORS: dict[str, _Operator] = {
    "matmul": _Operator(("m", "n", "k"), lambda c: {"A": _of(c, "m", "k"), "B": _of(c, "k", "n")}, lambda c: _of(c, "m", "n")),
    "batch_matmul": _Operator(
        ("b", "m", "n", "k"), lambda c: {"A": _of(c, "b", "m", "k"), "B": _of(c, "b", "k", "n")}, lambda c: _of(c, "b", "m", "n")
    ),
    "dense": _Operator(
        ("m", "n", "k"),
        _dense_inputs,
        lambda c: _of(c, "m", "n"),
        {"bias": 1, "activation": "none"},
        {"bias": _FLAG, "activation": ("none", "relu", "gelu")},
    ),
    "conv2d": _Operator(
        ("n", "h", "w", "ci", "co", "kh", "kw"),
        _conv2d_inputs,
        _conv2d_output,
        {"stride": 1, "pad": 0, "dilation": 1, "groups": 1, "layout": "NHWC", "bias": 0, "relu": 0},
        {"layout": ("NHWC", "NCHW"), "bias": _FLAG, "relu": _FLAG},
    ),
    "softmax": _Operator(("m", "n"), lambda c: {"X": _of(c, "m", "n")}, lambda c: _of(c, "m", "n")),
    "sum": _Operator(
        ("m", "n"),
        lambda c: {"X": _of(c, "m", "n")},
        lambda c: {"0": _of(c, "n"), "1": _of(c, "m"), "all": ()}[c.text("axis")],
        {"axis": 1},
        {"axis": ("0", "1", "all")},
    ),
    "layer_norm": _Operator(
        ("m", "n"),
        lambda c: {"X": _of(c, "m", "n"), "gamma": _of(c, "n"), "beta": _of(c, "n")},
        lambda c: _of(c, "m", "n"),
        {"eps": "1e-5"},
    ),
}

OPERATORS = (*_OPERATORS, *_ELEMENTWISE)
"""The names of all operators."""
