"""What every graph operator must do: the types it infers, its program and its compiled program agree with its numpy reference.

    def test_relu():
        check_operator("relu", [np.float32([[-1, 0, np.nan]])])

The program is made by `te.create_prim_func` over the operator's tensors, so what is checked is what a call of the operator becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.driver.compile import build
from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ops import tensor_expression as te
from tunesmith.support import dtype as dt

_SHOWN = 5
"""Places that are listed where results differ."""


def check_operator(
    name: str, arrays: Sequence[np.ndarray], compiled: bool = True, rtol: float = 1e-5, atol: float = 1e-6, **attrs: Any
) -> None:
    """Check one call of an operator.

    Checked are the inferred types against those of the reference, and the values that the interpreter and, where `compiled`, the
    machine code of the program without a schedule compute against those of the reference: exactly for integers and truths, within
    `atol + rtol * |reference|` for floats; NaN and infinities must be in the same places.

    Args:
        name: of the operator.
        arrays: operands; only their types and values matter, they are copied.
        compiled: whether the program is also compiled for this machine and called.
        rtol: relative tolerance, at least four units in the last place of the type.
        atol: absolute tolerance.
        attrs: attributes, without variables.
    Raises:
        AssertionError: something differs; the message names the operator, the result, the place and the values.
        ScriptError: the operands or the attributes do not fit the operator.
    """
    operator = GRAPH_OPERATORS.get(name)
    bound = operator.bind(attrs)
    operands = [np.array(a, order="C") for a in arrays]
    for a in operands:
        a.flags.writeable = False  # as constants are; a reference that wrote to its operands would spoil a graph
    wanted = operator.evaluate(operands, bound)
    types = [TensorType.of(a.shape, dt.from_numpy(a.dtype)) for a in operands]
    inferred = operator.infer(types, bound)
    computed = tuple([TensorType.of(w.shape, dt.from_numpy(w.dtype)) for w in wanted])
    call = f"{name}({', '.join([*map(str, types), *[f'{key}={value}' for key, value in bound]])})"
    assert inferred == computed, f"{call}: the inferred types are {inferred}, the reference has {computed}"
    inputs = [te.placeholder(t.shape, t.dtype, f"arg{i}") for i, t in enumerate(types)]
    func = te.create_prim_func([*inputs, *operator.apply(inputs, bound)], f"call_{name}")
    count = len(wanted)
    _compare(f"{call}, interpreted", run(func, operands)[-count:], wanted, rtol, atol)
    if compiled:
        _compare(f"{call}, compiled", _called(func, operands, wanted), wanted, rtol, atol)


def _called(func: PrimFunc, operands: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of the compiled function, in memory that holds what no test should expect, so that what is left unwritten shows.

    The operands are copied because DLPack passes no read-only arrays.
    """
    results = [np.full(w.shape, True if w.dtype == np.bool_ else np.nan if w.dtype.kind == "f" else 77, w.dtype) for w in wanted]
    build(func)[func.name](*[a.copy(order="K") for a in operands], *results)
    return results


def _compare(what: str, results: Sequence[np.ndarray], wanted: Sequence[np.ndarray], rtol: float, atol: float) -> None:
    for k, (result, want) in enumerate(zip(results, wanted, strict=True)):
        place = f"{what}, result {k}"
        assert (result.shape, result.dtype) == (want.shape, want.dtype), (
            f"{place}: {result.dtype}{result.shape} instead of {want.dtype}{want.shape}"
        )
        if want.dtype.kind == "f":
            rtol_here = max(rtol, 4 * float(np.finfo(want.dtype).eps))
            good = np.isclose(result.astype(np.float64), want.astype(np.float64), rtol_here, atol, equal_nan=True)
        else:
            good = result == want
        wrong = np.argwhere(~np.atleast_1d(good))
        if len(wrong):
            shown = [f"at {tuple(i.tolist()) if want.ndim else ()} {_at(result, i)!r} instead of {_at(want, i)!r}" for i in wrong[:_SHOWN]]
            raise AssertionError(f"{place}: {len(wrong)} of {want.size} elements differ: {'; '.join(shown)}")


def _at(array: np.ndarray, index: np.ndarray) -> Any:
    return np.atleast_1d(array)[tuple(index)].item()
