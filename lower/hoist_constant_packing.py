"""Hoist the packing of constant parameters into separate functions that run once, when the constant is known.

A block annotated `pack_constant` copies a constant parameter (weights; see `PrimFunc.constants`) into a buffer with another
layout, or a buffer that the nests before it compute from this constant alone, such as the transformed filter of `winograd`.  Without
hoisting the function does so in each call, which is correct for any caller.  With hoisting these nests become a function, called once,
and the main function takes the packed copy in place of the constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.ir import structural
from tunesmith.ir.analysis.access_regions import Access, accesses, reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import Block, If, Seq, Stmt, seq
from tunesmith.ir.visit import blocks_under, substitute, transform
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import versions_of
from tunesmith.support.errors import BuildError

KEY = "pack_constant"


@dataclass(frozen=True, slots=True)
class HoistedPacking:
    """A function and its hoisted packing.

    Attributes:
        main: the function that takes packed copies; named `NAME__packed`.
        packers: functions of (constant, packed copy), named `NAME__pack_CONSTANT`.
        positions: for each packer, the position of its copy among the parameters of `main`.
        sources: for each parameter of `main`, the position of the parameter of the function that it is, or is a copy of.
    """

    main: PrimFunc
    packers: tuple[PrimFunc, ...]
    positions: tuple[int, ...]
    sources: tuple[int, ...]


def hoist_constant_packing(func: PrimFunc) -> HoistedPacking | None:
    """Split a function, concrete or with Params, into packers and the rest; None if it packs no constant.

    The versions of a function with dynamic shapes (`lower.size_versions`) may pack a constant differently: `main` then has several copies,
    and the constant itself if a version reads it.  Versions that pack it equally share a copy.

    Raises:
        BuildError: an annotated block packs a buffer that is not declared constant nor computed from one constant alone, shares its loop
            nest with another block, or packs a buffer that other blocks access; or no other block exists.
    """
    versions, rest = versions_of(func)
    if versions:
        return _hoist_from_versions(func, versions, rest)
    stmts = list(func.body.stmts) if type(func.body) is Seq else [func.body]
    annotated = [(s, b) for s in stmts for b in blocks_under(s) if any(k == KEY for k, _ in b.annotations)]
    if not annotated:
        return None
    params, allocs = list(func.params), list(func.allocs)
    packers: list[PrimFunc] = []
    positions: list[int] = []
    for stmt, block in annotated:
        source, copy = _packing(func, stmt, block)
        constant, before = _computed_from(func, stmts, block, source)
        stmts = [s for s in stmts if s is not stmt and s not in before]
        inner = {a.buffer for s in before for a in _writes_of(s)}
        for buffer in (constant, *inner):
            others = [b.name for s in stmts for b in blocks_under(s) if any(a.buffer is buffer for a in accesses(b))]
            if others:
                raise BuildError(f"{func.name}: {buffer.name} cannot be packed ahead, block {', '.join(others)} reads it unpacked")
        position = params.index(constant)
        params[position] = copy
        own = tuple([b for b in allocs if b in inner])
        allocs = [b for b in allocs if b is not copy and b not in inner]
        positions.append(position)
        packers.append(PrimFunc(f"{func.name}__pack_{constant.name}", (constant, copy), own, seq([*before, stmt])))
    if not stmts:
        raise BuildError(f"{func.name}: the function only packs constants; nothing is left when the packing is hoisted")
    main = PrimFunc(f"{func.name}__packed", tuple(params), tuple(allocs), seq(stmts))
    return HoistedPacking(main, tuple(packers), tuple(positions), tuple(range(len(params))))


def _hoist_from_versions(func: PrimFunc, versions: list[tuple[SizeRanges, PrimFunc]], rest: PrimFunc) -> HoistedPacking | None:
    functions = [*[f for _, f in versions], rest]
    hoisted = [hoist_constant_packing(f) for f in functions]
    if not any(hoisted):
        return None
    copies: dict[int, dict[str, tuple[PrimFunc, Buffer]]] = {}
    mains: list[PrimFunc] = []
    for f, parts in zip(functions, hoisted, strict=True):
        swap: dict[Buffer, Buffer] = {}
        for packer, at in () if parts is None else zip(parts.packers, parts.positions, strict=True):
            own = packer.params[1]
            known = copies.setdefault(at, {}).setdefault(_layout(packer), (packer, own))  # type: ignore[arg-type]
            swap[own] = known[1]  # type: ignore[index]
        main = f if parts is None else parts.main
        own_params = tuple([swap.get(p, p) if isinstance(p, Buffer) else p for p in main.params])
        mains.append(main.with_(body=substitute(main.body, {}, swap), params=own_params))
    params: list[Buffer | Var] = []
    sources: list[int] = []
    packers: list[PrimFunc] = []
    positions: list[int] = []
    for at, p in enumerate(func.params):
        if at not in copies or any(p in m.params for m in mains):
            params.append(p)
            sources.append(at)
        for packer, copy in copies.get(at, {}).values():
            positions.append(len(params))
            packers.append(packer.with_(name=f"{func.name}__pack_{p.name}_{len(packers)}"))
            params.append(copy)
            sources.append(at)
    body = mains[-1].body
    for (box, _), m in reversed(list(zip(versions, mains, strict=False))):
        body = If(box.condition(sizes_of(func)), m.body, body)
    main = PrimFunc(f"{func.name}__packed", tuple(params), tuple([b for m in mains for b in m.allocs]), body)
    return HoistedPacking(main, tuple(packers), tuple(positions), tuple(sources))


def _layout(packer: PrimFunc) -> str:
    """A text that is equal for equal packers, whose blocks have different names in different versions."""
    return structural.digest(packer.with_(body=transform(packer.body, {Block: lambda b, _: b.with_(name="")})))


def _writes_of(stmt: Stmt) -> list[Access]:
    """The writes of all blocks of a nest."""
    return [a for b in blocks_under(stmt) for a in writes(b)]


def _computed_from(func: PrimFunc, stmts: Sequence[Stmt], block: Block, source: Buffer) -> tuple[Buffer, list[Stmt]]:
    """The constant parameter that `source` is, or is computed from, and the nests that compute it, in order."""
    found: list[Stmt] = []
    constants: list[Buffer] = []
    pending, seen = [source], {source}
    while pending:
        buffer = pending.pop()
        if buffer in func.params:
            constants.append(buffer)
            continue
        makers = [s for s in stmts if any(a.buffer is buffer for a in _writes_of(s))]
        found += [s for s in makers if s not in found]
        new = {a.buffer for s in makers for b in blocks_under(s) for a in accesses(b)} - seen
        seen |= new
        pending += sorted(new, key=lambda b: b.name)
    names = [b.name for b in constants]
    what = f"{func.name}: block {block.name} is annotated {KEY}"
    if len(constants) != 1 or constants[0].name not in func.constants:
        declared = ", ".join(func.constants) or "none"
        if source in func.params:
            raise BuildError(f"{what}, but {source.name} is not a constant parameter; declared constants: {declared}")
        used = ", ".join(sorted(names)) or "no parameter"
        raise BuildError(f"{what}, but {source.name} is computed from {used}, not from one constant alone; declared constants: {declared}")
    return constants[0], [s for s in stmts if s in found]


def _packing(func: PrimFunc, stmt: Stmt, block: Block) -> tuple[Buffer, Buffer]:
    """The buffer that the block reads, and the one that it writes."""
    sources = {a.buffer for a in reads(block)}
    targets = {a.buffer for a in writes(block)}
    what = f"{func.name}: block {block.name} is annotated {KEY}"
    if len(sources) != 1 or len(targets) != 1 or len(blocks_under(stmt)) != 1:
        raise BuildError(f"{what}: it must copy one buffer to another and be the only block of its loop nest")
    source, target = next(iter(sources)), next(iter(targets))
    if target not in func.allocs or target.scope != "global":
        raise BuildError(f"{what}, but writes {target.name}, which is not an intermediate buffer of scope global")
    return source, target
