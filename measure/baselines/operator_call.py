"""Hand a workload with its input arrays to a baseline.

Parameters, input shapes, constants and the numpy reference are those of the operator in `ops/`, so an operator registered there needs no
entry here: a baseline supports it if its `variants` returns calls for that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tunesmith.ops.contraction_types import ContractionTypes, types_of
from tunesmith.ops.workload import Workload
from tunesmith.support.errors import UserError

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A workload with one output, and its inputs; made by `operator_call`.

    Attributes:
        workload: operator, parameters, and specs of inputs and output.
        inputs: C-contiguous arrays by name, in the order of the workload.
    """

    workload: Workload
    inputs: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        """The operator."""
        return self.workload.name

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.workload.outputs[0].shape

    @property
    def dtype(self) -> str:
        """The element type of the result."""
        return self.workload.outputs[0].dtype

    @property
    def types(self) -> ContractionTypes | None:
        """The types of a contraction whose sums have another type than an operand; None for other operators."""
        params = self.workload.params
        if "rhs_dtype" not in params:
            return None
        types = types_of(*(str(params[name]) for name in ("dtype", "rhs_dtype", "out_dtype")))
        return types if types.sums != types.lhs else None

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The inputs that are weights, which a baseline may prepare untimed."""
        return {name: self.inputs[name] for name in self.workload.func.constants}

    @property
    def activation(self) -> str:
        """The activation of a contraction; `none` for operators without one."""
        params = self.workload.params
        return str(params.get("activation", "relu" if params.get("relu") else "none"))

    @property
    def is_common(self) -> bool:
        """Whether libraries have functions for this form: no transposed operand, no residual, no activation but relu and gelu."""
        rare = any(self.workload.params.get(name) for name in ("ta", "tb", "residual"))
        return not rare and self.activation in ("none", "relu", "gelu")

    def number(self, name: str) -> int:
        """An integer parameter."""
        return self._parameter(name, int)

    def real(self, name: str) -> float:
        """A parameter that is a real number."""
        return self._parameter(name, float)

    def text(self, name: str) -> str:
        """A parameter that is a word."""
        return self._parameter(name, str)

    def axes(self, name: str) -> tuple[int, ...]:
        """A parameter that is a list of axes; () means all axes."""
        return self._parameter(name, tuple)

    @property
    def window(self) -> tuple[int, ...]:
        """The extents of the window of a convolution or pooling."""
        return tuple([self.number(name) for name in ("kd", "kh", "kw") if name in self.workload.params])

    def _parameter(self, name: str, kind: type[V]) -> V:
        value = self.workload.params[name]
        assert isinstance(value, kind)
        return value

    def __str__(self) -> str:
        return self.workload.text


def operator_call(workload: Workload, inputs: Sequence[np.ndarray]) -> OperatorCall | None:
    """The call of a workload; None if it has several outputs, which baselines do not return.

    Filters of depthwise convolutions get the axis of extent 1 that libraries expect.

    Args:
        workload: the workload.
        inputs: its inputs, in order.
    Raises:
        UserError: an argument is not a workload, or not a sequence of arrays.
        RunError: number, shapes or types of the inputs are not those of the workload.
    """
    if not isinstance(workload, Workload):
        raise UserError(
            f"workload={workload!r:.200}: expected a Workload; the function `workload` of tunesmith.ops.workload makes one of a text"
        )
    if not isinstance(inputs, Sequence) or not all(isinstance(array, np.ndarray) for array in inputs):
        raise UserError(f"{workload.text}: inputs={inputs!r:.200}: expected a sequence of numpy arrays, one for each input")
    workload.check_inputs(inputs)
    if len(workload.outputs) != 1:
        return None
    arrays = {spec.name: np.asarray(array, order="C") for spec, array in zip(workload.inputs, inputs, strict=True)}
    if workload.name in ("conv1d", "conv2d", "conv3d") and arrays["W"].ndim < arrays["X"].ndim:
        arrays["W"] = np.expand_dims(arrays["W"], -2 if str(workload.params["layout"]).endswith("C") else 1)
    return OperatorCall(workload, arrays)
