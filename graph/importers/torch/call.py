"""Register torch converters, and give them access to the converted node and its builder (`TorchCall`).

    @TORCH_OPERATORS.registers("mylib.scaled_relu.default")
    def scaled_relu(call, x, factor):
        return call.emit("multiply", call.emit("relu", x), call.operand(factor))

A converter is called with all arguments in schema order, including defaults.  Tensors are passed as graph operands, sizes as ints or
index expressions (`ir.poly.Poly`), other arguments as in torch.  It returns an operand, or a list of operands for an operator with
several results (None for an unsupported result, which is an error only if the result is used).  Torch's decomposition of a registered
operator is not applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import numpy as np

from tunesmith.graph.importers.torch.data_dependent.numbers import depends_on_data, scalar
from tunesmith.graph.importers.torch.sizes import Sizes
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Constant, Operand, TensorType, Value
from tunesmith.ir.poly import Poly, maximum, poly
from tunesmith.runtime.arrays import in_bfloat16
from tunesmith.support import dtype as dt
from tunesmith.support.errors import MissingExtraError, ModelImportError
from tunesmith.support.registry import FUNCTION, Registry

Converted = Operand | Sequence[Operand | None] | None
Converter = Callable[..., Converted]
Fn = TypeVar("Fn", bound=Converter)

TORCH_OPERATORS: Registry[Converter] = Registry("torch operator", contract=FUNCTION)
"""Converters by operator name including the overload: `aten.conv2d.default`."""


def converts(*names: str) -> Callable[[Fn], Fn]:
    """Decorator that registers a converter under several names and preserves its type."""

    def register(convert: Fn) -> Fn:
        for name in names:
            TORCH_OPERATORS.register(name, convert)
        return convert

    return register


def import_torch() -> ModuleType:
    """The module `torch`; MissingExtraError with the install command if it is not installed."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "importing a torch model") from None
    return torch


@dataclass(frozen=True, slots=True)
class SizeNumber:
    """A floating-point number computed from sizes (`n**-0.5`), or a number computed from data, as a sympy expression."""

    expr: Any
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class TorchCall:
    """A node of an exported program during conversion.

    Attributes:
        name: node name.
        builder: builder of the enclosing region.
        sizes: size symbols of the program.
        types: result types in torch.
        region: converter of sub-graphs: maps the module, the values of its inputs and a builder to the results.
        draw: the seed, and the number of a stream that no other call has; None if the import has no seed.
        created: the symbols in the shapes of the results that the node defines.
        asserted: what torch asserts about a symbol, see `data_dependent.sizes.DataSizes.conditions`.
    """

    name: str
    builder: RegionBuilder
    sizes: Sizes
    types: tuple[TensorType, ...]
    region: Callable[[Any, Sequence[Any], RegionBuilder], tuple[Any, ...]] | None = None
    draw: Callable[[], tuple[Operand, int]] | None = None
    created: Sequence[str] = ()
    asserted: Callable[..., list[Operand]] | None = None

    @property
    def shape(self) -> tuple[Poly, ...]:
        """Shape of the first result."""
        return self.types[0].shape

    @property
    def dtype(self) -> str:
        """Element type of the first result."""
        return self.types[0].dtype

    def emit(self, operator: str, *args: Operand, **attrs: Any) -> Any:
        """The result of a graph operator."""
        if operator in ("take", "gather_elements", "gather_nd"):
            args = (self._with_elements(args[0]), *args[1:])
        return self.builder.call(operator, *args, name=self.name, **attrs)

    def _with_elements(self, x: Operand) -> Operand:
        """A tensor of the same elements, whose extents that depend on data are at least 1: code that gathers reads some element always."""
        for axis, extent in enumerate(x.type.shape):
            if self.sizes.reads_data(extent):
                missing = maximum(1 - extent, 0)
                shape = tuple([missing if a == axis else e for a, e in enumerate(x.type.shape)])
                zeros = self.builder.call("full", name=self.name, shape=shape, value=0, dtype=x.type.dtype)
                x = self.builder.call("concat", x, zeros, name=self.name, axis=axis)
        return x

    def cast(self, x: Operand, dtype: str) -> Operand:
        """`x` cast to an element type; `x` itself if it has this type.  A cast to bool compares with zero."""
        if x.type.dtype == dtype:
            return x
        if dtype == "bool":
            return self.emit("not_equal", x, self.number(0, x.type.dtype))
        return self.emit("cast", x, dtype=dtype)

    def number(self, value: bool | int | float, dtype: str) -> Constant:
        """A scalar constant.  Out-of-range integers wrap and out-of-range floats become infinite, as in torch."""
        if dt.is_int(dtype) and isinstance(value, int):
            value = wrapped(value, dtype)
        with np.errstate(over="ignore"):
            return Constant("c", array_of(value, dtype))

    def constant(self, values: Any, dtype: str) -> Constant:
        """A constant tensor."""
        return Constant("c", array_of(values, dtype))

    def operand(self, x: Any, dtype: str | None = None) -> Operand:
        """A tensor, number or size as a tensor of type `dtype`, by default the result type."""
        dtype = dtype or self.dtype
        if isinstance(x, (bool, int, float)):
            return self.number(x, dtype)
        if isinstance(x, Poly):
            return self.cast(self.emit("size_value", value=x, dtype="int64"), dtype)
        if isinstance(x, SizeNumber):
            made = scalar(self, x.expr) if x.dtype != "float32" or depends_on_data(self, x.expr) else self._float(x.expr)
            return self.cast(made, dtype)
        return self.cast(x, dtype)

    def operands(self, *xs: Any) -> tuple[Operand, ...]:
        """The operands cast to their common promoted type."""
        dtype = self.promoted(*xs)
        return tuple([self.operand(x, dtype) for x in xs])

    def promoted(self, *xs: Any) -> str:
        """Torch's promoted type of the operands: tensors take precedence over scalar tensors, scalar tensors over numbers."""
        tensors = [x.type for x in xs if isinstance(x, (Value, Constant))]
        numbers = [x for x in xs if not isinstance(x, (Value, Constant))]
        groups = (
            [t.dtype for t in tensors if t.shape],
            [t.dtype for t in tensors if not t.shape],
            [_type_of_number(x) for x in numbers],
        )
        decided = ""
        for group in groups:
            found = reduce(_promote, group) if group else ""
            if not decided:
                decided = found
            elif found and not dt.is_float(decided) and (decided == "bool" or dt.is_float(found)):
                decided = _promote(decided, found)
        return decided

    def product_type(self, *xs: Any) -> str:
        """The type in which a product or quotient is computed.  Torch multiplies float16 and bfloat16 by a number, or by a scalar tensor of
        another type, in float32 and rounds the result once; other arithmetic rounds the number first."""
        scalars = [x for x in xs if not isinstance(x, (Value, Constant)) or (not x.type.shape and x.type.dtype != self.dtype)]
        return dt.widened(self.dtype) if scalars else self.dtype

    def axis(self, dim: int, rank: int) -> int:
        """A non-negative axis index."""
        return dim % max(rank, 1)

    def reshaped(self, x: Operand, shape: Sequence[Any]) -> Operand:
        """`x` reshaped; `x` itself if it has this shape."""
        shape = tuple([poly(e) for e in shape])
        return x if x.type.shape == shape else self.emit("reshape", x, shape=shape)

    def refuse(self, reason: str) -> NoReturn:
        """Stop converting this node.  The import continues, to collect all unsupported operators, and then fails."""
        raise ModelImportError(reason)

    def _float(self, expr: Any) -> Operand:
        """A number computed from sizes, as a float64 scalar."""
        kind = type(expr).__name__
        if expr.is_number:
            return self.number(float(expr), "float64")
        if kind == "ToFloat":
            return self.operand(self.sizes.of_sympy(expr.args[0]), "float64")
        if kind == "IntTrueDiv":
            return self.emit("divide", *[self.operand(self.sizes.of_sympy(a), "float64") for a in expr.args])
        if kind not in _FLOAT_FUNCTIONS:
            self.refuse(f"the number {expr} contains the unsupported function {kind}; compute it as a tensor in the model")
        made = [self._float(a) for a in expr.args]
        while len(made) > 2:
            made[:2] = [self.emit(_FLOAT_FUNCTIONS[kind], *made[:2])]
        return self.emit(_FLOAT_FUNCTIONS[kind], *made)


def array_of(values: Any, dtype: str) -> np.ndarray:
    """Numbers as the data of a constant; bfloat16 is that of ml_dtypes."""
    made = np.asarray(values, dt.to_numpy(dtype))
    return in_bfloat16(made) if dtype == "bfloat16" else made


def wrapped(value: int, dtype: str) -> int:
    """An integer reduced modulo 2**bits to the range of the type."""
    bits = dt.bits(dtype)
    value = int(value) % 2**bits
    return value if dt.is_unsigned(dtype) or value < 2 ** (bits - 1) else value - 2**bits


def _type_of_number(x: Any) -> str:
    if isinstance(x, SizeNumber):
        return x.dtype
    return "bool" if isinstance(x, bool) else "int64" if isinstance(x, (int, Poly)) else "float32"


_FLOAT_FUNCTIONS = {
    "Add": "add",
    "Mul": "multiply",
    "Pow": "power",
    "FloatPow": "power",
    "FloatTrueDiv": "divide",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
}


def _promote(a: str, b: str) -> str:
    torch = import_torch()
    return str(torch.promote_types(getattr(torch, a), getattr(torch, b))).removeprefix("torch.")
