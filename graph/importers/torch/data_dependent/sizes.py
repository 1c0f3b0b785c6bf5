"""Read sizes from tensors while an exported program is converted: the unbacked symbols of torch.export.

A symbol is the extent of a result (the number of true elements of a mask), or an element of a tensor (`Tensor.item()`).
An extent becomes a size of the graph function, read from a count.  An element is a scalar tensor, and is also read as a size if an extent,
a bound of a slice or another size argument is computed from it.

torch asserts at run time what it assumed about symbols.  What it asserts about a size is checked where the size is read: if it does not
hold, -1 is read, which the executor refuses.  Assertions about other numbers are not checked, as no memory access depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

from tunesmith.graph.importers.torch.call import SizeNumber, TorchCall
from tunesmith.graph.importers.torch.data_dependent.numbers import scalar
from tunesmith.graph.importers.torch.sizes import is_unbacked
from tunesmith.graph.ir.node import Constant, Operand, ReadSize
from tunesmith.ir.poly import Poly, Var, maximum, minimum, poly

ASSERTIONS = ("aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten._assert_async.msg")
RANGES = ("aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default")
ITEMS = ("aten.item.default", "aten._local_scalar_dense.default")
"""Operators that give an element of a tensor as a number."""
_RANGE_OPERATORS = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
_SELECT = "aten.select.int"


class DataSizes:
    """The symbols of one graph module that stand for numbers from data.

    Args:
        torch: the module.
        module: the torch.fx.GraphModule.
        ranges: the ranges of the symbols of the whole program.
    """

    def __init__(self, torch: Any, module: Any, ranges: Any) -> None:
        self._torch, self._ranges = torch, {str(s): r for s, r in ranges.items()}
        self._asserted: list[Any] = []
        self._used: set[str] = set()
        for node in module.graph.nodes:
            self._note(node)

    def _note(self, node: Any) -> None:
        for value in _leaves(node.meta.get("val")):
            if isinstance(value, self._torch.Tensor):
                self._used |= {s for extent in value.shape for s in self._symbols(extent)}
        if node.op != "call_function" or str(node.target) in RANGES:
            return
        name = str(node.target)
        if name in ASSERTIONS:
            self._asserted += [c for a in node.args[:1] if (c := self._expr(a)) is not None]
        schema = getattr(node.target, "_schema", None)
        for i, argument in enumerate(getattr(schema, "arguments", ())):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            is_size = name in _RANGE_OPERATORS or "int" in str(argument.type).lower()
            if is_size and name not in ASSERTIONS and (name, i) != (_SELECT, 2):
                self._used |= {s for n in _leaves(given) if (e := self._expr(n)) is not None for s in _unbacked(e)}

    def _expr(self, given: Any) -> Any:
        """The sympy expression of a number in the graph; None for other arguments."""
        value = given.meta.get("val") if isinstance(given, self._torch.fx.Node) else None
        return value.node.expr if isinstance(value, (self._torch.SymInt, self._torch.SymBool, self._torch.SymFloat)) else None

    def _symbols(self, extent: Any) -> list[str]:
        return _unbacked(extent.node.expr) if isinstance(extent, self._torch.SymInt) else []

    def new_extents(self, call: TorchCall, value: Any) -> list[str]:
        """The symbols in the shapes of a result that no earlier node has defined."""
        known = call.sizes.data
        shapes = [v.shape for v in _leaves(value) if isinstance(v, self._torch.Tensor)]
        return list(dict.fromkeys([s for shape in shapes for e in shape for s in self._symbols(e) if s not in known]))

    def define_extent(self, call: TorchCall, symbol: str) -> None:
        """Define the symbol of an extent: a size that the converter has to read, or another size that torch asserts to be equal."""
        for condition in self._asserted:
            if type(condition).__name__ == "Equality" and symbol in map(str, condition.free_symbols):
                sides = {str(side): other for side, other in (condition.args, condition.args[::-1])}
                other = sides.get(symbol)
                if other is not None and all(str(s) in call.sizes.data or not is_unbacked(str(s)) for s in other.free_symbols):
                    call.sizes.data[symbol] = call.sizes.of_sympy(other)
                    return
        call.sizes.data[symbol] = poly(Var(symbol))

    def define_number(self, call: TorchCall, symbol: str, value: Operand) -> None:
        """Define the symbol of a number from data, which is read as a size if one is computed from it."""
        call.sizes.tensors[symbol] = value
        if symbol not in self._used:
            return
        natural = self._least(symbol) >= 0
        conditions = self.conditions(call, symbol, value, 0 if natural else None)
        if natural:
            call.sizes.data[symbol] = poly(call.builder.read_size(_guarded(call, value, conditions), symbol))
            return
        zero = call.number(0, "int64")
        above = call.emit("maximum", value, zero)
        below = call.emit("maximum", call.emit("neg", value), zero)
        positive = call.builder.read_size(_guarded(call, above, conditions), symbol)
        negative = call.builder.read_size(below, f"{symbol}_below")
        call.sizes.data[symbol] = poly(positive) - negative

    def _least(self, symbol: str) -> int:
        """The lower bound of a symbol; negative if there is none."""
        lower = getattr(self._ranges.get(symbol), "lower", None)
        return int(lower) if lower is not None and lower.is_Integer else -1

    def conditions(self, call: TorchCall, symbol: str, value: Operand, least: int | None = 0, most: int | None = None) -> list[Operand]:
        """What torch asserts about a symbol and the ones that were defined before, as bool[].

        Args:
            call: the node that defines the symbol.
            symbol: the symbol.
            value: its value.
            least: a number that the value is not below, or that the reading of the size checks; None if there is none.
            most: a number that the value does not exceed.
        """
        sizes, known = call.sizes, {*call.sizes.data, *call.sizes.tensors, symbol}
        found: list[Operand] = []
        kept = sizes.tensors.get(symbol)
        sizes.tensors[symbol] = value
        for condition in dict.fromkeys([*self._asserted, *self._bounds(symbol)]):
            names = {str(s) for s in condition.free_symbols}
            if symbol in names and all(n in known or not is_unbacked(n) for n in names) and not _is_known(condition, least, most):
                found.append(call.cast(scalar(call, condition), "bool"))
        if kept is None:
            del sizes.tensors[symbol]
        else:
            sizes.tensors[symbol] = kept
        return found

    def _bounds(self, symbol: str) -> Iterator[Any]:
        sympy: Any = import_module("sympy")  # a requirement of torch
        bounds, s = self._ranges.get(symbol), sympy.Symbol(symbol, integer=True)
        if bounds is not None and bounds.lower.is_Integer:
            yield sympy.Ge(s, bounds.lower, evaluate=False)
        if bounds is not None and bounds.upper.is_Integer:
            yield sympy.Le(s, bounds.upper, evaluate=False)


def read_extent(call: TorchCall, count: Operand, extent: Poly, most: Poly | int | None = None) -> Operand | None:
    """Read the extent of a result.

    Args:
        call: the node.
        count: the extent, an int64[].
        extent: the extent as torch knows it: the size that is to be read, or one that must be equal.
        most: a number that the count cannot exceed.
    Returns:
        None, or an int64[] that is 0, and whose computation reads the count and compares it with an extent that is read elsewhere: to be
        added to the indices that the result is computed with.
    """
    limit = None if most is None else poly(most).const
    symbols = [s for s in call.created if s in call.sizes.data]
    conditions = [c for s in symbols if call.asserted is not None for c in call.asserted(call, s, count, 0, limit)]
    size = extent.as_var()
    if size is not None and any(call.sizes.data[s].as_var() is size and size.name == s for s in symbols):
        call.builder.bind(ReadSize(_guarded(call, count, conditions), size), (), size.name)
        return None
    conditions.append(call.emit("equal", count, call.operand(extent, "int64")))
    read = call.builder.read_size(_guarded(call, count, conditions), call.name)
    return call.emit("subtract", call.operand(poly(read), "int64"), count)


def _guarded(call: TorchCall, value: Operand, conditions: Sequence[Operand]) -> Operand:
    """The value, or -1 if a condition does not hold: no size is negative."""
    if not conditions:
        return value
    holds = reduce(lambda a, b: call.emit("logical_and", a, b), conditions)
    return call.emit("where", holds, value, call.number(-1, "int64"))


def _is_known(condition: Any, least: int | None, most: int | None) -> bool:
    """Whether a condition holds for every size from `least` to `most`."""
    kind, args = type(condition).__name__, condition.args
    if kind not in ("GreaterThan", "LessThan") or not (args[0].is_Symbol and args[1].is_Integer):
        return kind == "BooleanTrue"
    if kind == "GreaterThan":
        return least is not None and int(args[1]) <= least
    return int(args[1]) >= (2**62 if most is None else most)


def slice_extent(start: Any, end: Any, step: int, extent: Poly) -> Poly:
    """The number of elements of a slice whose bounds depend on data, as in Python."""
    first = slice_bound(0 if start is None else start, extent)
    last = extent if end is None or end == 2**63 - 1 else slice_bound(end, extent)
    return maximum((last - first + (step - 1)) // step, 0)


def slice_bound(bound: Any, extent: Poly) -> Poly:
    """A bound of a slice, counted from the end if it is negative, and clamped to the axis."""
    at = poly(bound)
    if at == 0:
        return at
    if at.const is None or at.const < 0:
        below = 1 if at.const is not None else minimum(maximum(-at, 0), 1)
        at = at + extent * below
    return minimum(maximum(at, 0), extent)


def is_number_from_data(value: Any) -> bool:
    """Whether an argument is a number that is a tensor in the graph."""
    return isinstance(value, SizeNumber) and value.dtype != "float32"


def as_scalar(call: TorchCall, value: Operand) -> Operand:
    """The only element of a tensor as int64[] or float64[]."""
    single = value if not value.type.shape else call.emit("reshape", value, shape=())
    if isinstance(single, Constant) or single.type.dtype not in ("int64", "float64"):
        wide = "float64" if single.type.dtype.startswith(("float", "bfloat")) else "int64"
        return call.cast(single, wide)
    return single


def _unbacked(expr: Any) -> list[str]:
    return [str(s) for s in expr.free_symbols if is_unbacked(str(s))]


def _leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, (list, tuple)) else [value]
