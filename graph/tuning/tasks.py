"""Extract tuning tasks from a model: the distinct tunable TIR functions, weighted by their calls in one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import CallFunction, Loop, Region, While, constants, regions
from tunesmith.graph.passes.store_rows import COPIES_ROW
from tunesmith.graph.tuning.choose_parts import parts_of
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Poly, Var, substitute
from tunesmith.support.errors import UserError


@dataclass(frozen=True, slots=True)
class ExtractedTask:
    """A function to be tuned.

    Attributes:
        name: name of the first function with this program.
        func: the unscheduled program.
        digest: digest of the program, the key of its records.
        weight: number of calls of functions with this program in one run of the entry; calls in both regions of an `if` are counted, and
            those in a loop once for each iteration.
        in_loop: whether only loops call the function, whose constants fit in CACHED_BYTES, so that each iteration but the first takes them
            from a cache.
        sizes: for a function with dynamic shapes, the distinct sizes of its calls, expressions of the sizes of the entry.
    """

    name: str
    func: PrimFunc
    digest: str
    weight: int
    in_loop: bool = False
    sizes: tuple[tuple[Poly, ...], ...] = ()


CACHED_BYTES = 32 << 20
"""Size of the constants of a loop that stay in the last-level cache from one iteration to the next."""


def extract_tasks(mod: IRModule, entry: str = "main") -> list[ExtractedTask]:
    """The tasks of a legalised module, in the order of first calls.

    Raises:
        UserError: `entry` is not a graph function.
    """
    main = mod[entry]
    if not isinstance(main, GraphFunc):
        raise UserError(f"tasks are extracted from a graph function, but {entry!r} is a {type(main).__name__}")
    found: dict[str, ExtractedTask] = {}
    digests: dict[str, str] = {}
    for call, sizes, count, in_loop in _calls(mod, main.body, {}, 1, False, frozenset((entry,))):
        name = call.function
        func = mod[name]
        if not isinstance(func, PrimFunc) or func.attr(COPIES_ROW) is not None:
            continue
        if name not in digests:
            digests[name] = structural.digest(func)
        key = digests[name]
        old = found.setdefault(key, ExtractedTask(name, func, key, 0, True))
        known = dict.fromkeys([*old.sizes, *([sizes] if sizes else [])])
        found[key] = ExtractedTask(old.name, old.func, key, old.weight + count, old.in_loop and in_loop, tuple(known))
    return list(found.values())


def _calls(
    mod: IRModule, region: Region, bound: Mapping[Var, Poly], count: int = 1, in_loop: bool = False, inside: frozenset[str] = frozenset()
) -> Iterator[tuple[CallFunction, tuple[Poly, ...], int, bool]]:
    """The calls of functions other than graph functions, including those in called graph functions, with the sizes that they pass, the
    number of their executions, and whether a loop repeats them with constants that stay in a cache.

    `bound` are the sizes of the region in terms of those of the entry, `count` is the number of its executions, `inside` are the graph
    functions that contain it: a recursive call is counted once.
    """
    for b in region.bindings:
        op = b.operation
        for inner in regions(op):
            trips = op.trips if isinstance(op, Loop) else 1
            repeats = trips > 1 or isinstance(op, While)
            cached = repeats and sum(c.data.nbytes for c in constants(inner)) <= CACHED_BYTES
            yield from _calls(mod, inner, bound, count * trips, cached or (in_loop and not repeats), inside)
        if not isinstance(op, CallFunction):
            continue
        callee = mod[op.function]
        if isinstance(callee, GraphFunc) and op.function in inside:
            continue
        if isinstance(callee, GraphFunc):
            sizes: dict[Var, Poly] = {}
            for a, p in zip(op.args, callee.params, strict=True):
                for given, extent in zip(a.type.shape, p.type.shape, strict=True):
                    if (v := extent.as_var()) is not None:
                        sizes.setdefault(v, substitute(given, bound))
            yield from _calls(mod, callee.body, sizes, count, in_loop, inside | {op.function})
        else:
            yield op, tuple([substitute(s, bound) for s in op.sizes]), count, in_loop
            for parts in parts_of(mod, op.function):
                yield from _calls(mod, parts.body, {}, count, in_loop, inside)
