"""Find the graph functions that a graph function calls, and those that call themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import CallFunction, all_bindings


def called_functions(mod: Mapping[str, Any], name: str) -> frozenset[str]:
    """The names of the graph functions that a graph function of a module calls, directly or through others."""
    found: set[str] = set()
    stack = [name]
    while stack:
        func = mod[stack.pop()]
        called = {b.operation.function for b in all_bindings(func.body) if isinstance(b.operation, CallFunction)}
        new = {c for c in called - found if isinstance(mod.get(c), GraphFunc)}
        found |= new
        stack += new
    return frozenset(found)


def recursive_functions(mod: Mapping[str, Any]) -> frozenset[str]:
    """The names of the graph functions of a module that call themselves, directly or through others."""
    return frozenset([name for name, f in mod.items() if isinstance(f, GraphFunc) and name in called_functions(mod, name)])
