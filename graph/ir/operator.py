"""Define graph operators, each by a tensor expression, a numpy reference and a fusion kind.

One definition serves three purposes.  Types are inferred by applying the expression to placeholders.  A call, or a fused group of
calls, is lowered to a TIR function by applying it to the inputs.  Constants are folded with the numpy reference, which is also the
oracle of the tests.  Attributes are the keyword-only parameters of the expression.

An operator is added by a line in `_LIBRARY`, by `GRAPH_OPERATORS.register(name, operator)`, or by an entry point of another
distribution in the group `tunesmith.graph_operator`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tunesmith.graph.ir.node import Attribute, Attributes, TensorType
from tunesmith.ir.poly import Poly, Var, evaluate, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError
from tunesmith.support.nearest_name import nearest_name
from tunesmith.support.registry import Registry, instance_of

ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, FUSABLE, OPAQUE = KINDS = (
    "elementwise",
    "broadcast",
    "injective",
    "reduction",
    "fusable",
    "opaque",
)
"""Fusion kinds of operators, as in TVM (kElemWise, kBroadcast, kInjective, kCommReduce, kOutEWiseFusable, kOpaque), from the most to the
least fusable: elementwise, element i depends on elements i; broadcast, the same with broadcast operands; injective, an element depends
on one element of each operand, at any index; reduction; fusable, a contraction with an elementwise epilogue; and opaque."""

_REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class GraphOperator:
    """One operator.

    Attributes:
        name: name in calls and scripts.
        kind: one of `KINDS`.
        compute: maps the operands, as tensors, and all attributes, as keywords, to one result tensor or several.  Its keyword-only
            parameters are the attributes, with their defaults; `*args` takes any number of operands; a positional parameter
            with the default None is an optional operand.  It raises ScriptError for invalid operands.
        reference: called with arrays in the same way; returns arrays of the types of `compute`.  A size in an attribute is an int.
        wide: 16-bit floats are computed in float32 and rounded once, as long sums require.
        view: the results have the elements of the first operand in the same order, so no code is needed to compute them (reshape).
        meaning: one sentence or a few, for the reference of the documentation.
    """

    name: str
    kind: str
    compute: Callable[..., Tensor | Sequence[Tensor]]
    reference: Callable[..., np.ndarray | Sequence[np.ndarray]]
    view: bool = False
    wide: bool = False
    meaning: str = ""

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        return tuple(inspect.signature(self.compute).parameters.values())

    @cached_property
    def arity(self) -> tuple[int, int | None]:
        """The minimum and maximum numbers of operands; the maximum is None if unbounded."""
        positional = [p for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD or p.kind is p.POSITIONAL_ONLY]
        least = sum(p.default is _REQUIRED for p in positional)
        return least, None if any(p.kind is p.VAR_POSITIONAL for p in self._parameters) else len(positional)

    def operand_name(self, position: int) -> str:
        """The name of the operand at a position; `xs` for operands of `*xs`."""
        names = [p.name for p in self._parameters if p.kind is not p.KEYWORD_ONLY]
        return names[min(position, len(names) - 1)]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Name -> default value; `inspect.Parameter.empty` for required attributes."""
        return {p.name: p.default for p in self._parameters if p.kind is p.KEYWORD_ONLY}

    def bind(self, given: Mapping[str, Any]) -> Attributes:
        """All attributes in order, with lists converted to tuples and defaults filled in.

        Raises:
            ScriptError: an attribute is unknown (the message suggests the closest name), missing, or has an invalid value.
        """
        wrong = [f"attribute {key} is unknown{self._nearest(key)}" for key in given if key not in self.attributes]
        wrong += [f"attribute {key} is missing" for key, d in self.attributes.items() if d is _REQUIRED and key not in given]
        if wrong:
            raise ScriptError(f"{self.name}: {'; '.join(wrong)}. Usage: {self.usage()}")
        return tuple([(key, self._checked(key, given.get(key, default))) for key, default in self.attributes.items()])

    def infer(self, args: Sequence[TensorType], attrs: Attributes = ()) -> tuple[TensorType, ...]:
        """The types of the results.

        Raises:
            ScriptError: the operands are invalid; the message contains the operator and their types.
        """
        tensors = [te.placeholder(t.shape, t.dtype, f"arg{i}") for i, t in enumerate(args)]
        return tuple([TensorType(t.shape, t.dtype) for t in self.apply(tensors, attrs)])

    def apply(self, args: Sequence[Tensor], attrs: Attributes = ()) -> tuple[Tensor, ...]:
        """The results as tensor expressions of `args`; raises as `infer` does."""
        least, most = self.arity
        if len(args) < least or (most is not None and len(args) > most):
            expected = f"{least}" if least == most else f"{least} to {most}" if most is not None else f"{least} or more"
            raise ScriptError(f"{self.name} takes {expected} operands, got {len(args)}. Usage: {self.usage()}")
        try:
            half = self.wide and bool(args) and all(dt.is_float(a.dtype) and dt.bits(a.dtype) == 16 for a in args)
            made = self.compute(*([_cast(a, "float32") for a in args] if half else args), **dict(attrs))
        except UserError as error:
            types = ", ".join([f"{a.dtype}[{', '.join(map(repr, a.shape))}]" for a in args])
            raise ScriptError(f"{self.name}({types}): {error}") from error
        results = (made,) if isinstance(made, Tensor) else tuple(made)
        return tuple([_cast(r, args[0].dtype) for r in results]) if half else results

    def evaluate(
        self, args: Sequence[np.ndarray], attrs: Attributes = (), sizes: Mapping[Var, int] | None = None
    ) -> tuple[np.ndarray, ...]:
        """The results of the numpy reference; `sizes` are the values of variables in attributes."""
        made = self.reference(*args, **{key: _number(value, sizes or {}) for key, value in attrs})
        several = isinstance(made, (list, tuple))
        return tuple([np.asarray(m) for m in (made if several else [made])])

    def usage(self) -> str:
        """`name(x, y, *, key, key=default)`."""
        return f"{self.name}({', '.join([str(p.replace(annotation=_REQUIRED)) for p in self._parameters])})"

    def _checked(self, key: str, value: Any) -> Attribute:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Poly):
            return value if value.const is None else value.const
        if isinstance(value, Var):
            return poly(value)
        if isinstance(value, (list, tuple)):
            return tuple([self._checked(key, v) for v in value])
        if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float)):
            return value.item()
        raise ScriptError(
            f"{self.name}: attribute {key} is a {type(value).__name__}; use a number, a string, a size, None, or a list of these"
        )

    def _nearest(self, key: str) -> str:
        near = nearest_name(key, self.attributes, 0.5)
        return f" (did you mean {near}?)" if near else ""


def _cast(x: Tensor, dtype: str) -> Tensor:
    return te.compute(x.shape, lambda *i: te.cast(dtype, x[i]), f"{x.name}_{dtype}")


def _number(value: Attribute, sizes: Mapping[Var, int]) -> Any:
    if isinstance(value, Poly):
        return evaluate(value, sizes)
    return tuple([_number(v, sizes) for v in value]) if isinstance(value, tuple) else value


_LIBRARY: dict[str, tuple[str, ...]] = {
    "elementwise": (
        "abs",
        "cast",
        "ceil",
        "clip",
        "cos",
        "elu",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "gelu",
        "hard_sigmoid",
        "hard_swish",
        "identity",
        "isnan",
        "leaky_relu",
        "log",
        "log1p",
        "log2",
        "logical_not",
        "neg",
        "reciprocal",
        "relu",
        "round",
        "rsqrt",
        "selu",
        "sigmoid",
        "sign",
        "silu",
        "sin",
        "softplus",
        "sqrt",
        "square",
        "tanh",
        "trunc",
    ),
    "broadcast": (
        "add",
        "divide",
        "equal",
        "floor_divide",
        "fma",
        "fmod",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "maximum",
        "minimum",
        "mod",
        "multiply",
        "not_equal",
        "power",
        "prelu",
        "subtract",
        "where",
    ),
    "reductions": ("all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum"),
    "creation": ("arange", "eye", "full", "size_value"),
    "shapes": (
        "broadcast_to",
        "concat",
        "expand_dims",
        "flip",
        "pad",
        "permute_dims",
        "reshape",
        "row",
        "split",
        "squeeze",
        "strided_slice",
        "tile",
    ),
    "indexing": (
        "gather_elements",
        "gather_nd",
        "index_put_rows",
        "one_hot",
        "scatter_elements",
        "scatter_nd",
        "take",
        "trilu",
    ),
    "device": ("transfer",),
    "image": ("depth_to_space", "resize2d", "space_to_depth"),
    "int4": ("matmul_int4",),
    "nn": ("conv2d", "conv2d_transpose", "einsum", "matmul"),
    "norms": ("batch_norm", "group_norm", "instance_norm", "layer_norm", "log_softmax", "rms_norm", "softmax"),
    "trigonometry": (
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "copysign",
        "cosh",
        "erfc",
        "hypot",
        "sinh",
        "tan",
    ),
    "bitwise": ("bitwise_and", "bitwise_or", "bitwise_xor", "reinterpret", "shift_left", "shift_right"),
    "cumulative": ("cummax", "cummin", "cumprod", "logcumsumexp"),
    "random": ("random_uniform",),
    "sampling": ("grid_sample",),
    "sorting": ("argsort", "searchsorted"),
    "quantization": ("dequantize", "quantize"),
    "split_bfloat16": ("split_bfloat16",),
    "special": ("digamma", "erfinv", "lgamma"),
    "volumes": ("avg_pool3d", "conv3d", "conv3d_transpose", "max_pool3d", "max_pool3d_indices"),
    "windows": ("avg_pool2d", "cumsum", "lrn", "max_pool2d", "max_pool2d_indices", "unfold"),
}
"""Module of `graph.operators` -> its operators; each is a constant with the upper-case name of the operator."""

GRAPH_OPERATORS: Registry[GraphOperator] = Registry(
    "graph operator",
    {name: f"tunesmith.graph.operators.{module}:{name.upper()}" for module, names in _LIBRARY.items() for name in names},
    contract=instance_of(GraphOperator),
)
"""All operators by name."""
