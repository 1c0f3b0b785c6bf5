"""Replace dynamic sizes of a graph function by numbers, so that it can be tuned and its memory planned."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.instantiate import Instance
from tunesmith.ir.expr import Const
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.script.printer import script
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.errors import UserError


def bind_sizes(mod: IRModule, sizes: Mapping[str, int], name: str = "main") -> IRModule:
    """Replace sizes of one graph function by numbers.

    Args:
        mod: the module.
        sizes: size name -> number.
        name: name of the function.
    Raises:
        UserError: the function has no such size, or an assumption on its sizes does not hold.
    """
    func = mod[name]
    known = {v.name: v for v in func.sizes} if isinstance(func, GraphFunc) else {}
    unknown = sorted(sizes.keys() - known.keys())
    if unknown:
        raise UserError(f"{name} has no size {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    return mod.update({name: _Binder({known[n]: poly(number) for n, number in sizes.items()}).function(func)})


class _Binder(Instance):
    def __init__(self, values: Mapping[Var, Poly]) -> None:
        super().__init__({}, values)
        self._values = values

    def function(self, func: GraphFunc) -> GraphFunc:
        params = tuple([self.value(p) for p in func.params])
        simplify = Simplifier({v: (1, 2**31 - 1) for v in func.sizes})
        remaining = []
        for condition in func.assumptions:
            bound = simplify(condition.map_children(self._index))
            if not isinstance(bound, Const):
                remaining.append(bound)
            elif not bound.value:
                numbers = ", ".join(f"{v.name} = {n}" for v, n in self._values.items())
                raise UserError(f"{func.name} assumes {script(condition)}, which does not hold with {numbers}")
        return func.with_(params=params, body=self.region(func.body), assumptions=tuple(remaining))

    def _index(self, p: object) -> object:
        return substitute(p, self._values) if isinstance(p, Poly) else p.map_children(self._index)  # type: ignore[attr-defined]
