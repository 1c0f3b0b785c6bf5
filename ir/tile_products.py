"""Compute the products of AMX in numpy, exactly as the instructions do (Intel, Architecture Instruction Set Extensions).

A tile has 16 rows of 64 bytes.  Operands are flat: C is 16 x 16, A is 16 x (16 groups), B is (16 groups) x 16 columns, where a group is the
2 or 4 neighbours along the reduction that share 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TILE_ROWS = 16
"""Rows of a tile, columns of 32 bits, and groups of a reduction."""
TILE_REGISTERS = 8
OPERAND_REGISTERS = 2
"""Tile registers that a product needs for its operands."""
SUM_REGISTERS = TILE_REGISTERS - OPERAND_REGISTERS
"""Tile registers that are left for sums."""

_LOWEST = 2.0**-126 - 2.0**-151
"""Lowest value that is rounded to a normal float32, by rounding to 24 bits without a limit of the exponent."""


def flushed(x: Any) -> Any:
    """float32 with denormals as zeros of the same sign."""
    x = np.asarray(x, np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def flushed_fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z in float32, rounded once, for x and y of 8 significant bits; denormal operands and results are zero."""
    with np.errstate(all="ignore"):
        product, addend = np.float64(1) * flushed(x) * flushed(y), np.asarray(flushed(z), np.float64)
        total = product + addend
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        # Rounding to odd keeps what decides the second rounding, to float32 (Boldo and Melquiond).
        odd = (np.asarray(total).view(np.int64) & 1) != 0
        toward = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
        total = np.where((lost != 0) & np.isfinite(lost) & ~odd, toward, total)
        return np.where(np.abs(total) < _LOWEST, np.copysign(0.0, total), total).astype(np.float32)


def tile_product_bfloat16(c: Any, a: Any, b: Any) -> Any:
    """C + A @ B by the rule of TDPBF16PS: two chains of fused multiply-adds from zero, over the even and the odd elements of the groups;
    then their sum is added to C.  Denormal operands and results are zero."""
    x, y = np.asarray(a, np.float32).reshape(TILE_ROWS, TILE_ROWS, 2), np.asarray(b, np.float32).reshape(TILE_ROWS, TILE_ROWS, 2)
    even = odd = np.zeros((TILE_ROWS, TILE_ROWS), np.float32)
    one = np.float32(1)
    for k in range(TILE_ROWS):
        even = flushed_fma(x[:, k, 0, None], y[None, k, :, 0], even)
        odd = flushed_fma(x[:, k, 1, None], y[None, k, :, 1], odd)
    return flushed_fma(np.reshape(c, (TILE_ROWS, TILE_ROWS)), one, flushed_fma(even, one, odd)).ravel()


def tile_product_bytes(c: Any, a: Any, b: Any) -> Any:
    """C + A @ B of bytes in int32; overflow wraps around."""
    x = np.asarray(a).astype(np.int32).reshape(TILE_ROWS, 4 * TILE_ROWS)
    y = np.asarray(b).astype(np.int32).reshape(TILE_ROWS, TILE_ROWS, 4).transpose(0, 2, 1).reshape(4 * TILE_ROWS, TILE_ROWS)
    with np.errstate(over="ignore"):
        return np.asarray(c, np.int32) + (x @ y).ravel()
