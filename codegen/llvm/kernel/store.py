"""Emit stores in LLVM IR: elements, vectors, tiles that are transposed or interleaved in registers, and tile registers."""

from __future__ import annotations

from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.codegen.cpu.store_groups import Interleaved, Products, Tile
from tunesmith.codegen.llvm.kernel.expr import ExprEmitter
from tunesmith.codegen.llvm.kernel.tile_registers import TileRegisters
from tunesmith.codegen.llvm.kernel.transpose import interleave, transpose
from tunesmith.codegen.llvm.text import llvm_type, suffix
from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.poly import ONE
from tunesmith.ir.stmt import BufferStore
from tunesmith.support import dtype as dt


class StoreEmitter(ExprEmitter):
    """Emitter of stores, and of the expressions that they store.

    Args:
        function: name of the function, for messages.
        declares: receives the declarations of the functions that are called.
        has_avx512: the target has AVX-512.
        features: receives the features that the code needs besides vectors.
    """

    def __init__(self, function: str, declares: set[str], has_avx512: bool, features: set[str]) -> None:
        super().__init__(declares, has_avx512)
        self.whole: set[Buffer] = set()
        """Register buffers of which inactive lanes are not used."""
        self.tiles = TileRegisters(function, self.address, self.index, self._call_void, features)

    def _call_void(self, name: str, args: list[tuple[str, str]]) -> None:
        self.call("void", name, args)

    def forget(self, buffer: Buffer) -> None:
        """Invalidate loads of a buffer, and all computed values, after a store to it."""
        super().forget(buffer)
        self.tiles.forget(buffer)

    def enter(self) -> None:
        """Begin a control-flow region."""
        super().enter()
        self.tiles.forget_operands()

    def leave(self) -> None:
        """End a control-flow region."""
        super().leave()
        self.tiles.forget_operands()

    def store(self, n: BufferStore) -> None:
        """Emit a store."""
        if n.buffer.scope == TILE_SCOPE:
            self.tiles.store(n)
            return
        if isinstance(n.value, BufferLoad) and n.value.buffer.scope == TILE_SCOPE:
            self.tiles.spill(n)
            self.forget(n.buffer)
            return
        lanes = dt.lanes(n.value.dtype)
        mask = active_lanes(n.mask, lanes)
        if mask is not None and mask.const == 0:
            return
        v = self.value(n.value)
        size = dt.nbytes(n.buffer.dtype)
        ty = llvm_type(n.value.dtype)
        at = self.address(n.buffer, n.indices[0])
        if lanes == 1:
            self.do(f"store {ty} {v}, ptr {at}, align {size}")
        elif n.stride is None or n.stride == ONE:
            if mask is None:
                self.do(f"store {ty} {v}, ptr {at}, align {self.alignment(n.buffer, n.indices[0], lanes)}")
            elif self.is_whole(n.buffer, n.indices[0], lanes, mask):
                # A masked store would keep the register buffer in memory; a blend becomes SSA values after sroa.
                align = self.alignment(n.buffer, n.indices[0], lanes)
                if n.buffer not in self.whole:
                    old = self.op(f"load {ty}, ptr {at}, align {align}")
                    v = self.op(f"select <{lanes} x i1> {self.mask(mask, lanes)}, {ty} {v}, {ty} {old}")
                self.do(f"store {ty} {v}, ptr {at}, align {align}")
            elif mask.const == 1:
                # For a masked store of one lane of a truncated vector, LLVM stores the element before truncation, which is too wide.
                first = self.op(f"extractelement {ty} {v}, i64 0")
                self.do(f"store {llvm_type(n.buffer.dtype)} {first}, ptr {at}, align {size}")
            else:
                m = self.mask(mask, lanes)
                args = [(ty, v), ("ptr", at), ("i32", str(size)), (f"<{lanes} x i1>", m)]
                self.call("void", f"llvm.masked.store.{suffix(n.value.dtype)}.p0", args)
        else:
            m = self.mask(mask if mask is not None else ONE * lanes, lanes)
            args = [(ty, v), (f"<{lanes} x ptr>", self.strided(n, at)), ("i32", str(size)), (f"<{lanes} x i1>", m)]
            self.call("void", f"llvm.masked.scatter.{suffix(n.value.dtype)}.v{lanes}p0", args)
        self.forget(n.buffer)

    def store_group(self, group: Tile | Interleaved | Products) -> None:
        """Emit stores that are rearranged in registers."""
        if isinstance(group, Products):
            self.tiles.products(group.stores)
            return
        element, lanes = dt.split(group.stores[0].value.dtype)
        size, values = dt.nbytes(element), [self.value(s.value) for s in group.stores]
        if isinstance(group, Interleaved):
            v, ty = interleave(values, llvm_type(element), lanes, group.lanes, self.op)
            self.do(f"store {ty} {v}, ptr {self.address(group.buffer, group.stores[0].indices[0])}, align {size}")
        else:
            ty = llvm_type(group.stores[0].value.dtype)
            rows = transpose(values, ty, lanes, self.op)
            wide = len(group.stores)
            for lane in range(group.lanes):
                at = self.address(group.buffer, group.stores[0].indices[0] + group.stride * lane)
                if wide == lanes:
                    self.do(f"store {ty} {rows[lane]}, ptr {at}, align {size}")
                else:
                    args = [(ty, rows[lane]), ("ptr", at), ("i32", str(size)), (f"<{lanes} x i1>", self.mask(ONE * wide, lanes))]
                    self.call("void", f"llvm.masked.store.{suffix(group.stores[0].value.dtype)}.p0", args)
        self.forget(group.buffer)
