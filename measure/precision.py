"""Name compute precisions: the number format in which a system multiplies, which may be narrower than the dtype of its arrays.

Libraries choose the format of a call: tf32 on the tensor cores of GPUs, bfloat16 on processors with such units.  Products are
accumulated in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.support import dtype as dtypes

EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "bf16x3": 2.0**-15, "tf32": 2.0**-10, "f32": 2.0**-23, "f64": 2.0**-52}
"""Precision of floats -> distance from 1 to the next number."""


def precision_of(dtype: str) -> str:
    """The precision of computing in a dtype: `f32` for float32, `bf16` for bfloat16; the names of integers and booleans are kept.

    Raises:
        ScriptError: there is no such dtype.
    """
    return dtypes.element(dtype).replace("bfloat", "bf").replace("float", "f")


def default_precision(inputs: Sequence[str]) -> str:
    """The precision of an operator on inputs of these dtypes: that of the first float, else of the first input; empty without inputs.

    Raises:
        ScriptError: there is no such dtype.
    """
    floats = [dtype for dtype in inputs if dtypes.is_float(dtype)]
    return next((precision_of(dtype) for dtype in [*floats, *inputs]), "")
