"""Declare PrimFunc, a function over buffers, and IRModule, a set of functions by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.node import node
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.script.printer import script
from tunesmith.ir.script.shown import ShownAsScript
from tunesmith.ir.stmt import Annotations, Stmt
from tunesmith.support.errors import ScriptError

if TYPE_CHECKING:
    from tunesmith.ir.script.printer import Printer

SHOWN_NAMES = 4
"""Names of functions in the `repr` of a module."""


@node
class PrimFunc(ShownAsScript):
    """A function with buffer (or index scalar) arguments and a TIR body.

    Attributes:
        name: the exported name.
        params: arguments, in order; outputs are ordinary arguments that the body writes.
        allocs: buffers allocated for the duration of the call; lowering assigns their storage.
        body: the program.
        attrs: sorted (key, value) pairs; values are text or index expressions.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    allocs: tuple[Buffer, ...]
    body: Stmt
    attrs: Annotations = ()

    def with_(self, **changes: Any) -> PrimFunc:
        """A copy with some fields replaced."""
        unknown = set(changes) - {"name", "params", "allocs", "body", "attrs"}
        if unknown:
            raise TypeError(f"PrimFunc has no field {sorted(unknown)}")
        return PrimFunc(
            changes.get("name", self.name),
            changes.get("params", self.params),
            changes.get("allocs", self.allocs),
            changes.get("body", self.body),
            changes.get("attrs", self.attrs),
        )

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Parameter buffers, then allocations."""
        return (*[p for p in self.params if isinstance(p, Buffer)], *self.allocs)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the parameters that have the same values in all calls, mostly weights, so that they can be repacked to another layout
        ahead of time (attribute `constants`, names separated by blanks)."""
        value = self.attr("constants")
        return tuple(value.split()) if isinstance(value, str) else ()

    def attr(self, key: str) -> str | Poly | None:
        """The value of an attribute, None if absent."""
        return next((v for k, v in self.attrs if k == key), None)

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Append the lines of the function to a printer; `name` replaces the function's name, for the key in a module."""
        printer.function(self, depth)

    def __str__(self) -> str:
        return script(self)

    def __repr__(self) -> str:
        return f"<PrimFunc {self.name}({', '.join(map(repr, self.params))})>"


class IRModule(ShownAsScript, Mapping[str, Any]):
    """TIR and graph functions by name.  Immutable; `update` returns a new module."""

    __slots__ = ("functions",)

    def __init__(self, functions: Mapping[str, Any] | Iterable[PrimFunc] = ()) -> None:
        items = functions.items() if isinstance(functions, Mapping) else [(f.name, f) for f in functions]
        self.functions: dict[str, Any] = {}
        for name, f in items:
            if name in self.functions:
                raise ScriptError(f"two functions of the module are named {name!r}")
            self.functions[name] = f if not isinstance(f, PrimFunc) or f.name == name else f.with_(name=name)

    def __getitem__(self, name: str) -> Any:
        if name not in self.functions:
            raise ScriptError(f"the module has no function {name!r}; it has {', '.join(self.functions) or 'none'}")
        return self.functions[name]

    def __contains__(self, name: object) -> bool:
        return name in self.functions

    def get(self, name: str, default: Any = None) -> Any:
        """The function `name`, or `default` if there is none."""
        return self.functions.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Append the lines of all functions to a printer."""
        printer.module(self)

    def __str__(self) -> str:
        return script(self)

    def __repr__(self) -> str:
        names = list(self.functions)
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        return f"<IRModule of {', '.join(names[:SHOWN_NAMES]) or 'no functions'}{more}>"

    def update(self, functions: Mapping[str, Any]) -> IRModule:
        """A module with `functions` added or replaced."""
        return IRModule({**self.functions, **functions})
