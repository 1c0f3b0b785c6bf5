"""Diagnose well-formed programs that are probably mistakes: a reduction without an init, or a spatial axis that is reduced over.

`refuse_uninitialised` and `refuse_undetermined` reject programs without a meaning: a local buffer that is only updated and never
initialised, and a size that no argument determines.  `remarks` describes legal but unusual programs, such as accumulation into an argument
or a recurrence over an axis; `tunesmith show`, `tune` and `CompiledModule.remarks` report them.  Only an init that every iteration of an
axis repeats is also a Python warning.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Param, Poly, Var
from tunesmith.ir.stmt import Allocate, BindIndex, Block, BufferStore, For, If, While
from tunesmith.ir.visit import walk_objects
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Remark:
    """A diagnostic about a block.

    Attributes:
        label: `accumulates-into-argument`, `init-repeated`, `accumulates-over-spatial` or `overwrites`.
        block: name of the block.
        message: what the block does, and what to write if that is not intended.
    """

    label: str
    block: str
    message: str

    def __str__(self) -> str:
        return f"block {self.block}: {self.message} [{self.label}]"


class ProgramWarning(UserWarning):
    """A legal program that is probably a mistake."""


def checked(func: PrimFunc) -> list[Remark]:
    """The remarks about a function passed by a user for compiling or tuning; `init-repeated` is also issued as a Python warning.

    Raises:
        ScriptError: see `refuse_undetermined` and `refuse_uninitialised`.
    """
    refuse_undetermined(func)
    refuse_uninitialised(func)
    found = remarks(func)
    for remark in found:
        if remark.label == "init-repeated":
            warnings.warn(f"{func.name}: {remark}", ProgramWarning, stacklevel=stacklevel())
    return found


def refuse_undetermined(func: PrimFunc) -> None:
    """Raise ScriptError for a variable that no loop or block binds and no parameter determines."""
    known: set[Var] = set()
    for p in func.params:
        known.update((v for e in p.shape for v in e.vars) if isinstance(p, Buffer) else [p])
    used: set[Var] = set()
    for n in walk_objects(func.body):
        kind = type(n)
        if kind is Poly:
            used |= n.vars
        elif kind is For or kind is IndirectIndex or kind is BindIndex:
            known.add(n.var)
        elif kind is Block:
            known.update(i.var for i in n.iters)
    for v in sorted([v for v in used - known if not isinstance(v, Param)], key=lambda v: v.key):
        raise ScriptError(
            f"no argument determines the size {v}: it is neither a parameter nor part of a parameter's shape. Make it a "
            f"parameter after the buffers, `{v}: T.int64`, or write a number\nin function {func.name}"
        )


def refuse_uninitialised(func: PrimFunc) -> None:
    """Raise ScriptError for a local buffer whose stores are all updates: the first update reads undefined memory."""
    nodes = list(walk_objects(func.body))
    local = {id(b) for b in func.allocs} | {id(n.buffer) for n in nodes if type(n) is Allocate}
    stores: dict[int, list[BufferStore]] = {}
    for n in nodes:
        if type(n) is BufferStore and id(n.buffer) in local:
            stores.setdefault(id(n.buffer), []).append(n)
    for same in stores.values():
        if all(_updates(s, always=True) for s in same):
            buffer = same[0].buffer
            block = next((b.name for b in nodes if type(b) is Block and same[0] in list(walk_objects(b.body))), None)
            where = f"the block {block}" if block else "the function"
            raise ScriptError(
                f"{where} updates {_element(same[0])} from its own value, but nothing initialises {buffer.name}, whose initial "
                f"contents are undefined. Give the block an init, for example\n    with T.init():\n        {_element(same[0])} = 0.0\n"
                f"or write to {buffer.name} before\nin function {func.name}"
            )


def remarks(func: PrimFunc) -> list[Remark]:
    """Diagnostics about the blocks of an unscheduled function; scheduling may add further ones.

    Axes with one iteration, conditional stores, blocks with predicates and scatters are skipped: whether iterations of a scatter update
    one element depends on its data.
    """
    params = {id(p) for p in func.params}
    written_plainly = {id(n.buffer) for n in walk_objects(func.body) if type(n) is BufferStore and not _updates(n)}
    out: list[Remark] = []
    for block in [n for n in walk_objects(func.body) if type(n) is Block and not n.predicate]:
        inside = list(walk_objects(block.body))
        stores = [n for n in inside if type(n) is BufferStore]
        if not stores or any(type(n) in (If, While, Block, BindIndex) for n in inside):
            continue
        axes = [i for i, bound in zip(block.iters, block.bindings, strict=True) if i.extent.const != 1 and bound.const is None]
        reduced = [i.var for i in axes if i.kind == "R"]
        for s in stores:
            if block.init is None and reduced and id(s.buffer) in params and _updates(s) and id(s.buffer) not in written_plainly:
                out.append(_accumulates(block, s))
            used = frozenset().union(*[p.vars for p in s.indices])
            for i in axes:
                if i.kind == "S" and i.var not in used:
                    out += _spatial(block, s, i.var)
    return out


def _accumulates(block: Block, s: BufferStore) -> Remark:
    return Remark(
        "accumulates-into-argument",
        block.name,
        f"it accumulates into the previous contents of the argument {s.buffer.name}, because it has reduction axes and no init. To start "
        f"from zero, write `with T.init(): {_element(s)} = 0.0`",
    )


def _spatial(block: Block, s: BufferStore, v: Var) -> list[Remark]:
    """Diagnostics about a spatial axis that the store does not use."""
    kinds = "".join(i.kind for i in block.iters)
    corrected = "".join("R" if i.var is v else i.kind for i in block.iters)
    axis = f"the axis {v} is spatial and the element {_element(s)} does not depend on it"
    advice = f'If {v} is a reduction axis, write "{corrected}" instead of "{kinds}"'
    if _updates(s) and block.init is not None:
        effect = "so the init runs before each of its iterations, and only the last iteration has an effect"
        return [Remark("init-repeated", block.name, f"{axis}, {effect}. {advice}")]
    if _updates(s):
        return [Remark("accumulates-over-spatial", block.name, f"{axis}, so its iterations depend on each other. {advice}")]
    if _depends(s.value, v):
        return [Remark("overwrites", block.name, f"{axis}, so its iterations overwrite each other. {advice}")]
    return []


def _updates(s: BufferStore, always: bool = False) -> bool:
    """Whether the value reads the stored element; with `always`, whether every evaluation reads it."""
    stack: list[Any] = [s.value]
    seen: set[int] = set()
    while stack:
        n = stack.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        if type(n) is BufferLoad and n.buffer is s.buffer and n.indices == s.indices:
            return True
        if type(n) is Select and always:
            stack.append(n.cond)
        elif type(n) is not Poly and not (type(n) is IndirectIndex and always):
            n.each_child(stack.append)
    return False


def _depends(value: Any, v: Var) -> bool:
    for n in walk_objects(value):
        if v in getattr(n, "vars", ()) or (type(n) is BufferLoad and any(v in p.vars for p in n.indices)):
            return True
    return False


def _element(s: BufferStore) -> str:
    buffer: Buffer = s.buffer
    return f"{buffer.name}[{', '.join(map(str, s.indices))}]" if s.indices else f"{buffer.name}[()]"
