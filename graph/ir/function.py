"""Graph functions: a list of bindings over tensors, beside the TIR functions of an IRModule.

Every value is bound once and never overwritten, so all of a function is one dataflow graph, and the order of its bindings is one of its
topological orders.  A size that is not a number is a variable of the function: it is bound where a parameter has it as an extent, and
`assumptions` are further conditions that a caller must meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import TYPE_CHECKING, Any

from tunesmith.graph.ir.node import PRIMITIVE, Call, Operand, Region, Value, all_bindings, expressions
from tunesmith.graph.ir.script_printer import script_of
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Var

if TYPE_CHECKING:
    from tunesmith.ir.script.printer import Printer


@dataclass(frozen=True, eq=False, slots=True)
class GraphFunc:
    """A function over tensors.

    Attributes:
        name: in its module.
        params: arguments, in order.
        body: what it computes; the results of the body are those of the function.
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
        """Whether it is the body of one TIR function, that is to say a group of calls which `fuse_operators` made."""
        return self.attr(PRIMITIVE) is not None

    @property
    def codegen(self) -> str | None:
        """The external code generator whose function it is; passes leave such a function alone.  None of all others."""
        return self.attr("codegen")

    @property
    def results(self) -> tuple[Operand, ...]:
        """What it returns."""
        return self.body.results

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The variables in the shapes of its parameters, then those in attributes only, in order of first use."""
        found = [e for p in self.params for e in p.type.shape]
        for b in all_bindings(self.body):
            found += [] if not isinstance(b.operation, Call) else [e for _, value in b.operation.attrs for e in expressions(value)]
        return tuple(dict.fromkeys(v for e in found for v in sorted(e.vars, key=lambda v: v.key)))

    @property
    def bound_sizes(self) -> tuple[Var, ...]:
        """The sizes that a call binds, in order.

        Those are variables that a parameter has as an extent by themselves, in order of first use.  Calls of a function with the attribute
        `primitive` give all of its `sizes` instead.
        """
        if self.is_primitive:
            return self.sizes
        bare = [e.as_var() for p in self.params for e in p.type.shape]
        return tuple(dict.fromkeys(v for v in bare if v is not None))

    def script(self, name: str | None = None) -> str:
        """Program text that parses back; see `graph.ir.script_printer`."""
        return script_of(self if name is None else self.with_(name=name))

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Add the lines of the function to those of a printer, under the given name."""
        printer.lines += indent(self.script(name), "    " * depth).split("\n")

    def __str__(self) -> str:
        return self.script()
