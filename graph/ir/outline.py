"""Outline groups of calls: move a group into a function of the module and replace it by a call.

Functions are named after their operators, and parameters after the operand names of the operators rather than after values, so equal
groups have equal text and share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunesmith.graph.ir import structural
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, Operand, Region, Value, used
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.poly import poly
from tunesmith.support.errors import InternalError


class Outlined:
    """The functions outlined so far, without duplicates.

    Args:
        taken: names in use in the module.
    Attributes:
        functions: outlined functions by name.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self.functions: dict[str, GraphFunc] = {}
        self._taken = set(taken)
        self._names: dict[str, str] = {}

    def call(
        self, members: Sequence[Binding], name: str, mark: tuple[str, str], inside: Callable[[Operand], bool] = lambda o: False
    ) -> Binding:
        """Outline a group; the result is a call of its function that binds the results of the last call of the group.

        Args:
            members: bindings of operator calls, in order; only results of the last one are used outside the group.
            name: preferred name of the function; a number is appended if it is taken.
            mark: an attribute of the function.  If operands of this call are constants, the function also has the attribute "constants":
                the positions of those parameters.
            inside: whether a constant stays in the function; all other constants are passed to it.
        """
        made = {v for b in members for v in b.results}
        params: dict[Operand, Value] = {}
        for call in map(_call_of, members):
            for i, o in enumerate(call.args):
                if o not in made and not inside(o) and o not in params:
                    params[o] = Value(_fresh(GRAPH_OPERATORS.get(call.operator).operand_name(i), params.values()), o.type)
        positions = " ".join(str(i) for i, o in enumerate(params) if isinstance(o, Constant))
        env: dict[Operand, Operand] = dict(params)
        bindings = []
        for b in members:
            call = _call_of(b)
            results = tuple([Value(v.name, v.type) for v in b.results])
            bindings.append(Binding(results, Call(call.operator, tuple([env.get(a, a) for a in call.args]), call.attrs)))
            env.update(zip(b.results, results, strict=True))
        attrs = tuple(sorted([*([("constants", positions)] if positions else []), mark]))
        func = GraphFunc(name, tuple(params.values()), Region(tuple(bindings), bindings[-1].results), attrs)
        return Binding(members[-1].results, CallFunction(self._add(func), tuple(params), tuple([poly(v) for v in func.sizes])))

    def _add(self, func: GraphFunc) -> str:
        """The name of `func` in the module."""
        key = structural.digest(func.with_(name=""))
        if key not in self._names:
            name = self._names[key] = self.fresh(func.name)
            self.functions[name] = func.with_(name=name)
        return self._names[key]

    def fresh(self, name: str) -> str:
        """The name, with a number appended if it is taken; it is taken from now on."""
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found


def _call_of(b: Binding) -> Call:
    if not isinstance(b.operation, Call):
        raise InternalError(f"cannot outline a {type(b.operation).__name__}: only operator calls can be outlined")
    return b.operation


def _fresh(name: str, taken: Iterable[Value]) -> str:
    names, fresh, count = {v.name for v in taken}, name, 1
    while fresh in names:
        count += 1
        fresh = f"{name}{count}"
    return fresh


def users_of(region: Region) -> list[list[int]]:
    """The positions of the users of each binding; a result of the region has the position after the last binding as a user."""
    made = {v: i for i, b in enumerate(region.bindings) for v in b.results}
    users: list[list[int]] = [[] for _ in region.bindings]
    for i, operands in enumerate([*[used(b.operation) for b in region.bindings], region.results]):
        for j in sorted({made[o] for o in operands if isinstance(o, Value) and o in made}):
            users[j].append(i)
    return users
