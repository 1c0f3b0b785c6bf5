"""Hoist the packing of constant parameters into separate functions that run once, when the constant is known.

A block annotated `pack_constant` copies a constant parameter (weights; see `PrimFunc.constants`) into a buffer with another
layout.  Without hoisting the function copies in each call, which is correct for any caller.  With hoisting the copy becomes a
function, called once, and the main function takes the packed copy in place of the constant.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block, Seq, Stmt, seq
from tunesmith.ir.visit import blocks_under
from tunesmith.support.errors import BuildError

KEY = "pack_constant"


@dataclass(frozen=True, slots=True)
class HoistedPacking:
    """A function and its hoisted packing.

    Attributes:
        main: the function that takes packed copies; named `NAME__packed`.
        packers: functions of (constant, packed copy), named `NAME__pack_CONSTANT`.
        positions: for each packer, the position of its copy among the parameters of `main`.
    """

    main: PrimFunc
    packers: tuple[PrimFunc, ...]
    positions: tuple[int, ...]


def hoist_constant_packing(func: PrimFunc) -> HoistedPacking | None:
    """Split a function, concrete or with Params, into packers and the rest; None if it packs no constant.

    Raises:
        BuildError: an annotated block packs a buffer that is not declared constant, shares its loop nest with another block, or packs
            a constant that other blocks access; or no other block exists.
    """
    stmts = list(func.body.stmts) if type(func.body) is Seq else [func.body]
    annotated = [(s, b) for s in stmts for b in blocks_under(s) if any(k == KEY for k, _ in b.annotations)]
    if not annotated:
        return None
    params, allocs = list(func.params), list(func.allocs)
    packers: list[PrimFunc] = []
    positions: list[int] = []
    for stmt, block in annotated:
        constant, copy = _packing(func, stmt, block)
        stmts.remove(stmt)
        others = [b.name for s in stmts for b in blocks_under(s) if any(a.buffer is constant for a in accesses(b))]
        if others:
            raise BuildError(f"{func.name}: {constant.name} cannot be packed ahead, block {', '.join(others)} reads it unpacked")
        position = params.index(constant)
        params[position] = copy
        allocs.remove(copy)
        positions.append(position)
        packers.append(PrimFunc(f"{func.name}__pack_{constant.name}", (constant, copy), (), stmt))
    if not stmts:
        raise BuildError(f"{func.name}: the function only packs constants; nothing is left when the packing is hoisted")
    main = PrimFunc(f"{func.name}__packed", tuple(params), tuple(allocs), seq(stmts))
    return HoistedPacking(main, tuple(packers), tuple(positions))


def _packing(func: PrimFunc, stmt: Stmt, block: Block) -> tuple[Buffer, Buffer]:
    """The constant that the block reads, and the buffer that it writes."""
    sources = {a.buffer for a in reads(block)}
    targets = {a.buffer for a in writes(block)}
    what = f"{func.name}: block {block.name} is annotated {KEY}"
    if len(sources) != 1 or len(targets) != 1 or len(blocks_under(stmt)) != 1:
        raise BuildError(f"{what}: it must copy one buffer to another and be the only block of its loop nest")
    source, target = next(iter(sources)), next(iter(targets))
    if source not in func.params or source.name not in func.constants:
        declared = ", ".join(func.constants) or "none"
        raise BuildError(f"{what}, but {source.name} is not a constant parameter; declared constants: {declared}")
    if target not in func.allocs or target.scope != "global":
        raise BuildError(f"{what}, but writes {target.name}, which is not an intermediate buffer of scope global")
    return source, target
