"""Generate IR node classes from annotated fields: slots, constructor and `map_children`.

Nodes are immutable by contract.  The type checker treats them as frozen; at run time they are plain slotted objects (three times cheaper to
build than frozen dataclasses) unless `TUNESMITH_CHECK=1` is set, as in the tests.  `map_children` is generated source, not reflection, and
returns the same object if no child changed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

CHECK = os.environ.get("TUNESMITH_CHECK", "") == "1"

_T = TypeVar("_T")
_CHILD = frozenset({"Expr", "Stmt", "Poly", "Iter"})


class Node:
    """Base class of expressions and statements.  `==` is identity; `structural.equal` compares structure."""

    __slots__ = ("__weakref__",)
    fields: ClassVar[tuple[str, ...]] = ()
    children: ClassVar[tuple[str, ...]] = ()

    def map_children(self, f: Callable[[Any], Any]) -> Self:
        """The node with `f` applied to every child expression and statement; `self` if nothing changed."""
        raise NotImplementedError

    def each_child(self, f: Callable[[Any], Any]) -> None:
        """Call `f` on every child expression and statement, in field order."""
        raise NotImplementedError

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields replaced."""
        values = [changes.pop(n) if n in changes else getattr(self, n) for n in self.fields]
        if changes:
            raise TypeError(f"{type(self).__name__} has no field {sorted(changes)}; fields: {', '.join(self.fields)}")
        return type(self)(*values)


def _refuse(self: Any, name: str, value: object) -> None:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be set: IR nodes never change, use with_()")


def _restore(self: Any, state: tuple[None, dict[str, object]]) -> None:
    """Set the fields of an unpickled node, which has no other state."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type[_T]) -> type[_T]:
    """Make `cls` an IR node: annotated names become constructor arguments, in order, with their defaults.

    A field annotated `Expr`, `Stmt`, `Poly`, `Iter`, `... | None` or `tuple[those, ...]` is a child.
    """
    hints: dict[str, str] = {k: v for k, v in inspect.get_annotations(cls).items() if not v.startswith("ClassVar")}
    names = tuple(hints)
    defaults = {n: cls.__dict__[n] for n in names if n in cls.__dict__}
    single = [n for n in names if hints[n].removesuffix(" | None") in _CHILD]
    many = [n for n in names if hints[n].startswith("tuple[") and hints[n][6:].split(",")[0].rstrip("]") in _CHILD]
    env: dict[str, Any] = {f"_d_{n}": v for n, v in defaults.items()}
    args = ", ".join(f"{n}=_d_{n}" if n in defaults else n for n in names)
    setter = "\n".join(f"    _set(self, {n!r}, {n})" if CHECK else f"    self.{n} = {n}" for n in names)
    src = [f"def __init__(self, {args}):\n{setter or '    pass'}", "def map_children(self, f):", "def each_child(self, f):"]
    for n in names:
        if n in single:
            src[1] += f"\n    {n} = self.{n}\n    if {n} is not None: {n} = f({n})"
            src[2] += f"\n    if self.{n} is not None: f(self.{n})"
        elif n in many:
            src[1] += f"\n    {n} = tuple(map(f, self.{n}))\n    for a, b in zip({n}, self.{n}):"
            src[1] += f"\n        if a is not b: break\n    else: {n} = self.{n}"
            src[2] += f"\n    for x in self.{n}: f(x)"
    kids = [n for n in names if n in single or n in many]
    if kids:
        same = " and ".join(f"{n} is self.{n}" for n in kids)
        src[1] += f"\n    if {same}: return self\n    return C({', '.join(n if n in kids else f'self.{n}' for n in names)})"
    else:
        src[1] += "\n    return self"
        src[2] += "\n    pass"
    env["_set"] = object.__setattr__
    exec("\n".join(src), env)
    body = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__", *defaults)}
    body.update(__slots__=names, fields=names, children=tuple(kids), __init__=env["__init__"], __match_args__=names)
    if "map_children" not in cls.__dict__:
        body.update(map_children=env["map_children"], each_child=env["each_child"])
    if CHECK:
        body["__setattr__"] = _refuse
        body["__setstate__"] = _restore
    make: Any = type(cls)
    made = make(cls.__name__, cls.__bases__, body)
    env["C"] = made
    if "__init_node__" in cls.__dict__:
        plain = env["__init__"]

        def init(self: Any, *a: Any, **k: Any) -> None:
            plain(self, *a, **k)
            self.__init_node__()

        made.__init__ = init
    return made
