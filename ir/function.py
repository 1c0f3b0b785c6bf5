"""PrimFunc, a function over buffers, and IRModule, functions by name with a target-independent set of attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.node import node
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import Annotations, Stmt
from tunesmith.support.errors import ScriptError

if TYPE_CHECKING:
    from tunesmith.ir.script.printer import Printer


@node
class PrimFunc:
    """A function whose arguments are buffers (or index scalars) and whose body is TIR.

    Attributes:
        name: the exported name.
        params: arguments, in order; outputs are ordinary arguments that the body writes.
        allocs: buffers that live during the call; lowering decides where they are placed.
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
        """Names of the parameters that hold the same values in all calls, weights mostly, so that a copy in another layout may be
        made ahead (attribute `constants`, names divided by blanks)."""
        value = self.attr("constants")
        return tuple(value.split()) if isinstance(value, str) else ()

    def attr(self, key: str) -> str | Poly | None:
        """The value of an attribute, None when absent."""
        return next((v for k, v in self.attrs if k == key), None)

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Add the lines of the function to those of a printer; in a module it has the name of its key."""
        printer.function(self, depth)

    def __str__(self) -> str:
        return script(self)


class IRModule(Mapping[str, Any]):
    """Functions by name: TIR functions now, graph functions beside them.  Immutable; `update` gives a new module."""

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
        """The function of that name, or the default."""
        return self.functions.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def print_on(self, printer: Printer, depth: int, name: str | None = None) -> None:
        """Add the lines of all functions to those of a printer."""
        printer.module(self)

    def __str__(self) -> str:
        return script(self)

    def update(self, functions: Mapping[str, Any]) -> IRModule:
        """A module in which `functions` replace or join the present ones."""
        return IRModule({**self.functions, **functions})
