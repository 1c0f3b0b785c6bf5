"""Operators: a program for any parameters, its numpy reference, its count of operations; and the table of all of them.

An operator is registered by a line in `_LIBRARY`, by `OPERATORS.register(name, operator)`, or by another distribution's entry
point in the group `tunesmith.operator`.  Modules of the library are imported when one of their operators is first asked for.
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
from tunesmith.support.registry import Registry

Params = Mapping[str, Value]
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the library.

    Attributes:
        name: as workloads spell it, and the name of the function built.
        parameters: in the order of the text form.
        arguments: called with all parameters as keywords; the tensors of the function, inputs and then outputs.
        in_numpy: called with the input arrays and all parameters as keywords; the output arrays.  It accumulates in float64
            and rounds once, so that where program and reference differ, the reference is the better number.
        operations: called with all parameters as keywords; see `flops`.
        constants: inputs that are weights: they may be rearranged at compile time.  Some need not be there for all parameters.
        positive: inputs whose values must be positive for a meaningful result, such as a divisor.
        settle: brings parameters that depend on each other into their one form; UserError when they do not fit together.
    """

    name: str
    parameters: tuple[Parameter, ...]
    arguments: Callable[..., list[Tensor]]
    in_numpy: Callable[..., list[np.ndarray]]
    operations: Callable[..., int]
    constants: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    settle: Callable[[dict[str, Value]], dict[str, Value]] = dict

    def bind(self, given: Mapping[str, object]) -> dict[str, Value]:
        """All parameters with checked values, in order, defaults filled in.

        Args:
            given: texts, or values of the parameter's type.
        Raises:
            UserError: a parameter is unknown (the message names the nearest), missing or wrong, or they do not fit together.
        """
        known = {p.name: p for p in self.parameters}
        wrong = [f"parameter {key} is unknown{self._nearest(key)}" for key in given if key not in known]
        wrong += [f"parameter {p.name} is missing" for p in self.parameters if p.name not in given and p.default is None]
        if wrong:
            raise UserError(f"{self.name}: {'; '.join(wrong)}. It is spelled {self.usage()}")
        try:
            return self.settle({name: p.checked(given.get(name, p.default)) for name, p in known.items()})
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    def usage(self) -> str:
        """`NAME(key, key=default, ...)`."""
        return f"{self.name}({', '.join([p.name if p.default is None else f'{p.name}={p.text(p.default)}' for p in self.parameters])})"

    def spelled(self, params: Params) -> str:
        """The canonical text of a workload: parameters in order, those with their default value left out."""
        parts = [f"{p.name}={p.text(params[p.name])}" for p in self.parameters if params[p.name] != p.default]
        return f"{self.name}({','.join(parts)})"

    def tensors(self, **params: object) -> list[Tensor]:
        """The tensors of the function, inputs and then outputs; computed ones hold their formulas."""
        return self.arguments(**self.bind(params))

    def build(self, **params: object) -> PrimFunc:
        """The program, not scheduled: a block for each stage.  Raises UserError for wrong parameters."""
        return self.function(self.tensors(**params))

    def function(self, tensors: Sequence[Tensor]) -> PrimFunc:
        """The program of the tensors, its weights declared constant."""
        func = create_prim_func(tensors, self.name)
        declared = [p.name for p in func.params if p.name in self.constants]
        return func.with_(attrs=(("constants", " ".join(declared)),)) if declared else func

    def reference(self, params: Mapping[str, object], inputs: Arrays) -> list[np.ndarray]:
        """The outputs that numpy computes from `inputs`, in the types of the program."""
        return self.in_numpy(*inputs, **self.bind(params))

    def flops(self, **params: object) -> int:
        """Operations by the convention of benchmark tables: two for each multiply-add of a contraction, taps in the padding
        included and epilogues not; for all other operators one for each element and arithmetic step."""
        return self.operations(**self.bind(params))

    def _nearest(self, key: str) -> str:
        near = difflib.get_close_matches(key, [p.name for p in self.parameters], n=1, cutoff=0.5)
        return f" (did you mean {near[0]}?)" if near else ""


_LIBRARY: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "batch_matmul"),
    "dense": ("dense",),
    "conv2d": ("conv2d",),
    "unary": ("abs", "erf", "exp", "gelu", "log", "neg", "relu", "rsqrt", "sigmoid", "sqrt", "tanh"),
    "binary": ("add", "sub", "mul", "div", "maximum", "minimum"),
    "reduction": ("sum", "mean", "max", "min"),
    "softmax": ("softmax",),
    "layer_norm": ("layer_norm",),
}
"""Module -> operators in it, each a constant named like the operator in capitals."""

OPERATORS: Registry[Operator] = Registry(
    "operator", {name: f"tunesmith.ops.{module}:{name.upper()}" for module, names in _LIBRARY.items() for name in names}
)
"""All operators by name."""
