"""Define the matrix products of AMX tiles as tensor intrinsics.

The eight tile registers hold 16 rows of 64 bytes: 16 x 16 sums of 32 bits, or 16 rows of 16 groups, the 2 bfloat16 or 4 bytes that are
neighbours along the reduction.  Sums are in scope `amx.tile`, and reach memory a whole tile at a time.  The other operands are in memory:
A as rows at any distance, B packed as 16 groups of the reduction x 16 columns x the elements of a group.  The code generator loads them
into tile registers, and loads a tile once that several products share.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.buffer import TILE_SCOPE, BufferLoad
from tunesmith.ir.expr import Broadcast, Call, Expr, const
from tunesmith.ir.intrinsics import BYTE_PRODUCTS
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.tensor_intrinsics.intrinsic import Implementation, Operand, TensorIntrinsic
from tunesmith.ir.tile_products import TILE_ROWS
from tunesmith.support import dtype as dt

_SQUARE = f"({TILE_ROWS}, {TILE_ROWS})"
TILE_ELEMENTS = TILE_ROWS * TILE_ROWS
"""Elements of 32 bits in a tile."""
SLOTS, LATENCY = 32.0, 104.0
"""16 and 52 cycles, with two multiply-adds a cycle (Intel, Optimization Reference Manual)."""


def _product(instruction: str, group: int) -> Implementation:
    """C += A @ B."""
    columns = TILE_ROWS * group

    def implementation(operands: Mapping[str, Operand], active: Poly | None) -> BufferStore:
        a, b, c = operands["A"], operands["B"], operands["C"]
        pitch = a.sizes["pitch"]
        left: Expr
        if pitch == columns:
            left = BufferLoad(a.buffer, (a.index,), TILE_ROWS * columns, ONE)
        else:
            rows = tuple([BufferLoad(a.buffer, (a.index + pitch * r,), columns, ONE) for r in range(TILE_ROWS)])
            left = Call("concat16", rows, dt.vector(a.buffer.dtype, TILE_ROWS * columns))
        right = BufferLoad(b.buffer, (b.index,), TILE_ROWS * columns, ONE)
        total = BufferLoad(c.buffer, (c.index,), TILE_ELEMENTS, ONE)
        return BufferStore(c.buffer, (c.index,), Call(instruction, (total, left, right), dt.vector(c.buffer.dtype, TILE_ELEMENTS)), ONE)

    return implementation


def _zero(operands: Mapping[str, Operand], active: Poly | None) -> BufferStore:
    c = operands["C"]
    return BufferStore(c.buffer, (c.index,), Broadcast(const(0, c.buffer.dtype), TILE_ELEMENTS), ONE)


def _copy(operands: Mapping[str, Operand], active: Poly | None) -> BufferStore:
    c, source = operands["C"], operands["S"]
    return BufferStore(c.buffer, (c.index,), BufferLoad(source.buffer, (source.index,), TILE_ELEMENTS, ONE), ONE)


def _product_text(group: int, left: str, right: str, out: str) -> str:
    shape = f"({TILE_ROWS}, {TILE_ROWS}, {group})"
    return f"""
@T.prim_func
def product(A: T.Buffer(({TILE_ROWS}, pitch), "{left}"), B: T.Buffer({shape}, "{right}"), C: T.Buffer({_SQUARE}, "{out}", "{TILE_SCOPE}"),
            pitch: T.int64):
    for i, j, k, g in T.grid({TILE_ROWS}, {TILE_ROWS}, {TILE_ROWS}, {group}):
        with T.block("C"):
            vi, vj, vk, vg = T.axis.remap("SSRR", [i, j, k, g])
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk * {group} + vg], "{out}") * T.cast(B[vk, vj, vg], "{out}")
"""


def _copy_text(out: str, source: str, destination: str) -> str:
    return f"""
@T.prim_func
def copy(S: T.Buffer({_SQUARE}, "{out}", "{source}"), C: T.Buffer({_SQUARE}, "{out}", "{destination}")):
    for i, j in T.grid{_SQUARE}:
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = S[vi, vj]
"""


def _zero_text(out: str) -> str:
    return f"""
@T.prim_func
def zero(C: T.Buffer({_SQUARE}, "{out}", "{TILE_SCOPE}")):
    for i, j in T.grid{_SQUARE}:
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = {"0" if dt.is_int(out) else "0.0"}
"""


_TILE, _BF16, _INT8 = frozenset({"amx-tile"}), frozenset({"amx-tile", "amx-bf16"}), frozenset({"amx-tile", "amx-int8"})
_SUFFIX = {"float32": "f32", "int32": "s32"}


def _bytes(instruction: str, left: str, right: str) -> TensorIntrinsic:
    text = _product_text(4, left, right, "int32")
    return TensorIntrinsic(f"x86.{instruction}", text, _product(instruction, 4), (_INT8,), instruction, SLOTS, LATENCY)


TDPBF16PS = TensorIntrinsic(
    "x86.tdpbf16ps",
    _product_text(2, "bfloat16", "bfloat16", "float32"),
    _product("tdpbf16ps", 2),
    (_BF16,),
    "tdpbf16ps",
    SLOTS,
    LATENCY,
)
TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD = [_bytes(*types) for types in BYTE_PRODUCTS]
TILEZERO_F32, TILEZERO_S32 = [TensorIntrinsic(f"x86.tilezero.{_SUFFIX[t]}", _zero_text(t), _zero, (_TILE,)) for t in _SUFFIX]
TILELOAD_F32, TILELOAD_S32 = [
    TensorIntrinsic(f"x86.tileload.{_SUFFIX[t]}", _copy_text(t, "global", TILE_SCOPE), _copy, (_TILE,)) for t in _SUFFIX
]
TILESTORE_F32, TILESTORE_S32 = [
    TensorIntrinsic(f"x86.tilestore.{_SUFFIX[t]}", _copy_text(t, TILE_SCOPE, "global"), _copy, (_TILE,)) for t in _SUFFIX
]
