"""Test lower bounds of run times: proportional to required work, and not raised by optional work."""

from __future__ import annotations

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.measure.time_floor import MARGIN, SHORTEST, min_seconds
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import workload

CPU = Target("llvm -mcpu=znver5 -num-cores=2")
GPU = Target("nvidia/h200")


@pytest.mark.parametrize("target", [CPU, GPU])
def test_bound_is_proportional_to_the_work(target: Target) -> None:
    for m in (1024, 2048):
        least = min_seconds(workload(f"matmul(m={m},n={m},k={m})").func, target)
        flops = max(target.peak_gflops, getattr(target, "tensor_gflops", 0.0)) * 1e9
        assert least == pytest.approx(m**3 / (flops * MARGIN)) and least < 2 * m**3 / flops / 32
    large = min_seconds(workload(f"relu(shape={1 << 26})").func, target)
    assert SHORTEST < large < (1 << 26) * 4 / (target.dram_gbs * 1e9)
    assert min_seconds(workload("relu(shape=8)").func, target) == SHORTEST


SCRIPT = """
@T.prim_func
def f(A: T.Buffer((1048576,), "float32"), C: T.Buffer((1048576,), "float32")):
    for i in range({rows}):
        with T.block("C"):
            v = T.axis.spatial(1048576, i)
            {where}
            C[v] = A[v] * 2.0
"""


def least(rows: int, where: str = "pass") -> float:
    func = parse(SCRIPT.format(rows=rows, where=where).replace("            pass\n", ""))
    assert isinstance(func, PrimFunc)
    return min_seconds(func, CPU)


def test_only_unconditional_work_counts() -> None:
    assert least(1048576) > least(8) == SHORTEST
    assert least(1048576, "T.where(i < 8)") == SHORTEST


def test_computation_from_constants_does_not_count() -> None:
    w, x = te.placeholder((1024, 1024), name="W"), te.placeholder((8,), name="X")
    k = te.reduce_axis(1024, "k")
    norms = te.compute((1024,), lambda i: te.sum(w[i, k], axis=k), name="N")
    scaled = te.compute((8,), lambda i: x[i] * norms[i], name="Y")
    func = te.create_prim_func([w, x, scaled], "f")
    assert min_seconds(func, CPU) > SHORTEST == min_seconds(func.with_(attrs=(("constants", "W"),)), CPU)


def test_dynamic_shapes_do_not_raise_the_bound() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    func = te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, "Y")], "doubled")
    assert min_seconds(func, CPU) == SHORTEST
