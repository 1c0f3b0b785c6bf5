"""Version functions with dynamic shapes by their sizes: each version runs the sizes that its schedule was tuned for.

A versioned function is an ordinary function: its body is a chain of conditions on sizes, each with the body of one version.

    if n in 1..1: <version of n = 1>
    else if n in 2..16: <version of 2 to 16>
    else: <version of all other sizes>

Each version is lowered on its own (`lower_versions`), with the ranges of its sizes, or without those that have one value, and with its own
budget of unrolled code.  Code generators make a function of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE, SIZE_RANGES
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import less_than
from tunesmith.ir.specialize import sizes_of, specialize
from tunesmith.ir.stmt import Block, BufferStore, If, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import fresh_copy, substitute, transform, walk_objects
from tunesmith.lower.empty_sizes import empty_version, with_empty_inits
from tunesmith.lower.passes.check_bounds import sites_of
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.size_ranges import SizeRanges, ranges_of
from tunesmith.support.errors import UserError

Lowering = Callable[[PrimFunc, Target], PrimFunc]
LoweredVersion = tuple[Expr, PrimFunc]
"""The condition on sizes under which a version runs, and its lowered function."""

MOST_EMPTY = 4
"""Limit on the sizes of functions that take size 0: the versions for combinations of empty sizes double with each size."""


def with_versions(func: PrimFunc, versions: Sequence[tuple[SizeRanges, PrimFunc]]) -> PrimFunc:
    """A function that runs the first version whose box has the sizes of the call, and otherwise its own body.

    Args:
        func: the schedule for all sizes.
        versions: schedules of the same function, or of the function specialised to the single sizes of the box.
    """
    body, allocs = func.body, list(func.allocs)
    for k, (box, version) in reversed(list(enumerate(versions))):
        made, own = _embedded(version, func, f"v{k}")
        allocs += own
        body = If(box.condition(sizes_of(func)), made, body)
    return func.with_(body=body, allocs=tuple(allocs))


def versions_of(func: PrimFunc) -> tuple[list[tuple[SizeRanges, PrimFunc]], PrimFunc]:
    """The versions of a function, and the function for all other sizes: the inverse of `with_versions`."""
    found: list[tuple[SizeRanges, PrimFunc]] = []
    body = func.body
    while type(body) is If and body.orelse is not None and (box := ranges_of(body.cond, sizes_of(func))) is not None:
        found.append((box, _alone(func, body.then)))
        body = body.orelse
    return found, (_alone(func, body) if found else func)


def lower_versions(func: PrimFunc, target: Target, lowering: Lowering) -> tuple[list[LoweredVersion], PrimFunc]:
    """Lower a function with dynamic shapes for all sizes from 0 on: each version alone, and one for each size that is 0.

    Args:
        func: a concrete function, scheduled or not.
        target: as for `lowering`.
        lowering: a pipeline, which assumes that all sizes are at least 1.  A pipeline with index checks lowers the last version only.

    Returns:
        The versions, of which the first runs whose condition is true, and the function for all other sizes.  A version has the tensors of
        `func` as its parameters, then those of the sizes that are not constants in it.
    """
    versions, rest = versions_of(func)
    out = lowering(with_empty_inits(rest), target)
    is_checked = sites_of(out) is not None
    parts = _empty_parts(rest, target, CPU if is_checked else lowering)
    for box, version in () if is_checked else versions:
        parts.append((box.condition(sizes_of(func)), lowering(with_empty_inits(version_for(version, box)), target)))
    return parts, out


def takes_empty(func: PrimFunc) -> bool:
    """Whether calls of the lowered function may pass size 0: not if a shape or an index is divided by it."""
    sizes = sizes_of(func)
    if len(sizes) > MOST_EMPTY:
        return False
    try:
        made = [empty_version(func, v) for v in sizes]
    except UserError:
        return False
    return all(_is_nothing(f) or takes_empty(f) for f in made)


def _empty_parts(func: PrimFunc, target: Target, lowering: Lowering) -> list[LoweredVersion]:
    """For each size, the condition that it is 0 and the lowered versions for it."""
    parts: list[LoweredVersion] = []
    for v in sizes_of(func) if takes_empty(func) else ():
        made = empty_version(func, v)
        is_empty = less_than(v, 1)
        if sizes_of(made) and not _is_nothing(made):
            inner, made = lower_versions(made, target, lowering)
            parts += [(Binary("and", is_empty, condition), part) for condition, part in inner]
        else:
            made = lowering(made, target)
        parts.append((is_empty, made))
    return parts


def _is_nothing(func: PrimFunc) -> bool:
    return type(func.body) is Seq and not func.body.stmts


def version_for(func: PrimFunc, box: SizeRanges) -> PrimFunc:
    """The function for the sizes of a box, as it is lowered: single sizes are constants, an attribute has the ranges of the others."""
    func = specialize(func, box.single) if box.single else func
    known = {name: (low, high) for name, low, high in box.ranges}
    ends = [(v.name, *known.get(v.name, (1, LARGEST_SIZE))) for v in sizes_of(func)]
    ranges = " ".join(f"{name}={low}..{high}" for name, low, high in ends)
    return func.with_(attrs=tuple(sorted([*func.attrs, (SIZE_RANGES, ranges)]))) if ranges else func


def _alone(func: PrimFunc, body: Stmt) -> PrimFunc:
    """A function of one version's body, with the allocations that it uses."""
    used = {n.buffer for n in walk_objects(body) if type(n) in (BufferLoad, BufferStore)}
    return func.with_(body=body, allocs=tuple([b for b in func.allocs if b in used]))


def _embedded(version: PrimFunc, func: PrimFunc, suffix: str) -> tuple[Stmt, list[Buffer]]:
    """The body of a version in terms of the parameters of `func`, with binders, allocations and block names of its own."""
    buffers: dict[Buffer, Buffer] = {b: b.like() for b in version.allocs}
    allocs = list(buffers.values())
    params = [p for p in func.params if isinstance(p, Buffer)]
    buffers |= dict(zip([p for p in version.params if isinstance(p, Buffer)], params, strict=True))
    body = fresh_copy(substitute(version.body, {}, buffers))
    return transform(body, {Block: lambda b, recurse: b.map_children(recurse).with_(name=f"{b.name}_{suffix}")}), allocs
