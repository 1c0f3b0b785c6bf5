"""Convert the loops of torch's higher-order operators: while_loop, scan, map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tunesmith.graph.importers.torch.call import SizeNumber, TorchCall, converts
from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.node import Operand, TensorType
from tunesmith.ir.poly import Poly, Var


def _carried(call: TorchCall, value: Any) -> Operand:
    """A value that a loop carries, as a tensor."""
    if isinstance(value, SizeNumber):
        return call.operand(value, value.dtype)
    if isinstance(value, (bool, int, float, Poly)):
        return call.operand(value, "bool" if isinstance(value, bool) else "float64" if isinstance(value, float) else "int64")
    made: Operand = value
    return made


def _converted(call: TorchCall, module: Any, args: Sequence[Any], builder: RegionBuilder, types: Sequence[TensorType]) -> list[Operand]:
    """The results of a sub-graph as tensors, the first ones of these types."""
    region = call.region
    if region is None:
        call.refuse("it has sub-graphs, but the call has no region converter")
    inside = replace(call, builder=builder)
    made = [_carried(inside, v) for v in region(module, args, builder)]
    return [inside.operand(v, t.dtype) for v, t in zip(made, types, strict=False)] + made[len(types) :]


@converts("higher_order.while_loop")
def while_loop(call: TorchCall, condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Sequence[Operand]:
    """A loop that runs as long as a condition of the carried values holds."""
    initial = [_carried(call, v) for v in carried]
    types = [o.type for o in initial]

    def decide(b: RegionBuilder, *params: Operand) -> Operand:
        (made,) = _converted(call, condition, [*params, *additional], b, [TensorType((), "bool")])
        return replace(call, builder=b).reshaped(made, ())

    def step(b: RegionBuilder, *params: Operand) -> list[Operand]:
        return _converted(call, body, [*params, *additional], b, types)

    return call.builder.while_loop(initial, decide, step, name=call.name)


def _trips(call: TorchCall, rows: Sequence[Operand]) -> int:
    """The number of rows, which is that of iterations."""
    found = rows[0].type.shape[0].const
    if found is None:
        call.refuse("its number of iterations is a dynamic size; give the axis a fixed size, or write a while_loop")
    return found


@converts("higher_order.scan")
def scan(call: TorchCall, body: Any, initial: Sequence[Any], rows: Sequence[Operand], additional: Sequence[Any] = ()) -> Sequence[Operand]:
    """A loop over the rows of tensors, whose results are the carried values, and the other results of all iterations as rows."""
    first = [_carried(call, v) for v in initial]
    types = [o.type for o in first]

    def step(b: RegionBuilder, index: Var, *params: Operand) -> tuple[list[Operand], list[Operand]]:
        given = [b.call("row", r, index=index, name=call.name) for r in rows]
        made = _converted(call, body, [*params, *given, *additional], b, types)
        return made[: len(types)], made[len(types) :]

    return call.builder.loop(_trips(call, rows), first, step, name=call.name)


@converts("higher_order.map_impl")
def map_(call: TorchCall, body: Any, rows: Sequence[Operand], additional: Sequence[Any] = ()) -> Sequence[Operand]:
    """The results of a function for all rows of tensors."""
    return scan(call, body, (), rows, additional)


@contextmanager
def distinct_operands(torch: Any, program: Any) -> Iterator[None]:
    """Within the context, no tensor that a loop of the program carries is used in it by itself as well.

    torch does not decompose such programs; they come from functions that use the initial value of what they carry.
    """
    copies = []
    for module in [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]:
        for node in module.graph.nodes:
            if str(node.target) != "while_loop" or len(node.args) < 4:
                continue
            condition, body, carried, additional = node.args
            changed = []
            for operand in carried:
                if isinstance(operand, torch.fx.Node) and (operand in additional or operand in changed):
                    with module.graph.inserting_before(node):
                        made = module.graph.call_function(torch.ops.aten.clone.default, (operand,))
                    made.meta["val"] = operand.meta.get("val")
                    copies.append((module, made, operand))
                    operand = made
                changed.append(operand)
            node.args = (condition, body, tuple(changed), additional)
    for module in {id(m): m for m, _, _ in copies}.values():
        module.recompile()
    try:
        yield
    finally:
        for module, made, operand in copies:
            made.replace_all_uses_with(operand)
            module.graph.erase_node(made)
            module.recompile()
