"""Find programs that are well formed and most likely not meant: a reduction without its init, or an axis declared spatial that reduces.

Two grades.  `refuse_uninitialised` and `refuse_undetermined` refuse what has no meaning: a buffer of the function's own whose every store
adds to what it held before, and a size that no call gives.  `remarks` describes what has a meaning that is seldom wanted; nothing is
refused for it, since accumulating into an argument and recurrences over an axis are legal programs: `tunesmith show`, `tune` and
`CompiledModule.remarks` say it.  Only an init that each iteration of an axis repeats is a warning.
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
from tunesmith.ir.stmt import Allocate, Block, BufferStore, For, If
from tunesmith.ir.visit import walk_objects
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Remark:
    """What is odd about a block.

    Attributes:
        label: `accumulates-into-argument`, `init-repeated`, `accumulates-over-spatial` or `overwrites`.
        block: its name.
        message: what the block does, and what to write if that is not meant.
    """

    label: str
    block: str
    message: str

    def __str__(self) -> str:
        return f"block {self.block}: {self.message} [{self.label}]"


class ProgramWarning(UserWarning):
    """A program that has a meaning, which is hardly the one that was meant."""


def checked(func: PrimFunc) -> list[Remark]:
    """The remarks about a function that a user gives to be compiled or tuned; of `init-repeated` Python's warnings tell, too.

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
    """Raise ScriptError where a variable is used that neither a loop nor a block binds, and that no parameter gives: a size of no call."""
    known: set[Var] = set()
    for p in func.params:
        known.update((v for e in p.shape for v in e.vars) if isinstance(p, Buffer) else [p])
    used: set[Var] = set()
    for n in walk_objects(func.body):
        kind = type(n)
        if kind is Poly:
            used |= n.vars
        elif kind is For or kind is IndirectIndex:
            known.add(n.var)
        elif kind is Block:
            known.update(i.var for i in n.iters)
    for v in sorted([v for v in used - known if not isinstance(v, Param)], key=lambda v: v.key):
        raise ScriptError(
            f"no call determines the size {v}: it is no parameter, and in no parameter's shape. Make it a parameter behind the buffers, "
            f"`{v}: T.int64`, or write a number\nin function {func.name}"
        )


def refuse_uninitialised(func: PrimFunc) -> None:
    """Raise ScriptError where a buffer of the function's own is only ever updated: its first update reads memory that nothing has set."""
    nodes = list(walk_objects(func.body))
    own = {id(b) for b in func.allocs} | {id(n.buffer) for n in nodes if type(n) is Allocate}
    stores: dict[int, list[BufferStore]] = {}
    for n in nodes:
        if type(n) is BufferStore and id(n.buffer) in own:
            stores.setdefault(id(n.buffer), []).append(n)
    for same in stores.values():
        if all(_updates(s, always=True) for s in same):
            buffer = same[0].buffer
            block = next((b.name for b in nodes if type(b) is Block and same[0] in list(walk_objects(b.body))), None)
            where = f"the block {block}" if block else "the function"
            raise ScriptError(
                f"{where} updates {_element(same[0])} from its own value, and nothing initialises {buffer.name}, whose contents start "
                f"undefined. Give the block an init, for example\n    with T.init():\n        {_element(same[0])} = 0.0\nor write to "
                f"{buffer.name} before\nin function {func.name}"
            )


def remarks(func: PrimFunc) -> list[Remark]:
    """What is odd about the blocks of a function as it is written; schedules only add to it, so look at it before they do.

    An axis with one iteration, stores under conditions and blocks with predicates are not judged.
    """
    params = {id(p) for p in func.params}
    written_plainly = {id(n.buffer) for n in walk_objects(func.body) if type(n) is BufferStore and not _updates(n)}
    out: list[Remark] = []
    for block in [n for n in walk_objects(func.body) if type(n) is Block and not n.predicate]:
        inside = list(walk_objects(block.body))
        stores = [n for n in inside if type(n) is BufferStore]
        if not stores or any(type(n) in (If, Block) for n in inside):
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
        f"it adds to what the caller's {s.buffer.name} holds, as it has reduction axes and no init. For a sum that starts anew, write "
        f"`with T.init(): {_element(s)} = 0.0`",
    )


def _spatial(block: Block, s: BufferStore, v: Var) -> list[Remark]:
    """What is odd about a spatial axis that the store does not use."""
    kinds = "".join(i.kind for i in block.iters)
    meant = "".join("R" if i.var is v else i.kind for i in block.iters)
    axis = f"the axis {v} is spatial and the element {_element(s)} does not depend on it"
    advice = f'If {v} is a reduction axis, write "{meant}" instead of "{kinds}"'
    if _updates(s) and block.init is not None:
        what = "so the init runs before each of its iterations, and the last one alone remains"
        return [Remark("init-repeated", block.name, f"{axis}, {what}. {advice}")]
    if _updates(s):
        return [Remark("accumulates-over-spatial", block.name, f"{axis}, so its iterations depend on each other. {advice}")]
    if _depends(s.value, v):
        return [Remark("overwrites", block.name, f"{axis}, so its iterations overwrite each other. {advice}")]
    return []


def _updates(s: BufferStore, always: bool = False) -> bool:
    """Whether the value reads the element that is stored; `always`: on all ways to compute it."""
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
