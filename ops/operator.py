"""Define operators (program, numpy reference and operation count for given parameters) and register them by name.

An operator is registered by a line in `_LIBRARY`, by `OPERATORS.register(name, operator)`, or by an entry point of another distribution
in the group `tunesmith.operator`.  A module of the library is imported at the first use of one of its operators.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.function import PrimFunc
from tunesmith.ops.parameter import Parameter, Value
from tunesmith.ops.tensor_expression import Tensor, create_prim_func
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry, instance_of

Params = Mapping[str, Value]
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the library.

    Attributes:
        name: name in the text of workloads, and of the function built.
        parameters: parameters in the order of the text form.
        arguments: takes all parameters as keywords; returns the tensors of the function, inputs and then outputs.
        in_numpy: takes the input arrays, and all parameters as keywords; returns the output arrays.  It accumulates in float64
            and rounds once, so the reference is more accurate than the program.
        operations: takes all parameters as keywords; see `flops`.
        constants: inputs that are weights, which may be packed at compile time.  They need not exist for all parameters.
        positive: inputs whose values must be positive for a meaningful result, such as a divisor.
        indices: inputs of indices, each with the parameter that is their exclusive upper bound.
        settle: normalises parameters that depend on each other; raises UserError if they are inconsistent.
    """

    name: str
    parameters: tuple[Parameter, ...]
    arguments: Callable[..., list[Tensor]]
    in_numpy: Callable[..., list[np.ndarray]]
    operations: Callable[..., int]
    constants: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    indices: tuple[tuple[str, str], ...] = ()
    settle: Callable[[dict[str, Value]], dict[str, Value]] = dict

    def bind(self, given: Mapping[str, object]) -> dict[str, Value]:
        """All parameters in order, with checked values and defaults.

        Args:
            given: texts, or values of the parameter's type, by name.
        Raises:
            UserError: a parameter is unknown (the message names the nearest), missing or invalid, or parameters are inconsistent.
        """
        known = {p.name: p for p in self.parameters}
        wrong = [f"parameter {key} is unknown{self._nearest(key)}" for key in given if key not in known]
        wrong += [f"parameter {p.name} is missing" for p in self.parameters if p.name not in given and p.default is None]
        if wrong:
            raise UserError(f"{self.name}: {'; '.join(wrong)}. Usage: {self.usage()}")
        try:
            return self.settle({name: p.checked(given.get(name, p.default)) for name, p in known.items()})
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    def usage(self) -> str:
        """`NAME(key, key=default, ...)`."""
        return f"{self.name}({', '.join([p.name if p.default is None else f'{p.name}={p.text(p.default)}' for p in self.parameters])})"

    def spelled(self, params: Params) -> str:
        """The canonical text of a workload: parameters in order, without those with their default value."""
        parts = [f"{p.name}={p.text(params[p.name])}" for p in self.parameters if params[p.name] != p.default]
        return f"{self.name}({','.join(parts)})"

    def tensors(self, **params: object) -> list[Tensor]:
        """The tensors of the function, inputs and then outputs; computed tensors contain their formulas."""
        return self.arguments(**self.bind(params))

    def build(self, **params: object) -> PrimFunc:
        """The unscheduled program, with a block for each stage.

        Raises:
            UserError: parameters are invalid; see `bind`.
        """
        return self.function(self.tensors(**params))

    def function(self, tensors: Sequence[Tensor]) -> PrimFunc:
        """The program of the tensors, with its weights declared constant."""
        func = create_prim_func(tensors, self.name)
        declared = [p.name for p in func.params if p.name in self.constants]
        return func.with_(attrs=(("constants", " ".join(declared)),)) if declared else func

    def reference(self, params: Mapping[str, object], inputs: Arrays) -> list[np.ndarray]:
        """The outputs that numpy computes from `inputs`, in the types of the program."""
        return self.in_numpy(*inputs, **self.bind(params))

    def flops(self, **params: object) -> int:
        """Operation count by the convention of benchmark tables.

        A contraction counts two operations for each multiply-add, including taps in the padding, without epilogues.  Other operators
        count one for each element and arithmetic step.
        """
        return self.operations(**self.bind(params))

    def _nearest(self, key: str) -> str:
        near = difflib.get_close_matches(key, [p.name for p in self.parameters], n=1, cutoff=0.5)
        return f" (did you mean {near[0]}?)" if near else ""


_LIBRARY: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "batch_matmul"),
    "dense": ("dense",),
    "convolution": ("conv1d", "conv2d", "conv3d"),
    "transposed_convolution": ("conv1d_transpose", "conv2d_transpose", "conv3d_transpose"),
    "capsule_convolution": ("capsule_conv2d",),
    "attention": ("attention",),
    "lstm_cell": ("lstm_cell",),
    "gather": ("gather", "embedding"),
    "resize": ("resize2d",),
    "unary": ("abs", "erf", "exp", "gelu", "log", "neg", "relu", "rsqrt", "sigmoid", "sqrt", "tanh"),
    "binary": ("add", "sub", "mul", "div", "maximum", "minimum"),
    "reduction": ("sum", "prod", "mean", "max", "min"),
    "arg_extreme": ("argmax", "argmin"),
    "cumulative": ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    "ordering": ("argsort", "topk"),
    "moments": ("variance",),
    "pooling": ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    "matrix_norm": ("matrix_norm",),
    "softmax": ("softmax", "log_softmax"),
    "layer_norm": ("layer_norm", "rms_norm"),
    "group_norm": ("group_norm", "instance_norm"),
}
"""Operators by module; each is a constant with the name of the operator in capitals."""

OPERATORS: Registry[Operator] = Registry(
    "operator",
    {name: f"tunesmith.ops.{module}:{name.upper()}" for module, names in _LIBRARY.items() for name in names},
    contract=instance_of(Operator),
)
"""All operators by name."""
