"""Check a graph operator: inferred types, its interpreted program and its compiled program must agree with its numpy reference.

    def test_relu():
        check_operator("relu", [np.float32([[-1, 0, np.nan]])])

The program is created by `te.create_prim_func` from the operator's tensors, as for a call of the operator in a graph.
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
from tunesmith.testing.array_agreement import check_arrays


def check_operator(
    name: str, arrays: Sequence[np.ndarray], compiled: bool = True, rtol: float = 1e-5, atol: float = 1e-6, **attrs: Any
) -> None:
    """Check one call of an operator.

    Compares the inferred types, the interpreter's results and, if `compiled`, the results of the unscheduled compiled program with the
    reference: exactly for integers and bools, within `atol + rtol * |reference|` for floats; NaN and infinities must be at the same
    positions.

    Args:
        name: operator name.
        arrays: operands; types and values are used, the arrays are copied.
        compiled: whether to also compile and call the program on this machine.
        rtol: relative tolerance, raised to at least four units in the last place of the type.
        atol: absolute tolerance.
        attrs: attributes, without variables.
    Raises:
        AssertionError: a difference; the message has the operator, result, position and values.
        ScriptError: operands or attributes are invalid for the operator.
    """
    operator = GRAPH_OPERATORS.get(name)
    bound = operator.bind(attrs)
    operands = [np.array(a, order="C") for a in arrays]
    for a in operands:
        a.flags.writeable = False  # like graph constants: a reference must not write to its operands
    expected = operator.evaluate(operands, bound)
    types = [TensorType.of(a.shape, dt.from_numpy(a.dtype)) for a in operands]
    inferred = operator.infer(types, bound)
    computed = tuple([TensorType.of(w.shape, dt.from_numpy(w.dtype)) for w in expected])
    call = f"{name}({', '.join([*map(str, types), *[f'{key}={value}' for key, value in bound]])})"
    assert inferred == computed, f"{call}: the inferred types are {inferred}, the reference types are {computed}"
    inputs = [te.placeholder(t.shape, t.dtype, f"arg{i}") for i, t in enumerate(types)]
    func = te.create_prim_func([*inputs, *operator.apply(inputs, bound)], f"call_{name}")
    count = len(expected)
    check_arrays(run(func, operands)[-count:], expected, f"{call}, interpreted", rtol, atol)
    if compiled:
        check_arrays(_called(func, operands, expected), expected, f"{call}, compiled", rtol, atol)


def _called(func: PrimFunc, operands: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of the compiled function; outputs are pre-filled with unlikely values, so that unwritten elements are detected.

    Operands are copied because DLPack does not export read-only arrays.
    """
    results = [np.full(w.shape, True if w.dtype == np.bool_ else np.nan if w.dtype.kind == "f" else 77, w.dtype) for w in expected]
    build(func)[func.name](*[a.copy(order="K") for a in operands], *results)
    return results
