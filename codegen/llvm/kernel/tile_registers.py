"""Assign the tile registers of AMX, and emit the instructions that use them.

The code names registers itself, by the immediate forms of LLVM's intrinsics: the compiler keeps one configuration for a whole function, and
spills tiles.  Buffers of scope `amx.tile` hold registers as long as they are allocated.  The others hold operands: an operand stays in its
register until the register is needed for another one, or its memory changes, so that the products of a block share loads.

All registers have one shape, 16 rows of 64 bytes, which one instruction sets at the start of a region, and another releases at its end.
The configuration belongs to a thread, so that no parallel loop may be inside of such a region (Intel, Optimization Reference Manual).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.expr import Broadcast, Call, Const, Expr
from tunesmith.ir.intrinsics import TILE_PRODUCTS
from tunesmith.ir.poly import ONE, Poly, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, Stmt
from tunesmith.ir.tile_products import OPERAND_REGISTERS, SUM_REGISTERS, TILE_REGISTERS, TILE_ROWS
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

ROW_BYTES = 64
TILE_BYTES = TILE_ROWS * ROW_BYTES
CONFIGURATION = "__tunesmith_tile_configuration"

CallVoid = Callable[[str, list[tuple[str, str]]], None]


def configuration_text() -> str:
    """The definition of the configuration: palette 1, every register with 16 rows of 64 bytes."""
    head = [1, *[0] * 15]
    columns = [x for n in range(16) for x in ((ROW_BYTES if n < TILE_REGISTERS else 0), 0)]
    rows = [TILE_ROWS if n < TILE_REGISTERS else 0 for n in range(16)]
    values = ", ".join([f"i8 {x}" for x in (*head, *columns, *rows)])
    return f"@{CONFIGURATION} = internal constant [64 x i8] [{values}], align 64"


def uses_tiles(n: Stmt) -> bool:
    """Whether a statement allocates tile registers."""
    return any(type(x) is Allocate and x.buffer.scope == TILE_SCOPE for x in _statements(n))


def is_parallel(n: Stmt) -> bool:
    """Whether a statement is a loop that several threads may execute."""
    return type(n) is For and n.kind == "parallel" and n.extent != ONE


def has_parallel_loop(n: Stmt) -> bool:
    """Whether a statement contains a loop that several threads may execute."""
    return any(is_parallel(x) for x in _statements(n))


def _statements(n: Stmt) -> Iterator[Stmt]:
    """A statement and those inside of it, without expressions, which share subtrees."""
    stack = [n]
    while stack:
        x = stack.pop()
        yield x
        if type(x) is not BufferStore:
            x.each_child(lambda k: stack.append(k) if isinstance(k, Stmt) else None)


class TileRegisters:
    """The tile registers of one LLVM function.

    Args:
        function: name of the function, for messages.
        address: emits the address of an element of a buffer.
        index: emits an index.
        call: emits a call without result, from the name and the arguments with their types.
        features: receives the features that the code needs.
    """

    def __init__(
        self,
        function: str,
        address: Callable[[Buffer, Poly], str],
        index: Callable[[Poly], str],
        call: CallVoid,
        features: set[str],
    ) -> None:
        self.function, self.features = function, features
        self.configured = False
        self._address, self._index, self._call = address, index, call
        self._first: dict[Buffer, int] = {}
        self._held: dict[tuple[Buffer, Poly, Poly], int] = {}
        """Registers by the operand that they hold, the least recently used first."""

    # ---- regions -------------------------------------------------------------------------------------------------------

    def configure(self) -> None:
        """Begin a region that uses tile registers."""
        self.features.add("amx-tile")
        self._call("llvm.x86.ldtilecfg", [("ptr", f"@{CONFIGURATION}")])
        self.configured = True

    def release(self) -> None:
        """End the region."""
        self._call("llvm.x86.tilerelease", [])
        self.configured = False

    def check_serial(self, n: Stmt) -> None:
        """BuildError if a region contains a parallel loop, whose body would change the configuration of this thread."""
        if has_parallel_loop(n):
            raise BuildError(
                f"{self.function}: a parallel loop is inside of a loop that keeps values in tile registers ({TILE_SCOPE}), which the "
                "threads would overwrite. Mark an outer loop parallel, or leave the inner one serial"
            )

    def allocate(self, b: Buffer) -> None:
        """Assign registers to a buffer of scope `amx.tile`."""
        count = b.nbytes.const
        if count is None or count % TILE_BYTES:
            raise BuildError(
                f"{self.function}: the buffer {b.name} of scope {TILE_SCOPE} has {b.nbytes} bytes, which is not a number of tiles of "
                f"{TILE_BYTES} bytes (16 rows of 64). Choose the tile of the loops around it accordingly"
            )
        used = sum(x.nbytes.as_int() for x in self._first) // TILE_BYTES
        if used + count // TILE_BYTES > SUM_REGISTERS:
            raise BuildError(
                f"{self.function}: the buffers of scope {TILE_SCOPE} need {used + count // TILE_BYTES} tile registers; there are "
                f"{TILE_REGISTERS}, and a product needs {OPERAND_REGISTERS} for its operands. Choose a smaller register tile"
            )
        taken = {t for x, first in self._first.items() for t in range(first, first + x.nbytes.as_int() // TILE_BYTES)}
        need = count // TILE_BYTES
        first = next((t for t in range(TILE_REGISTERS - need + 1) if taken.isdisjoint(range(t, t + need))), None)
        assert first is not None, "buffers are allocated in a nested order"
        self.forget_operands()
        self._first[b] = first

    def free(self, b: Buffer) -> None:
        """Release the registers of a buffer."""
        del self._first[b]

    # ---- operands ------------------------------------------------------------------------------------------------------

    def forget(self, buffer: Buffer) -> None:
        """Invalidate operands in registers after a store to their buffer."""
        for key in [k for k in self._held if k[0] is buffer]:
            del self._held[key]

    def forget_operands(self) -> None:
        """Invalidate all operands in registers."""
        self._held.clear()

    def _operand(self, e: Expr, busy: set[int]) -> int:
        """The register with an operand, loaded if necessary into one that is not `busy`."""
        load, pitch = self._rows(e)
        key = (load.buffer, load.indices[0], pitch)
        held = self._held.pop(key, None)
        register = held
        if register is None or register in busy:  # a product needs two registers also for a tile by itself
            taken = {t for b, first in self._first.items() for t in range(first, first + b.nbytes.as_int() // TILE_BYTES)}
            free = [t for t in range(TILE_REGISTERS) if t not in taken and t not in self._held.values() and t not in busy]
            oldest = next((k for k, t in self._held.items() if t not in busy), None)
            register = free[0] if free or oldest is None else self._held.pop(oldest)
            self._load(register, load, pitch)
        self._held[key] = register if held is None else held
        return register

    def _rows(self, e: Expr) -> tuple[BufferLoad, Poly]:
        """The first row of an operand, and the distance between rows in bytes.  BuildError if it is not 16 rows of 64 bytes."""
        rows = e.args if isinstance(e, Call) and e.name == "concat16" else (e,)
        loads = [x for x in rows if isinstance(x, BufferLoad) and x.mask is None and x.stride in (None, ONE)]
        if (
            len(loads) == len(rows)
            and dt.lanes(e.dtype) * dt.nbytes(dt.element(e.dtype)) == TILE_BYTES
            and loads[0].buffer.scope != TILE_SCOPE
        ):
            size = dt.nbytes(loads[0].buffer.dtype)
            if len(loads) == 1:
                return loads[0], poly(ROW_BYTES)
            pitch = loads[1].indices[0] - loads[0].indices[0]
            if all(x.buffer is loads[0].buffer and x.indices[0] == loads[0].indices[0] + pitch * r for r, x in enumerate(loads)):
                return loads[0], pitch * size
        raise BuildError(
            f"{self.function}: an operand of a product of tiles is not a tile in memory: 16 rows of 64 bytes at equal distances"
        )

    def _load(self, register: int, load: BufferLoad, pitch: Poly) -> None:
        at = self._address(load.buffer, load.indices[0])
        self._call("llvm.x86.tileloadd64", [("i8", str(register)), ("ptr", at), ("i64", self._index(pitch))])

    # ---- statements ----------------------------------------------------------------------------------------------------

    def register_of(self, b: Buffer, p: Poly) -> int:
        """The register of the tile at an element.  BuildError if the index is not constant, or not that of a tile."""
        lanes = TILE_BYTES // dt.nbytes(b.dtype)
        if p.const is None or p.const % lanes or b not in self._first or not 0 <= p.const < b.nbytes.as_int() // dt.nbytes(b.dtype):
            raise BuildError(
                f"{self.function}: the buffer {b.name} of scope {TILE_SCOPE} is accessed at the element {p}; a tile register has a "
                "constant number. Unroll the loops that index its tiles"
            )
        return self._first[b] + p.const // lanes

    def store(self, n: BufferStore) -> None:
        """Emit a store to a buffer of scope `amx.tile`: zeros, a product, or a tile in memory."""
        value = n.value
        if dt.lanes(value.dtype) * dt.nbytes(n.buffer.dtype) != TILE_BYTES or n.mask is not None or n.stride not in (None, ONE):
            raise self.not_a_tile(n.buffer)
        register = self.register_of(n.buffer, n.indices[0])
        if isinstance(value, Broadcast) and isinstance(value.a, Const) and value.a.value == 0:
            self._call("llvm.x86.tilezero", [("i8", str(register))])
        elif isinstance(value, Call) and value.name in TILE_PRODUCTS and self._is_same(value.args[0], n):
            left = self._operand(value.args[1], set())
            right = self._operand(value.args[2], {left})
            self.features.add("amx-bf16" if value.name == "tdpbf16ps" else "amx-int8")
            self._call(f"llvm.x86.{value.name}", [("i8", str(t)) for t in (register, left, right)])
        elif isinstance(value, BufferLoad) and value.buffer.scope != TILE_SCOPE:
            load, pitch = self._rows(value)
            self._load(register, load, pitch)
        else:
            raise self.not_a_tile(n.buffer)

    def products(self, stores: Sequence[BufferStore]) -> None:
        """Emit independent products, in an order in which they share operands: with two registers for operands, six products of three rows
        and two columns load seven tiles instead of nine."""
        waiting = list(stores)
        while waiting:
            found = max(waiting, key=self._shared)  # the first of several
            waiting.remove(found)
            self.store(found)

    def _shared(self, n: BufferStore) -> int:
        """The number of operands of a product that are in registers."""
        value: Any = n.value
        rows = [self._rows(e) for e in value.args[1:]]
        return sum((load.buffer, load.indices[0], pitch) in self._held for load, pitch in rows)

    def spill(self, n: BufferStore) -> None:
        """Emit a store of a tile register to memory."""
        load: Any = n.value
        if (
            load.mask is not None
            or load.lanes * dt.nbytes(load.buffer.dtype) != TILE_BYTES
            or n.mask is not None
            or n.stride not in (None, ONE)
        ):
            raise self.not_a_tile(load.buffer)
        register = self.register_of(load.buffer, load.indices[0])
        at = self._address(n.buffer, n.indices[0])
        self._call("llvm.x86.tilestored64", [("i8", str(register)), ("ptr", at), ("i64", str(ROW_BYTES))])

    def not_a_tile(self, b: Buffer) -> BuildError:
        """The error of an access that is not a whole tile."""
        return BuildError(
            f"{self.function}: the buffer {b.name} of scope {TILE_SCOPE} is accessed by other code than tensor intrinsics of whole tiles. "
            "Tensorize all loops that access it, and pad the operands to whole tiles (pad_einsum)"
        )

    def _is_same(self, e: Expr, n: BufferStore) -> bool:
        return isinstance(e, BufferLoad) and e.buffer is n.buffer and e.indices == n.indices and e.mask is None
