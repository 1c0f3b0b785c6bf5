"""Define products with matrices of 4-bit weights in groups, two weights in a byte (weight-only quantisation of decoders).

The rows of a matrix are divided into groups, and each group of a column has a scale and an offset:

    w[r, j] = nibble[r, j] * scale[r // group, j] + offset[r // group, j]

A byte holds the weights of the rows 2 i, in its lower half, and 2 i + 1 of a column, so that vectors of columns are unpacked by a mask and
a shift.  An offset of -8 * scale makes symmetric weights, -zero * scale those of a zero point.
"""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.ir.expr import Expr, call, cast
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def pack_int4(nibbles: np.ndarray) -> np.ndarray:
    """The bytes [k / 2, n] of numbers from 0 to 15, an integer array [k, n] with an even k."""
    return (nibbles[0::2] | nibbles[1::2] << 4).astype(np.uint8)


def unpack_int4(packed: np.ndarray) -> np.ndarray:
    """The numbers [k, n], uint8, of bytes [k / 2, n]."""
    return np.stack([packed & 15, packed >> 4], 1).reshape(2 * packed.shape[0], *packed.shape[1:])


def _matmul_int4(x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    group = _group(x, packed, scale, offset)
    g, pair, half = te.reduce_axis(scale.shape[0], "g"), te.reduce_axis(group // 2, "k"), te.reduce_axis(2, "half")

    def element(*index: Poly) -> Expr:
        *row, j = index
        byte = g * (group // 2) + pair
        nibble = (cast("int32", packed[byte, j]) >> (cast("int32", half) * 4)) & 15
        return te.sum(x[(*row, byte * 2 + half)] * call("fma", cast("float32", nibble), scale[g, j], offset[g, j]), axis=[g, pair, half])

    rows = len(x.shape) - 1
    return te.compute((*x.shape[:-1], packed.shape[1]), element, "C", axes=[*[f"i{d}" if rows > 1 else "i" for d in range(rows)], "j"])


def _group(x: Tensor, packed: Tensor, scale: Tensor, offset: Tensor) -> int:
    """The rows of a group.  ScriptError if the operands do not fit."""
    types = [t.dtype for t in (x, packed, scale, offset)]
    if types != ["float32", "uint8", "float32", "float32"]:
        raise ScriptError(f"the operands are float32, the packed weights uint8, not {', '.join(types)}; insert a cast")
    if not x.shape or not len(packed.shape) == len(scale.shape) == len(offset.shape) == 2:
        raise ScriptError("the first operand has rows of k elements, the others are matrices")
    k, groups = x.shape[-1].const, scale.shape[0].const
    if k is None or not groups or k % (2 * groups):
        raise ScriptError(f"rows of {x.shape[-1]} elements are no {scale.shape[0]} groups of an even number of weights")
    if packed.shape[0] != k // 2 or scale.shape != offset.shape or scale.shape[1] != packed.shape[1]:
        bytes_, scales, offsets = [f"[{', '.join(map(repr, t.shape))}]" for t in (packed, scale, offset)]
        raise ScriptError(
            f"the shapes {bytes_} of bytes, {scales} of scales and {offsets} of offsets do not fit rows of {k} elements: the bytes have"
            f" {k // 2} rows, and scales and offsets one row for each group"
        )
    return k // groups


def _matmul_int4_reference(x: np.ndarray, packed: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    group = x.shape[-1] // scale.shape[0]
    wide = [np.repeat(a.astype(np.float64), group, 0) for a in (scale, offset)]
    return np.asarray(x.astype(np.float64) @ (unpack_int4(packed) * wide[0] + wide[1])).astype(np.float32)


MATMUL_INT4 = GraphOperator(
    "matmul_int4",
    FUSABLE,
    _matmul_int4,
    _matmul_int4_reference,
    meaning="x[..., k] times a matrix of 4-bit weights: bytes [k / 2, n] with the rows 2 i in the lower and 2 i + 1 in the upper halves,"
    " float32 scales and offsets [groups, n]; a weight is its number from 0 to 15 times the scale plus the offset of its group of rows.",
)
