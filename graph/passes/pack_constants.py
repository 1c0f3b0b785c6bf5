"""Pack constant operands at compile time; the module stores the packed copies instead of the original weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.codegen.build import build, check_runs_here
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, CallFunction, Constant, Operand, Region, all_bindings, with_branches
from tunesmith.graph.passes.place_functions import target_of
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import HoistedPacking, hoist_constant_packing
from tunesmith.runtime.arrays import aligned, empty, nbytes, placed, typed
from tunesmith.runtime.module import Module
from tunesmith.support.errors import BuildError


def pack_constants(mod: IRModule, target: Target) -> IRModule:
    """Pass packed copies to calls of scheduled functions that pack constants, and remove the packing from the functions.

    The copies are computed now, by code for the target if this machine can run it, else by code for this machine.
    """
    hoisted = {name: parts for name, f in mod.items() if isinstance(f, PrimFunc) and (parts := hoist_constant_packing(f)) is not None}
    graphs = {name: f for name, f in mod.items() if isinstance(f, GraphFunc)}
    calls = [b.operation for f in graphs.values() for b in all_bindings(f.body) if isinstance(b.operation, CallFunction)]
    # A function keeps its packing if one of its calls passes an operand that is not a constant.
    packing = [(c, hoisted[c.function]) for c in calls if c.function in hoisted]
    open_ = {c.function for c, parts in packing if any(not isinstance(c.args[parts.sources[p]], Constant) for p in parts.positions)}
    ready = {name: parts for name, parts in hoisted.items() if name not in open_ and any(c.function == name for c in calls)}
    if not ready:
        return mod
    pack = _Packer([p for parts in ready.values() for p in parts.packers], _host_target(mod, ready, target))
    functions = {name: f if (body := _region(f.body, ready, pack)) is f.body else f.with_(body=body) for name, f in graphs.items()}
    kept = {name: f for name, f in mod.items() if name not in ready}
    return IRModule({**kept, **functions, **{parts.main.name: parts.main for parts in ready.values()}})


def _host_target(mod: IRModule, ready: Iterable[str], target: Target) -> Target:
    """The target of the first function that is not one of a device, for the packing functions."""
    return next((t for n in ready if not backend_of(t := target_of(mod[n], target)).device), target)


def _region(region: Region, ready: dict[str, HoistedPacking], pack: _Packer) -> Region:
    bindings = tuple([_binding(b, ready, pack) for b in region.bindings])
    return region if bindings == region.bindings else Region(bindings, region.results)


def _binding(b: Binding, ready: dict[str, HoistedPacking], pack: _Packer) -> Binding:
    op = b.operation
    if not isinstance(op, CallFunction) or op.function not in ready:
        return with_branches(b, lambda r: _region(r, ready, pack))
    parts = ready[op.function]
    packers = dict(zip(parts.positions, parts.packers, strict=True))
    args: list[Operand] = []
    for at, source in enumerate(parts.sources):
        if source >= len(op.args):
            break
        operand = op.args[source]
        if at in packers:
            assert isinstance(operand, Constant)
            operand = pack(packers[at], operand)
        args.append(operand)
    return Binding(b.results, CallFunction(parts.main.name, tuple(args), op.sizes))


CHUNK = 32 << 20
"""Minimum bytes of the blocks that hold packed copies: numpy requests huge pages from 4 MiB on, which streamed weights need."""


class _Packer:
    """Run packing functions; results are cached by function and constant."""

    def __init__(self, packers: Sequence[PrimFunc], target: Target) -> None:
        self._module = Module.from_object(build(packers, target if _runs_here(target) else Target.detect()).data)
        self._done: dict[tuple[str, str], Constant] = {}
        self._chunk, self._used = empty(0), 0

    def __call__(self, packer: PrimFunc, constant: Constant) -> Constant:
        key = packer.name, constant.digest
        if key not in self._done:
            copy = packer.params[1]
            assert isinstance(copy, Buffer)
            out = typed(self._zeros([e.as_int() for e in copy.shape], copy.dtype), copy.dtype)
            self._module[packer.name](np.array(constant.data), out)
            self._done[key] = Constant(f"{constant.name}_packed", out)
        return self._done[key]

    def _zeros(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        size = aligned(nbytes(dtype, shape))
        if self._used + size > self._chunk.nbytes:
            self._chunk, self._used = empty(max(CHUNK, size)), 0
        out = placed(self._chunk, self._used, dtype, shape)
        self._used += size
        out[...] = 0
        return out


def _runs_here(target: Target) -> bool:
    """Whether compiled code of the target runs in this process."""
    try:
        check_runs_here(target)
    except BuildError:
        return False
    return not backend_of(target).device
