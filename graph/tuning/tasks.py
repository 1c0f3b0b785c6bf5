"""Task extraction: the TIR functions that a model's time is spent in, each once, with the number of times a run calls it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, all_bindings
from tunesmith.graph.tuning.apply_records import why_plain
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.support.errors import UserError


@dataclass(frozen=True, slots=True)
class ExtractedTask:
    """A function to be tuned.

    Attributes:
        name: of the first function with this program.
        func: the program, not scheduled.
        digest: its identity, the key of its records.
        weight: calls of it, or of functions with the same program, in one run of the entry; calls in both regions of an `if` count.
    """

    name: str
    func: PrimFunc
    digest: str
    weight: int


def extract_tasks(mod: IRModule, entry: str = "main") -> list[ExtractedTask]:
    """The tasks of a legalised module, in the order of first calls.

    Functions whose schedules are not searched for (`apply_records.why_plain`) are left out.

    Raises:
        UserError: there is no graph function `entry`.
    """
    main = mod[entry]
    if not isinstance(main, GraphFunc):
        raise UserError(f"tasks are extracted from a graph function, and {entry!r} is a {type(main).__name__}")
    found: dict[str, ExtractedTask] = {}
    digests: dict[str, str] = {}
    for b in _calls(mod, main):
        assert isinstance(b.operation, CallFunction)
        name = b.operation.function
        func = mod[name]
        if not isinstance(func, PrimFunc) or why_plain(func):
            continue
        if name not in digests:
            digests[name] = structural.digest(func)
        key = digests[name]
        old = found.get(key)
        found[key] = ExtractedTask(name, func, key, 1) if old is None else ExtractedTask(old.name, old.func, key, old.weight + 1)
    return list(found.values())


def _calls(mod: IRModule, func: GraphFunc) -> Iterator[Binding]:
    """Calls of TIR functions, also those inside graph functions that are called."""
    for b in all_bindings(func.body):
        if isinstance(b.operation, CallFunction):
            callee = mod[b.operation.function]
            if isinstance(callee, GraphFunc):
                yield from _calls(mod, callee)
            else:
                yield b
