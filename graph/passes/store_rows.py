"""Give loops the functions that store the rows of their iterations: equal rows share one function."""

from __future__ import annotations

from dataclasses import replace

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Loop, Region, TensorType, with_branches
from tunesmith.graph.ir.outline import Outlined
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore, Iter, nest
from tunesmith.support.unique_names import unique_names

COPIES_ROW = "copies_row"
"""Attribute of functions that copy a row whose number is an argument: they have the default schedule, and are not tuned."""


def with_stores(mod: IRModule) -> IRModule:
    """Add the functions to the module, and their names to the loops that have none."""
    made = _Stores(mod)
    functions = {}
    for name, f in mod.items():
        if isinstance(f, GraphFunc) and (body := made.region(f.body)) is not f.body:
            functions[name] = f.with_(body=body)
    return mod.update({**functions, **made.functions}) if functions else mod


class _Stores:
    def __init__(self, mod: IRModule) -> None:
        self._fresh = Outlined(mod).fresh
        self._names: dict[tuple[TensorType, int], str] = {}
        self.functions: dict[str, PrimFunc] = {}

    def region(self, region: Region) -> Region:
        bindings = tuple([self._binding(b) for b in region.bindings])
        same = all(new is old for new, old in zip(bindings, region.bindings, strict=True))
        return region if same else Region(bindings, region.results)

    def _binding(self, b: Binding) -> Binding:
        b = with_branches(b, self.region)
        op = b.operation
        if not isinstance(op, Loop) or op.stores or len(b.results) == len(op.params):
            return b
        rows = [r.type for r in op.body.results[len(op.params) :]]
        return Binding(b.results, replace(op, stores=tuple([self._name(t, op.trips) for t in rows])))

    def _name(self, row: TensorType, count: int) -> str:
        if (row, count) not in self._names:
            name = self._names[row, count] = self._fresh("store_row")
            self.functions[name] = store_row(row, count, name)
        return self._names[row, count]


def sizes_of_row(row: TensorType) -> tuple[Var, ...]:
    """The sizes of a row, in the order in which its function takes them."""
    return tuple(dict.fromkeys(v for e in row.shape for v in sorted(e.vars, key=lambda v: v.key)))


def store_row(row: TensorType, count: int, name: str) -> PrimFunc:
    """The function of a row, the tensor of all rows, the number of the row, and the sizes of its shape: it stores the row there."""
    sizes = sizes_of_row(row)
    t, *renamed = [Var(n) for n in unique_names(["t", *[v.name for v in sizes]])]
    shape = tuple([substitute(e, dict(zip(sizes, map(poly, renamed), strict=True))) for e in row.shape])
    source, target = Buffer("row", shape, row.dtype), Buffer("rows", (poly(count), *shape), row.dtype)
    params: tuple[Buffer | Var, ...] = (source, target, t, *renamed)
    loops = [(Var(f"i{d}"), e) for d, e in enumerate(shape)]
    iters = tuple([Iter(Var(f"v_{v.name}"), e, "S") for v, e in loops])
    at = tuple([poly(i.var) for i in iters])
    store = BufferStore(target, (poly(t), *at), BufferLoad(source, at))
    body = nest(loops, Block("store", iters, tuple([poly(v) for v, _ in loops]), (), None, store))
    return PrimFunc(name, params, (), body, ((COPIES_ROW, "1"),))
