"""Define softmax in four stages that avoid overflow (maximum, exponentials, their sum, quotients), and its logarithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.ir.expr import call
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxisParameter, IntParameter, Value
from tunesmith.ops.reduction import reduce, settle_axis
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def without(index: Sequence[Poly], axis: int) -> tuple[Poly, ...]:
    """An index without the position along `axis`."""
    return (*index[:axis], *index[axis + 1 :])


def exponentials(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The stages M (max), E = exp(x - M) and S (sum of E) along an axis, a position from 0."""
    top = reduce("max", x, (axis,), "M")
    powers = te.compute(x.shape, lambda *i: call("exp", x[i] - top[without(i, axis)]), "E")
    return top, powers, reduce("sum", powers, (axis,), "S")


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Softmax along an axis, in the stages M (max), E = exp(x - M), S (sum of E) and Y = E / S."""
    a = _position(x, axis, "softmax")
    _top, powers, total = exponentials(x, a)
    return te.compute(x.shape, lambda *i: powers[i] / total[without(i, a)], "Y")


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of softmax along an axis without overflow: the stages M, E and S of softmax, L = log(S) and Y = x - M - L."""
    a = _position(x, axis, "log_softmax")
    top, _powers, total = exponentials(x, a)
    log = te.compute(total.shape, lambda *i: call("log", total[i]), "L", axes=[v.name for v in total.axes])
    return te.compute(x.shape, lambda *i: x[i] - top[without(i, a)] - log[without(i, a)], "Y")


def _position(x: Tensor, axis: int, name: str) -> int:
    if not x.shape:
        raise ScriptError(f"{name}: {x!r} has no axis")
    return axis % len(x.shape)


def softmax_reference(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax along an axis in numpy, computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis, keepdims=True))
    return np.asarray((powers / powers.sum(axis, keepdims=True)).astype(x.dtype))


def log_softmax_reference(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """The logarithm of softmax along an axis in numpy, computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    low = wide - wide.max(axis, keepdims=True)
    return np.asarray((low - np.log(np.exp(low).sum(axis, keepdims=True))).astype(x.dtype))


def _settle(p: dict[str, Value]) -> dict[str, Value]:
    return settle_axis(p, [int(p["m"]), int(p["n"])])  # type: ignore[arg-type]


def _operator(name: str, function: Callable[..., Tensor], in_numpy: Callable[..., np.ndarray]) -> Operator:
    def tensors(*, m: int, n: int, axis: int, dtype: str) -> list[Tensor]:
        x = te.placeholder((m, n), dtype, "X")
        return [x, function(x, axis)]

    def reference(x: np.ndarray, /, *, axis: int, **_: object) -> list[np.ndarray]:
        return [in_numpy(x, axis)]

    def flops(*, m: int, n: int, **_: object) -> int:
        """Operations per element: max, difference, exp, sum, and quotient or difference."""
        return 5 * m * n

    parameters = (IntParameter("m"), IntParameter("n"), AxisParameter("axis", -1), FLOATS)
    return Operator(name, parameters, tensors, reference, flops, settle=_settle)


SOFTMAX = _operator("softmax", softmax, softmax_reference)
LOG_SOFTMAX = _operator("log_softmax", log_softmax, log_softmax_reference)
