"""Extract tuning tasks from a model: the distinct tunable TIR functions, weighted by their calls in one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, all_bindings
from tunesmith.graph.tuning.apply_records import why_not_tunable
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.support.errors import UserError


@dataclass(frozen=True, slots=True)
class ExtractedTask:
    """A function to be tuned.

    Attributes:
        name: name of the first function with this program.
        func: the unscheduled program.
        digest: digest of the program, the key of its records.
        weight: number of calls of functions with this program in one run of the entry; calls in both regions of an `if` are counted.
    """

    name: str
    func: PrimFunc
    digest: str
    weight: int


def extract_tasks(mod: IRModule, entry: str = "main") -> list[ExtractedTask]:
    """The tasks of a legalised module, in the order of first calls.

    Functions that are not tunable (`apply_records.why_not_tunable`) are skipped.

    Raises:
        UserError: `entry` is not a graph function.
    """
    main = mod[entry]
    if not isinstance(main, GraphFunc):
        raise UserError(f"tasks are extracted from a graph function, but {entry!r} is a {type(main).__name__}")
    found: dict[str, ExtractedTask] = {}
    digests: dict[str, str] = {}
    for b in _calls(mod, main):
        assert isinstance(b.operation, CallFunction)
        name = b.operation.function
        func = mod[name]
        if not isinstance(func, PrimFunc) or why_not_tunable(func):
            continue
        if name not in digests:
            digests[name] = structural.digest(func)
        key = digests[name]
        old = found.get(key)
        found[key] = ExtractedTask(name, func, key, 1) if old is None else ExtractedTask(old.name, old.func, key, old.weight + 1)
    return list(found.values())


def _calls(mod: IRModule, func: GraphFunc) -> Iterator[Binding]:
    """The calls of functions other than graph functions, including those in called graph functions."""
    for b in all_bindings(func.body):
        if isinstance(b.operation, CallFunction):
            callee = mod[b.operation.function]
            if isinstance(callee, GraphFunc):
                yield from _calls(mod, callee)
            else:
                yield b
