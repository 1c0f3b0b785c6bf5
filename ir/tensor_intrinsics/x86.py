"""Dot products of bytes and of bfloat16 in the lanes of vector registers: VNNI and AVX512-BF16.

A lane of 32 bits holds four bytes, or two bfloat16, that are neighbours along the reduction.  So the second operand is packed: the
elements of a lane are adjacent in memory, and those of neighbouring lanes follow.  The first operand is broadcast to all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, const
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.tensor_intrinsics.intrinsic import Implementation, Operand, TensorIntrinsic
from tunesmith.support import dtype as dt

Types = tuple[str, str, str]
"""Element types of A, B and C."""


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


def _signed_dot(lanes: int) -> Implementation:
    """C[j] += dot products of signed bytes by the instruction for unsigned and signed ones: a * b = (a + 128) * b - 128 * b.

    The second product does not depend on A, so the rows of a register tile share it.
    """

    def implementation(operands: Mapping[str, Operand], active: Poly | None) -> BufferStore:
        a, b, c = operands["A"], operands["B"], operands["C"]
        unsigned, out = dt.vector("uint8", lanes * 4), dt.vector("int32", lanes)
        few = BufferLoad(a.buffer, (a.index,), 4, ONE)
        offset = Broadcast(const(-0x7F7F7F80, "int32"), lanes)  # 0x80 in each byte
        each = Binary("bitxor", Broadcast(Call("reinterpret", (few,), "int32"), lanes), offset)
        right = BufferLoad(b.buffer, (b.index,), lanes * 4, ONE, None if active is None else active * 4)
        total = BufferLoad(c.buffer, (c.index,), lanes, ONE, active)
        excess = Call("vpdpbusd", (Broadcast(const(0, "int32"), lanes), Call("reinterpret", (offset,), unsigned), right), out)
        value = Call("vpdpbusd", (Binary("sub", total, excess), Call("reinterpret", (each,), unsigned), right), out)
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


def _made(name: str, implementation: Implementation, lanes: int, group: int, types: Types, *features: frozenset[str]) -> TensorIntrinsic:
    instruction = "vpdpbusd" if "int8" in types else "vdpbf16ps"
    return TensorIntrinsic(f"x86.{name}", _description(lanes, group, *types), implementation, features, instruction, masked=True)


_BYTES, _SIGNED, _HALVES = ("uint8", "int8", "int32"), ("int8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")
_VNNI, _SHORT_VNNI, _AVX = frozenset({"avx512vnni"}), frozenset({"avx512vnni", "avx512vl"}), frozenset({"avxvnni"})
_BF16, _SHORT_BF16 = frozenset({"avx512bf16"}), frozenset({"avx512bf16", "avx512vl"})

VPDPBUSD_512 = _made("vpdpbusd.512", _dot("vpdpbusd", 16, 4), 16, 4, _BYTES, _VNNI)
VPDPBUSD_256 = _made("vpdpbusd.256", _dot("vpdpbusd", 8, 4), 8, 4, _BYTES, _SHORT_VNNI, _AVX)
VPDPBUSD_128 = _made("vpdpbusd.128", _dot("vpdpbusd", 4, 4), 4, 4, _BYTES, _SHORT_VNNI, _AVX)
VPDPBUSD_S8S8_512 = _made("vpdpbusd_s8s8.512", _signed_dot(16), 16, 4, _SIGNED, _VNNI)
VPDPBUSD_S8S8_256 = _made("vpdpbusd_s8s8.256", _signed_dot(8), 8, 4, _SIGNED, _SHORT_VNNI, _AVX)
VPDPBUSD_S8S8_128 = _made("vpdpbusd_s8s8.128", _signed_dot(4), 4, 4, _SIGNED, _SHORT_VNNI, _AVX)
VDPBF16PS_512 = _made("vdpbf16ps.512", _dot("vdpbf16ps", 16, 2), 16, 2, _HALVES, _BF16)
VDPBF16PS_256 = _made("vdpbf16ps.256", _dot("vdpbf16ps", 8, 2), 8, 2, _HALVES, _SHORT_BF16)
VDPBF16PS_128 = _made("vdpbf16ps.128", _dot("vdpbf16ps", 4, 2), 4, 2, _HALVES, _SHORT_BF16)
