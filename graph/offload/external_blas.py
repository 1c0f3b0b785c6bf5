"""Offload dense layers to a BLAS: matrix products with transposition and bias become one call of `cblas_sgemm`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tunesmith.codegen.external_blas import GEMM, LIBRARIES, Blas, Dense, dense_object, find_blas
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, Operand
from tunesmith.graph.ir.pattern import Pattern
from tunesmith.graph.offload.external_codegen import ExternalCodegen, external_specs
from tunesmith.ir.target.target import Target


class BlasCodegen(ExternalCodegen):
    """Offload dense layers.

    Args:
        library: file name or path of a shared library with CBLAS (32-bit sizes); by default the first installed one of
            `codegen.external_blas.LIBRARIES`.
    """

    name = "blas"
    patterns = (Pattern("dense", ("permute_dims?", "matmul", "add?")),)

    def __init__(self, library: str | None = None) -> None:
        self._names = LIBRARIES if library is None else (library,)

    @cached_property
    def blas(self) -> Blas:
        """The BLAS library.  BuildError if no library is found."""
        return find_blas(self._names)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The soname of the BLAS library."""
        return (self.blas.soname,)

    def supports(self, calls: Sequence[Binding]) -> bool:
        """Whether operands are float32 or float64 matrices, and the bias has one row or the shape of the result."""
        return _dense(calls, {}) is not None

    def compile(self, func: GraphFunc, target: Target) -> bytes:
        """Emit one BLAS call, preceded by a copy of the bias."""
        dense = _dense(func.body.bindings, {p: i for i, p in enumerate(func.params)})
        assert dense is not None
        return dense_object(func.name, dense, external_specs(func), self.blas, target)


def _dense(calls: Sequence[Binding], positions: dict[Operand, int]) -> Dense | None:
    """The dense layer computed by a chain, None if a BLAS cannot compute it; operands missing in `positions` get the position 0."""
    found = {b.operation.operator: b for b in calls if isinstance(b.operation, Call)}
    product, transpose = found["matmul"], found.get("permute_dims")
    a, b = product.operation.args
    result = product.results[0].type
    if len(a.type.shape) != 2 or len(b.type.shape) != 2 or result.dtype not in GEMM:
        return None
    m, n, k = *result.extents, a.type.extents[1]
    transposed = set() if transpose is None else set(transpose.results)
    a_transposed, b_transposed = a in transposed, b in transposed
    if transpose is not None:
        if not isinstance(transpose.operation, Call) or not _is_transpose(transpose.operation):
            return None
        before = transpose.operation.args[0]
        a, b = before if a_transposed else a, before if b_transposed else b
    bias, rows = None, 1
    if "add" in found:
        others: list[Operand] = [o for o in found["add"].operation.args if o is not product.results[0]]
        if len(others) != 1 or found["add"].results[0].type != result:
            return None
        bias = others[0]
        lead = bias.type.extents[:-1]
        if bias.type.extents[-1:] != (n,) or lead not in ((), (1,), (m,)):
            return None
        rows = m if lead == (m,) else 1
    at = [positions.get(o, 0) if o is not None else None for o in (a, b, bias)]
    assert at[0] is not None and at[1] is not None
    return Dense(m, n, k, result.dtype, at[0], at[1], a_transposed, b_transposed, at[2], rows)


def _is_transpose(call: Call) -> bool:
    """Whether a permute_dims transposes a matrix."""
    axes = call.attr("axes")
    return len(call.args[0].type.shape) == 2 and (axes is None or tuple([x % 2 for x in axes]) == (1, 0))
