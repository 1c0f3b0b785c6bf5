"""Define elementwise operators of two tensors; the second is broadcast to the first, as in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.ir import expr
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import ZERO, Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, ShapeParameter, Value
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError

BINARY: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "div": (lambda a, b: a / b, np.divide),
    "maximum": (expr.maximum, np.maximum),
    "minimum": (expr.minimum, np.minimum),
}
"""Each function for expressions and for arrays."""


def binary(function: str, a: Tensor, b: Tensor, name: str = "Y", axes: tuple[str, ...] | None = None) -> Tensor:
    """One stage: a function of `BINARY` applied to the elements of `a` and `b`; the result has the shape of `a`.

    `b` has at most as many dimensions as `a`; aligned at the last one, each extent equals that of `a` or is 1.

    Raises:
        ScriptError: the function is unknown or the shapes do not fit.
    """
    if function not in BINARY:
        raise ScriptError(f"binary {name}: unknown function {function!r}; known are {', '.join(sorted(BINARY))}")
    lead = len(a.shape) - len(b.shape)
    if lead < 0 or any(e not in (1, f) for e, f in zip(b.shape, a.shape[lead:], strict=True)):
        raise ScriptError(f"binary {name}: {b!r} cannot be broadcast to the shape of {a!r}")

    return te.compute(a.shape, lambda *index: BINARY[function][0](a[index], element_of(b, a.shape, index)), name, axes=axes)


def element_of(x: Tensor, shape: Sequence[Poly], index: Sequence[Poly]) -> Expr:
    """The element at `index` of `x` broadcast to `shape`."""
    lead = len(shape) - len(x.shape)
    return x[tuple([ZERO if e == 1 and f != 1 else i for e, f, i in zip(x.shape, shape[lead:], index[lead:], strict=True)])]


def _normalised(params: dict[str, Value]) -> dict[str, Value]:
    """The parameters, with `other` stored as () (spelled `same`) if it equals the shape."""
    shape, other = params["shape"], params["other"]
    assert isinstance(shape, tuple) and isinstance(other, tuple)
    if len(other) > len(shape) or any(e not in (1, f) for e, f in zip(other[::-1], shape[::-1], strict=False)):
        small, large = ["x".join(map(str, extents)) for extents in (other, shape)]
        raise UserError(f"parameter other: {small} cannot be broadcast to {large}: aligned at the last extent, each must be equal or 1")
    return {**params, "other": () if other == shape else other}


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], other: tuple[int, ...], dtype: str) -> list[Tensor]:
        a, b = te.placeholder(shape, dtype, "A"), te.placeholder(other or shape, dtype, "B")
        return [a, b, binary(function, a, b)]

    def reference(a: np.ndarray, b: np.ndarray, /, **_: object) -> list[np.ndarray]:
        return [BINARY[function][1](a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        return math.prod(shape)

    parameters = (ShapeParameter("shape"), ShapeParameter("other", (), "same"), FLOATS)
    positive = ("B",) if function == "div" else ()
    return Operator(function, parameters, tensors, reference, flops, positive=positive, settle=_normalised)


ADD, SUB, MUL = [_operator(f) for f in ("add", "sub", "mul")]
DIV, MAXIMUM, MINIMUM = [_operator(f) for f in ("div", "maximum", "minimum")]
