"""Select elements of bytes instead of elements of their dequantised numbers, a fourth of the memory.

    max_pool2d(dequantize(q, s, z))  ->  dequantize(max_pool2d(q), s, z)
    quantize(dequantize(q, s, z), s, z)  ->  q

Quantised models convert the operands and the result of every operator.  Both rewrites together leave a pooling that reads and writes bytes,
and contractions that find the bytes of their operands behind a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant, Operand, Operation
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.ir.function import IRModule
from tunesmith.support import dtype as dt

_SELECTIONS = ("expand_dims", "flip", "max_pool2d", "permute_dims", "reshape", "squeeze", "strided_slice")


def sink_dequantize(mod: IRModule) -> IRModule:
    """Apply these rewrites for constant scales and zero points of one element: results are equal bit for bit.

    Selections are expand_dims, flip, max_pool2d, permute_dims, reshape, squeeze and strided_slice.  A `quantize` is removed if its
    scale and zero point equal those of its operand, and the type has at most 16 bits, for which (q - z) * s / s is rounded to q - z.
    """
    done = {name: _Sink()(f) for name, f in mod.items() if isinstance(f, GraphFunc)}
    return dead_code(mod.update(done)) if any(done[name] is not mod[name] for name in done) else mod


class _Sink(Rewriter):
    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """See `Rewriter.visit`."""
        if not isinstance(operation, Call):
            return None
        source = self.made_by(operation.args[0]) if operation.args else None
        if source is None or source.operator != "dequantize":
            return None
        q, *pair = source.args
        if not all(isinstance(a, Constant) and a.data.size == 1 and a.data.ndim <= len(q.type.shape) for a in pair):
            return None
        if operation.operator == "quantize":
            ranks = [len(a.type.shape) for a in operation.args]
            same = (
                all(isinstance(b, Constant) and _equal(a, b) for a, b in zip(pair, operation.args[1:], strict=True))
                and max(ranks) == ranks[0]
            )
            return [q] if same and dt.bits(q.type.dtype) <= 16 and _is_invertible(pair[0]) else None
        if operation.operator not in _SELECTIONS or (operation.operator == "max_pool2d" and not _is_order_kept(operation, pair[0])):
            return None
        # Constants with dimensions would add them to a result of lower rank.
        units = [Constant(a.name, a.data.reshape(())) for a in pair if isinstance(a, Constant)]
        return [build.dequantize(build.call(operation.operator, q, **operation.keywords), *units)]


def _equal(a: Operand, b: Constant) -> bool:
    return isinstance(a, Constant) and a.type.dtype == b.type.dtype and b.data.size == 1 and bool(a.data.item() == b.data.item())


def _is_invertible(scale: Operand) -> bool:
    """Whether products of the scale with 16-bit integers are normal numbers."""
    return isinstance(scale, Constant) and scale.data.dtype == np.float32 and bool(1e-30 < scale.data.item() < 1e30)


def _is_order_kept(pool: Call, scale: Operand) -> bool:
    """Whether the scale is positive, and every window contains an element: the maximum of none is no byte."""
    kernel: Any = pool.attr("kernel")
    padding: Any = pool.attr("padding")
    covered = pool.attr("dilation") == (1, 1) and not pool.attr("ceil_mode") and all(p < kernel[i % 2] for i, p in enumerate(padding))
    return covered and isinstance(scale, Constant) and bool(0.0 < scale.data.item() < np.inf)
