"""Define graph functions, which are lists of bindings over tensors, for modules that also hold TIR functions.

Every value is bound once and never overwritten, so a function is one dataflow graph and its bindings are in a topological order.
A dynamic size is a variable of the function, bound by a parameter that has it as an extent; `assumptions` are further conditions
on sizes that a caller must meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import TYPE_CHECKING, Any

from tunesmith.graph.ir.node import PRIMITIVE, RESULT_NAMES, Call, Operand, Region, Value, all_bindings, defined_sizes, expressions
from tunesmith.graph.ir.script_printer import script_of
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Var
from tunesmith.ir.script.shown import ShownAsScript

if TYPE_CHECKING:
    from tunesmith.ir.script.printer import Printer


@dataclass(frozen=True, eq=False, slots=True)
class GraphFunc(ShownAsScript):
    """A function over tensors.

    Attributes:
        name: name in the module.
        params: parameters, in order.
        body: bindings and results of the function.
        attrs: sorted (key, text) pairs.
        assumptions: conditions on sizes that hold in every call; executors check them.
    """

    name: str
    params: tuple[Value, ...]
    body: Region
    attrs: tuple[tuple[str, str], ...] = ()
    assumptions: tuple[Expr, ...] = field(default=())

    def with_(self, **changes: Any) -> GraphFunc:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def attr(self, key: str) -> str | None:
        """The value of an attribute, None when absent."""
        return dict(self.attrs).get(key)

    @property
    def is_primitive(self) -> bool:
        """Whether the function is lowered to one TIR function: a group of calls made by `fuse_operators`."""
        return self.attr(PRIMITIVE) is not None

    @property
    def codegen(self) -> str | None:
        """Name of the external code generator that compiles the function, else None; passes leave such a function unchanged."""
        return self.attr("codegen")

    @property
    def results(self) -> tuple[Operand, ...]:
        """The results of the body."""
        return self.body.results

    @property
    def result_names(self) -> tuple[str, ...]:
        """The names of the results: those of `with_result_names`, and for results without one the names of the values."""
        given = json.loads(self.attr(RESULT_NAMES) or "[]")
        return tuple([*given, *[r.name for r in self.results[len(given) :]]][: len(self.results)])

    def with_result_names(self, names: Iterable[str]) -> GraphFunc:
        """A copy whose results have these names, in order, whatever passes do to the values."""
        attrs = {**dict(self.attrs), RESULT_NAMES: json.dumps(list(names))}
        return replace(self, attrs=tuple(sorted(attrs.items())))

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The variables in parameter shapes, then those only in attributes, in order of first use; without those that the body defines."""
        found = [e for p in self.params for e in p.type.shape]
        inner = defined_sizes(self.body)
        for b in all_bindings(self.body):
            found += [] if not isinstance(b.operation, Call) else [e for _, value in b.operation.attrs for e in expressions(value)]
        return tuple(dict.fromkeys(v for e in found for v in sorted(e.vars, key=lambda v: v.key) if v not in inner))

    @property
    def bound_sizes(self) -> tuple[Var, ...]:
        """The sizes that a call binds, in order.

        These are the variables that are an extent of a parameter by themselves, in order of first use.  A call of a function with the
        attribute `primitive` passes all of its `sizes` instead.
        """
        if self.is_primitive:
            return self.sizes
        bare = [e.as_var() for p in self.params for e in p.type.shape]
        return tuple(dict.fromkeys(v for v in bare if v is not None))

    def script(self, name: str | None = None) -> str:
        """Script text that parses back; see `graph.ir.script_printer`."""
        return script_of(self if name is None else self.with_(name=name))

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Append the lines of the function to a printer, under the given name."""
        printer.lines += indent(self.script(name), "    " * depth).split("\n")

    def __str__(self) -> str:
        return self.script()

    def __repr__(self) -> str:
        params = [f"{p.name}: {p.type.dtype}[{', '.join(map(str, p.type.shape))}]" for p in self.params]
        return f"<GraphFunc {self.name}({', '.join(params)})>"
