"""Compute numbers that torch programs take from tensors (`Tensor.item()`), and expressions of them, as scalar tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

from tunesmith.graph.ir.node import Operand

if TYPE_CHECKING:
    from tunesmith.graph.importers.torch.call import TorchCall

_COMPARISONS = {
    "Equality": "equal",
    "Unequality": "not_equal",
    "StrictLessThan": "less",
    "LessThan": "less_equal",
    "StrictGreaterThan": "greater",
    "GreaterThan": "greater_equal",
}
_LOGIC = {"And": "logical_and", "Or": "logical_or"}
_INTEGERS = {
    "Add": "add",
    "Mul": "multiply",
    "Max": "maximum",
    "Min": "minimum",
    "FloorDiv": "floor_divide",
    "CleanDiv": "floor_divide",
    "Mod": "mod",
    "PythonMod": "mod",
    "Pow": "power",
    "PowByNatural": "power",
}
_FLOATS = {
    "Add": "add",
    "Mul": "multiply",
    "Max": "maximum",
    "Min": "minimum",
    "Pow": "power",
    "FloatPow": "power",
    "FloatTrueDiv": "divide",
    "IntTrueDiv": "divide",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_sin": "sin",
    "OpaqueUnaryFn_cos": "cos",
    "OpaqueUnaryFn_tanh": "tanh",
}
_ROUNDED = {"TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round"}


def depends_on_data(call: TorchCall, expr: Any) -> bool:
    """Whether a sympy expression has symbols for numbers from data that are no sizes."""
    return any(str(s) in call.sizes.tensors and str(s) not in call.sizes.data for s in expr.free_symbols)


def scalar(call: TorchCall, expr: Any) -> Operand:
    """The value of a sympy expression: int64[], float64[] or bool[]."""
    kind = type(expr).__name__
    if kind in ("BooleanTrue", "BooleanFalse"):
        return call.number(kind == "BooleanTrue", "bool")
    if expr.is_Symbol:
        held = call.sizes.tensors.get(str(expr))
        return call.operand(call.sizes.of_sympy(expr), "int64") if held is None else held
    if expr.is_number and expr.is_Integer:
        return call.number(int(expr), "int64")
    if expr.is_number:
        return call.number(float(expr), "float64")
    if kind in _COMPARISONS:
        return call.emit(_COMPARISONS[kind], *_alike(call, [scalar(call, a) for a in expr.args]))
    if kind in _LOGIC:
        return reduce(lambda a, b: call.emit(_LOGIC[kind], a, b), [scalar(call, a) for a in expr.args])
    if kind == "Not":
        return call.emit("logical_not", scalar(call, expr.args[0]))
    if kind == "Piecewise":
        return _piecewise(call, expr)
    if kind == "ToFloat":
        return call.cast(scalar(call, expr.args[0]), "float64")
    if kind in _ROUNDED:
        return call.cast(call.emit(_ROUNDED[kind], call.cast(scalar(call, expr.args[0]), "float64")), "int64")
    return _arithmetic(call, kind, expr)


def _arithmetic(call: TorchCall, kind: str, expr: Any) -> Operand:
    parts = _alike(call, [scalar(call, a) for a in expr.args])
    if kind == "IntTrueDiv":
        parts = [call.cast(p, "float64") for p in parts]
    names = _INTEGERS if parts[0].type.dtype == "int64" else _FLOATS
    if kind not in names:
        call.refuse(f"the number {expr} contains the unsupported function {kind}; compute it as a tensor in the model")
    one = len(parts) == 1
    apply: Callable[..., Operand] = lambda *xs: call.emit(names[kind], *xs)  # noqa: E731
    return apply(parts[0]) if one else reduce(apply, parts)


def _piecewise(call: TorchCall, expr: Any) -> Operand:
    """The first of several values whose condition holds; the last condition is true."""
    *cases, last = expr.args
    made = scalar(call, last.args[0])
    for value, condition in reversed([case.args for case in cases]):
        chosen, made = _alike(call, [scalar(call, value), made])
        made = call.emit("where", scalar(call, condition), chosen, made)
    return made


def _alike(call: TorchCall, parts: list[Operand]) -> list[Operand]:
    """Numbers of one type: float64 if one of them is a float."""
    types = {p.type.dtype for p in parts}
    if len(types) == 1:
        return parts
    return [call.cast(p, "float64" if "float64" in types else "int64") for p in parts]
