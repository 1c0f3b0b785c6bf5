"""Convert a torch graph module, node by node, to a region of a graph function; also used for bodies of torch.cond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, Converted, SizeNumber, TorchCall, array_of
from tunesmith.graph.importers.torch.data_dependent.sizes import ASSERTIONS, ITEMS, RANGES, DataSizes, as_scalar, slice_extent
from tunesmith.graph.importers.torch.sizes import Sizes, is_unbacked
from tunesmith.graph.importers.torch.unsupported import UnsupportedOperators
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Constant, Operand, ReadSize, TensorType, Value
from tunesmith.ir.poly import Poly, poly
from tunesmith.support.errors import ModelImportError, UserError


class Owner(Protocol):
    """The program import that a region is part of."""

    sizes: Sizes
    ranges: Any
    unsupported: UnsupportedOperators
    torch: Any

    def constant(self, node: Any, name: str, tensor: Any) -> Any:
        """A program tensor as a constant."""

    def type_of(self, tensor: Any) -> TensorType:
        """The graph type of a program tensor."""

    draw: Callable[[], tuple[Operand, int]] | None

    def assume(self, condition: Any) -> None:
        """Assume a sympy condition on sizes that the program asserts."""


class _Missing:
    """Placeholder for the result of an unsupported node."""


_MISSING = _Missing()


class RegionImport:
    """Conversion of one graph module to a region.

    Args:
        owner: size symbols, constants and unsupported operators of the whole program.
        module: the torch.fx.GraphModule.
        env: placeholder values; absent placeholders are numbers, whose values are part of the trace.
        builder: builder of the region.
    """

    def __init__(self, owner: Owner, module: Any, env: dict[Any, Any], builder: RegionBuilder) -> None:
        self.owner, self.module, self.env, self.builder = owner, module, env, builder
        self.data = DataSizes(owner.torch, module, owner.ranges)

    def run(self) -> tuple[Any, ...]:
        """Convert all nodes and return the graph's outputs: operands, sizes, numbers, None."""
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.env.setdefault(node, _MISSING)
                self._placeholder(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "call_function":
                self.env[node] = self._node(node)
            elif node.op == "output":
                returned = self._value(node.args[0])
                return tuple(returned) if isinstance(returned, list) else (returned,)
        raise ModelImportError("the graph of the program has no output")

    def _attribute(self, node: Any) -> Any:
        found = self.module
        for part in node.target.split("."):
            found = getattr(found, part)
        if not isinstance(found, self.owner.torch.Tensor):
            return found
        made = self.owner.constant(node, node.target, found)
        return _MISSING if made is None else made

    def _node(self, node: Any) -> Any:
        """The value of a node; for an unsupported node an unknown of its type, so that the import can continue."""
        name = operator_name(node.target)
        try:
            if name in ASSERTIONS:
                return self._assertion(node)
            if name == "_operator.getitem" and not isinstance(node.meta.get("val"), self._numbers):
                return self._item(node)
            if not node.users or name in RANGES or (name in ITEMS and self._is_only_asserted(node)):
                return _MISSING
            if name in ITEMS:
                return self._number_from_data(node, self.env[node.args[0]])
            if (empty := self._without_elements(node)) is not None:
                return empty
            if isinstance(node.meta.get("val"), self._numbers) and (not name.startswith("aten.") or name.startswith("aten.sym_")):
                return self._number(node.meta["val"])
            if name not in TORCH_OPERATORS:
                self.owner.unsupported.add(name, node, None)
                return self._unknown(node)
            args = self._arguments(node)
            if _is_missing(args):
                return self._unknown(node)
            return self._converted(node, name, args)
        except UserError as error:
            self.owner.unsupported.add(name, node, str(error), error.__cause__)
            return self._unknown(node)

    def _is_only_asserted(self, node: Any) -> bool:
        """Whether only assertions use a number; those about data are not checked."""
        names = {user: operator_name(user.target) if user.op == "call_function" else user.op for user in node.users}
        return all(
            name in (*ASSERTIONS, *RANGES)
            or (isinstance(user.meta.get("val"), self._numbers) and not name.startswith("aten.") and self._is_only_asserted(user))
            for user, name in names.items()
        )

    def _without_elements(self, node: Any) -> Constant | None:
        """The result of a node with no elements, which needs no computation; else None."""
        value = node.meta.get("val")
        if not isinstance(value, self.owner.torch.Tensor) or any(type(e) is not int for e in value.shape) or 0 not in value.shape:
            return None
        (type_,) = self._types(node)
        return Constant(node.name, array_of(np.zeros(tuple(value.shape)), type_.dtype))

    def _converted(self, node: Any, name: str, args: Sequence[Any]) -> Converted:
        value = node.meta.get("val")
        call = self._call(node)
        created = self.data.new_extents(call, value)
        for symbol in created:
            self._define_extent(call, symbol, name, args)
        call = replace(call, types=self._types(node), created=created, asserted=self.data.conditions)
        try:
            made = TORCH_OPERATORS.get(name)(call, *args)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise ModelImportError(f"its converter does not accept these arguments ({type(error).__name__}: {first})") from error
        read = {b.operation.size for b in self.builder.bindings if isinstance(b.operation, ReadSize)}
        if any(size.name == s and size not in read for s in created if (size := self.owner.sizes.data[s].as_var()) is not None):
            raise ModelImportError("the shape of its result depends on data, and its converter does not read it; compute a mask instead")
        results, traced = [v if isinstance(v, (list, tuple)) else [v] for v in (made, value)]
        types = iter(call.types)
        for i, (result, of) in enumerate(zip(results, traced, strict=False)):
            type_ = next(types, None) if isinstance(of, self.owner.torch.Tensor) else None
            if type_ is not None and isinstance(result, (Value, Constant)) and not _fits(result.type, type_):
                raise ModelImportError(f"its converter returned {result.type} for result {i}, which is {type_} in torch; fix the converter")
            if isinstance(of, self._symbolic) and isinstance(result, (Value, Constant)):
                self._define_number(call, of, result)
        return made

    def _call(self, node: Any) -> TorchCall:
        """A call without types, as those may have symbols that are not defined yet."""
        return TorchCall(node.name, self.builder, self.owner.sizes, (), self._subregion, self.owner.draw)

    def _define_extent(self, call: TorchCall, symbol: str, name: str, args: Sequence[Any]) -> None:
        if name == "aten.slice.Tensor":
            x, dim, start, end, step = args
            extent = x.type.shape[call.axis(dim, len(x.type.shape))]
            self.owner.sizes.data[symbol] = slice_extent(start, end, step, extent)
        else:
            self.data.define_extent(call, symbol)

    def _placeholder(self, node: Any) -> None:
        """Define the symbol of a number that the region takes; a number that is a size outside remains one."""
        given, value = self.env[node], node.meta.get("val")
        if not isinstance(value, self._symbolic) or isinstance(given, _Missing):
            return
        if isinstance(given, (Poly, int)):
            if value.node.expr.is_Symbol and is_unbacked(str(value.node.expr)):
                self.owner.sizes.data[str(value.node.expr)] = poly(given)
            return
        call = self._call(node)
        operand = given if isinstance(given, (Value, Constant)) else call.operand(given, given.dtype)
        self.env[node] = self._number_from_data(node, operand)

    def _number_from_data(self, node: Any, value: Any) -> Any:
        """The value of a node that gives an element of a tensor."""
        if isinstance(value, _Missing):
            return _MISSING
        if isinstance(node.meta["val"], self._symbolic):
            self._define_number(self._call(node), node.meta["val"], value)
        return self._number(node.meta["val"])

    def _define_number(self, call: TorchCall, of: Any, value: Operand) -> None:
        """Define the symbol of a number in the trace, `u0`, or `Eq(u0, 1)` for a bool; nothing if torch replaced it by others."""
        symbols = [str(s) for s in of.node.expr.free_symbols if is_unbacked(str(s))]
        is_alone = of.node.expr.is_Symbol or isinstance(of, self.owner.torch.SymBool)
        if is_alone and len(symbols) == 1 and symbols[0] not in {*self.owner.sizes.data, *self.owner.sizes.tensors}:
            self.data.define_number(call, symbols[0], as_scalar(call, value))

    @property
    def _symbolic(self) -> Any:
        torch = self.owner.torch
        return (torch.SymInt, torch.SymFloat, torch.SymBool)

    def _arguments(self, node: Any) -> list[Any]:
        """All arguments in schema order, including defaults."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or not hasattr(schema, "arguments"):
            return [*map(self._value, node.args), *map(self._value, node.kwargs.values())]
        values = []
        for i, argument in enumerate(schema.arguments):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            values.append(self._value(given))
        return values

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, self.owner.torch.fx.Node):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return [self._value(a) for a in arg]
        return arg

    def _item(self, node: Any) -> Any:
        of = self.env[node.args[0]]
        if isinstance(of, _Missing) or not node.users or node.args[1] >= len(of):
            return self._unknown(node)
        if of[node.args[1]] is None:
            raise ModelImportError(
                f"result {node.args[1]} of {operator_name(node.args[0].target)} is not supported; write the model without it"
            )
        return of[node.args[1]]

    @property
    def _numbers(self) -> tuple[type, ...]:
        torch = self.owner.torch
        return (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)

    def _number(self, value: Any) -> Any:
        torch, sizes = self.owner.torch, self.owner.sizes
        symbols = [str(s) for s in value.node.expr.free_symbols] if isinstance(value, self._symbolic) else []
        if isinstance(value, torch.SymBool) and any(map(is_unbacked, symbols)):
            return SizeNumber(value.node.expr, "bool")
        if isinstance(value, torch.SymInt) and any(s in sizes.tensors and s not in sizes.data for s in symbols):
            return SizeNumber(value.node.expr, "int64")
        if isinstance(value, torch.SymInt):
            try:
                made = self.owner.sizes.poly(value)
            except ModelImportError:
                # The operator that creates the symbol, or the type of an input, is itself unsupported and already recorded.
                return _MISSING
            return made if made.const is None else made.const
        return SizeNumber(value.node.expr) if isinstance(value, (torch.SymFloat, torch.SymBool)) else value

    def _assertion(self, node: Any) -> None:
        """Turn assertions on sizes into assumptions; assertions on types are redundant."""
        if operator_name(node.target) == "aten._assert_scalar.default":
            condition = self._value(node.args[0])
            if isinstance(condition, SizeNumber) and not any(is_unbacked(str(s)) for s in condition.expr.free_symbols):
                self.owner.assume(condition.expr)
        elif operator_name(node.target) == "aten._assert_async.msg":
            raise ModelImportError("it asserts a property of data; remove the assertion from the model")

    def _types(self, node: Any) -> tuple[TensorType, ...]:
        value = node.meta.get("val")
        tensors = value if isinstance(value, (list, tuple)) else [value]
        return tuple([self.owner.type_of(t) for t in tensors if isinstance(t, self.owner.torch.Tensor)])

    def _unknown(self, node: Any) -> Any:
        try:
            types = self._types(node)
        except UserError:
            return _MISSING
        made = [Value(node.name, t) for t in types]
        return made if isinstance(node.meta.get("val"), (list, tuple)) else made[0] if made else _MISSING

    def _subregion(self, module: Any, args: Sequence[Any], builder: RegionBuilder) -> tuple[Operand, ...]:
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        with self.owner.sizes.region():
            made = RegionImport(self.owner, module, dict(zip(placeholders, args, strict=True)), builder).run()
            call = TorchCall("size", builder, self.owner.sizes, ())
            return tuple([call.operand(v, call.promoted(v)) if isinstance(v, (SizeNumber, Poly)) else v for v in made])


def operator_name(target: Any) -> str:
    """The registration name of an operator: `aten.add.Tensor`, `higher_order.cond`, `_operator.mul`."""
    if hasattr(target, "_schema") and hasattr(target, "overloadpacket"):
        return str(target)
    if hasattr(target, "namespace") and hasattr(target, "name"):
        return f"higher_order.{target.name()}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def _fits(made: TensorType, expected: TensorType) -> bool:
    """Whether two types agree in all constant extents; equal size expressions may differ in form."""
    if made.dtype != expected.dtype or len(made.shape) != len(expected.shape):
        return False
    return all((a - b).const in (None, 0) for a, b in zip(made.shape, expected.shape, strict=True))


def _is_missing(args: Any) -> bool:
    return any(_is_missing(a) for a in args) if isinstance(args, list) else isinstance(args, _Missing)
