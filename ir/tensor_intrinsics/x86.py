"""Dot products of bytes and of bfloat16 in the lanes of vector registers: VNNI and AVX512-BF16.

A lane of 32 bits holds four bytes, or two bfloat16, that are neighbours along the reduction.  So the second operand is packed: the
elements of a lane are adjacent in memory, and those of neighbouring lanes follow.  The first operand is broadcast to all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Broadcast, Call
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.tensor_intrinsics.intrinsic import Implementation, Operand, TensorIntrinsic
from tunesmith.support import dtype as dt


def _dot(instruction: str, lanes: int, group: int) -> Implementation:
    """C[j] += the instruction of a group of A, in all lanes, and the lanes of B."""

    def implementation(operands: Mapping[str, Operand], active: Poly | None) -> BufferStore:
        a, b, c = operands["A"], operands["B"], operands["C"]
        few = BufferLoad(a.buffer, (a.index,), group, ONE)
        each = Broadcast(Call("reinterpret", (few,), "int32"), lanes)
        left = Call("reinterpret", (each,), dt.vector(a.buffer.dtype, lanes * group))
        right = BufferLoad(b.buffer, (b.index,), lanes * group, ONE, None if active is None else active * group)
        total = BufferLoad(c.buffer, (c.index,), lanes, ONE, active)
        value = Call(instruction, (total, left, right), dt.vector(c.buffer.dtype, lanes))
        return BufferStore(c.buffer, (c.index,), value, ONE, active)

    return implementation


def _description(lanes: int, group: int, left: str, right: str, out: str) -> str:
    return f"""
@T.prim_func
def dot(A: T.Buffer(({group},), "{left}"), B: T.Buffer(({lanes}, {group}), "{right}"), C: T.Buffer(({lanes},), "{out}")):
    for j, k in T.grid({lanes}, {group}):
        with T.block("C"):
            vj, vk = T.axis.remap("SR", [j, k])
            C[vj] = C[vj] + T.cast(A[vk], "{out}") * T.cast(B[vj, vk], "{out}")
"""


def _made(name: str, lanes: int, group: int, types: tuple[str, str, str], *features: frozenset[str]) -> TensorIntrinsic:
    return TensorIntrinsic(
        f"x86.{name}", _description(lanes, group, *types), _dot(name.partition(".")[0], lanes, group), features, masked=True
    )


_BYTES, _HALVES = ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")
_VNNI, _SHORT_VNNI, _AVX = frozenset({"avx512vnni"}), frozenset({"avx512vnni", "avx512vl"}), frozenset({"avxvnni"})
_BF16, _SHORT_BF16 = frozenset({"avx512bf16"}), frozenset({"avx512bf16", "avx512vl"})

VPDPBUSD_512 = _made("vpdpbusd.512", 16, 4, _BYTES, _VNNI)
VPDPBUSD_256 = _made("vpdpbusd.256", 8, 4, _BYTES, _SHORT_VNNI, _AVX)
VPDPBUSD_128 = _made("vpdpbusd.128", 4, 4, _BYTES, _SHORT_VNNI, _AVX)
VDPBF16PS_512 = _made("vdpbf16ps.512", 16, 2, _HALVES, _BF16)
VDPBF16PS_256 = _made("vdpbf16ps.256", 8, 2, _HALVES, _SHORT_BF16)
VDPBF16PS_128 = _made("vdpbf16ps.128", 4, 2, _HALVES, _SHORT_BF16)
