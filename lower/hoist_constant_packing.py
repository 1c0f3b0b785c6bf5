"""hoist_constant_packing: what a schedule packs from a constant parameter is computed once, outside of the function.

A block annotated `pack_constant` copies a constant parameter (weights; see `PrimFunc.constants`) into a buffer with another
layout.  As it stands the function copies in each call, which is right for any caller.  Lifted, the copy is a function of its own,
called once when the constant is known, and the main function takes the copy in the constant's place.
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
class Lifted:
    """A function without its packing.

    Attributes:
        main: takes packed copies; named `NAME__packed`.
        packers: functions of (constant, packed copy), named `NAME__pack_CONSTANT`.
        positions: for each packer, which parameter of `main` its copy is.
    """

    main: PrimFunc
    packers: tuple[PrimFunc, ...]
    positions: tuple[int, ...]


def hoist_constant_packing(func: PrimFunc) -> Lifted | None:
    """The function in parts, concrete or with Params; None if it packs no constant.

    Raises:
        BuildError: an annotated block packs what is not declared constant, or does not stand alone in a nest at the root, or what it
            packs is used by others too.
    """
    stmts = list(func.body.stmts) if type(func.body) is Seq else [func.body]
    marked = [(s, b) for s in stmts for b in blocks_under(s) if any(k == KEY for k, _ in b.annotations)]
    if not marked:
        return None
    params, allocs = list(func.params), list(func.allocs)
    packers: list[PrimFunc] = []
    positions: list[int] = []
    for stmt, block in marked:
        constant, copy = _packing(func, stmt, block)
        stmts.remove(stmt)
        others = [b.name for s in stmts for b in blocks_under(s) if any(a.buffer is constant for a in accesses(b))]
        if others:
            raise BuildError(f"{func.name}: {constant.name} cannot be packed ahead, block {', '.join(others)} works on it as it is")
        position = params.index(constant)
        params[position] = copy
        allocs.remove(copy)
        positions.append(position)
        packers.append(PrimFunc(f"{func.name}__pack_{constant.name}", (constant, copy), (), stmt))
    if not stmts:
        raise BuildError(f"{func.name}: nothing is left when the packing of constants is taken out")
    main = PrimFunc(f"{func.name}__packed", tuple(params), tuple(allocs), seq(stmts))
    return Lifted(main, tuple(packers), tuple(positions))


def _packing(func: PrimFunc, stmt: Stmt, block: Block) -> tuple[Buffer, Buffer]:
    """The constant that the nest of the block reads, and the buffer that it fills."""
    sources = {a.buffer for a in reads(block)}
    targets = {a.buffer for a in writes(block)}
    what = f"{func.name}: block {block.name} is marked {KEY}"
    if len(sources) != 1 or len(targets) != 1 or len(blocks_under(stmt)) != 1:
        raise BuildError(f"{what}, and must copy one buffer into one other, in a nest of its own")
    source, target = next(iter(sources)), next(iter(targets))
    if source not in func.params or source.name not in func.constants:
        declared = ", ".join(func.constants) or "none"
        raise BuildError(f"{what}, and {source.name} is no constant parameter; declared constant: {declared}")
    if target not in func.allocs or target.scope != "global":
        raise BuildError(f"{what}, and fills {target.name}, which is no intermediate buffer of scope global")
    return source, target
