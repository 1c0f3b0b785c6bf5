"""Rewrite operators that libraries lack as operators that they have, with inputs rearranged untimed.

A convolution of capsules is a convolution of images: each row of the input capsules is an image, and the columns of the capsules are
channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.ops.workload import workload

Back = Callable[[np.ndarray], np.ndarray]
"""Rearranges a result of the equivalent operator as the original operator's."""


def equivalent_call(call: OperatorCall) -> tuple[OperatorCall, Back] | None:
    """An operator that libraries have, and the conversion of its result; None if the operator is not rewritten."""
    return _capsules(call) if call.name == "capsule_conv2d" else None


def _capsules(call: OperatorCall) -> tuple[OperatorCall, Back] | None:
    x, w = call.inputs["X"], call.inputs["W"]
    n, height, width, rows, inner, ci = x.shape
    kh, kw, _, columns, _, co = w.shape
    images = x.transpose(0, 3, 1, 2, 4, 5).reshape(n * rows, height, width, inner * ci)
    filters = w.transpose(0, 1, 2, 4, 3, 5).reshape(kh, kw, inner * ci, columns * co)
    sizes = f"n={n * rows},h={height},w={width},ci={inner * ci},co={columns * co},kh={kh},kw={kw}"
    same = ",".join([f"{name}={call.workload.params[name]}" for name in ("stride", "pad", "dtype")])
    made = operator_call(workload(f"conv2d({sizes},{same})"), [images, filters])

    def back(y: np.ndarray) -> np.ndarray:
        return y.reshape(n, rows, *y.shape[1:3], columns, co).transpose(0, 2, 3, 1, 4, 5)

    return None if made is None else (made, back)
