"""Products of tiles: which blocks, which targets, results, the law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import te
from tunesmith.codegen.llvm.build import assembly, build
from tunesmith.ir import structural
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules.block_classes import is_contraction
from tunesmith.search.space.rules.tile_instruction import tile_product_of
from tunesmith.search.space.rules.tile_products import sketches
from tunesmith.search.space.rules_table import generate, sketches_of

AMX = Target("llvm -mcpu=sapphirerapids -num-cores=2")


def product(m: int, n: int, k: int, left: str = "uint8", right: str = "int8", out: str = "int32", constant: bool = False) -> PrimFunc:
    a, b, r = te.placeholder((m, k), left, "A"), te.placeholder((k, n), right, "B"), te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r].astype(out) * b[r, j].astype(out), axis=r), "C")
    func = te.create_prim_func([a, b, c], "product")
    return func.with_(attrs=(("constants", "B"),)) if constant else func


def instruction(func: PrimFunc, target: Target = AMX) -> str | None:
    found = tile_product_of(next(b for b in blocks_under(func.body) if is_contraction(b)), target)
    return None if found is None else found.instruction


def test_instructions_by_type() -> None:
    assert instruction(product(32, 32, 64)) == "x86.tdpbusd"
    assert instruction(product(32, 32, 64, "int8", "int8")) == "x86.tdpbssd"
    assert instruction(product(32, 32, 64, "int8", "uint8")) == "x86.tdpbsud"
    assert instruction(product(32, 32, 64, "uint8", "uint8")) == "x86.tdpbuud"
    assert instruction(product(32, 32, 64, "bfloat16", "bfloat16", "float32")) == "x86.tdpbf16ps"
    assert instruction(product(32, 32, 64, "float16", "float16", "float32")) is None
    assert instruction(product(32, 32, 64, "float32", "float32", "float32")) is None


def test_other_targets_have_no_sketch() -> None:
    func = product(32, 32, 64)
    assert sketches(func, Target("llvm -mcpu=znver5 -num-cores=2")) == []
    assert sketches(func, Target("llvm -mcpu=sapphirerapids -mattr=-amx-int8 -num-cores=2")) == []
    assert sketches(func, Target("llvm -mcpu=sapphirerapids -mattr=-amx-tile -num-cores=2")) == []
    assert sketches(func, Target("cuda -arch=sm_90")) == []


def test_rows_are_the_axis_that_fills_tiles_best() -> None:
    """48 positions are three tiles; 10 images fill ten of sixteen rows."""
    block = blocks_under(workload("conv2d(n=10,h=3,w=48,ci=64,co=32,kh=1,kw=1,dtype=uint8,rhs_dtype=int8)").func.body)
    found = tile_product_of(next(b for b in block if is_contraction(b)), AMX)
    assert found is not None and found.padding[found.rows] == 1
    assert [p for p in found.padding if p > 1] == []


def test_vectors_have_no_tiles() -> None:
    assert instruction(product(1, 32, 64)) is None
    assert instruction(workload("matmul(m=64,n=32,k=64,ta=1,dtype=uint8,rhs_dtype=int8)").func) is None, "its groups are no neighbours"


def test_a_result_with_two_readers_has_no_sketch() -> None:
    """The sums of a nest have one epilogue."""
    a, b, r = te.placeholder((32, 64), "int8", "A"), te.placeholder((64, 32), "int8", "B"), te.reduce_axis(64, "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, r].astype("int32") * b[r, j].astype("int32"), axis=r), "C")
    d, e = (te.compute((32, 32), lambda i, j, n=n: c[i, j] + n, name) for n, name in ((1, "D"), (2, "E")))
    assert sketches(te.create_prim_func([a, b, d]), AMX)
    assert sketches(te.create_prim_func([a, b, d, e]), AMX) == []


EPILOGUES: dict[str, tuple[tuple[int, ...], Callable[..., Callable[..., Expr]], int]] = {
    "elementwise": ((32, 32), lambda c: lambda i, j: c[i, j] + 1, 8),
    "transposed": ((32, 32), lambda c: lambda i, j: c[j, i] + 1, 8),
    "part": ((16, 32), lambda c: lambda i, j: c[i, j] + 1, 8),
    "split": ((2, 16, 32), lambda c: lambda q, i, j: c[q * 16 + i, j] + 1, 8),
    "flat": ((1024,), lambda c: lambda f: c[f // 32, f % 32] + 1, 4),
    "one column": ((32,), lambda c: lambda i: c[i, 0] + 1, 0),
    "one row": ((32,), lambda c: lambda j: c[0, j] + 1, 0),
    "diagonal": ((32,), lambda c: lambda i: c[i, i] + 1, 0),
    "shifted": ((16, 32), lambda c: lambda i, j: c[i + 3, j] + 1, 0),
    "symmetric": ((32, 32), lambda c: lambda i, j: c[i, j] + c[j, i], 0),
}
"""The shape of the result, its elements, and the number of sketches."""


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_that_do_not_read_element_by_element_have_no_sketch(name: str, between: bool) -> None:
    """The rule proposes no schedule whose epilogue `reverse_compute_at` refuses."""
    shape, element, count = EPILOGUES[name]
    a, b, k = te.placeholder((32, 64), "uint8", "A"), te.placeholder((64, 32), "int8", "B"), te.reduce_axis(64, "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k), "C")
    d = te.compute((32, 32), lambda i, j: c[i, j] * 2, "doubled") if between else c
    func = te.create_prim_func([a, b, te.compute(shape, element(d), "D")], "product")
    assert len(sketches_of(sketches, func, AMX)) == count
    assert count or not sketches(func, AMX)


def test_padding_for_a_single_task_is_outside_of_its_tiles() -> None:
    """The loops of a single task are gone, and the rows are padded by all threads before it."""
    for sketch in generate(product(5, 15, 64), AMX, rules=[sketches]).sketches:
        for row in sketch.space.sample(2, np.random.default_rng(0)):
            build(sketch.concretize(tuple(row.tolist())), AMX)


CASES = {
    "whole": "matmul(m=32,n=48,k=128,dtype=uint8,rhs_dtype=int8)",
    "padded": "matmul(m=21,n=18,k=70,dtype=int8,rhs_dtype=int8)",
    "constant": "dense(m=18,n=33,k=64,dtype=uint8,rhs_dtype=int8)",
    "transposed": "matmul(m=32,n=32,k=64,tb=1,dtype=uint8,rhs_dtype=int8)",
    "batch": "batch_matmul(b=2,m=20,n=16,k=64,dtype=uint8,rhs_dtype=int8)",
    "blocked": "matmul(m=18,n=20,k=1030,dtype=uint8,rhs_dtype=int8)",
    "bfloat16": "dense(m=20,n=32,k=40,dtype=bfloat16,out_dtype=float32)",
    "image": "conv2d(n=1,h=2,w=18,ci=64,co=20,kh=3,kw=3,pad=1,dtype=uint8,rhs_dtype=int8)",
    "strided": "conv2d(n=1,h=7,w=15,ci=24,co=16,kh=3,kw=3,stride=2,pad=1,dtype=uint8,rhs_dtype=int8)",
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_law(amx_target: Target, name: str) -> None:
    case = workload(CASES[name])
    func, given = case.func, case.random_inputs()
    assert case.reference is not None
    want = run(func, given)[-1] if name == "bfloat16" else case.reference(given)[-1]  # numpy adds products of bfloat16 in another order
    rng = np.random.default_rng(0)
    space = generate(func, AMX, rules=[sketches])
    assert not space.refused and not space.left_out
    for n, sketch in enumerate(space.sketches):
        numbers = tuple(int(x) for x in sketch.space.sample(1, rng)[0])
        program = sketch.concretize(numbers)
        assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func)
        if n % 2 and "blocked" not in sketch.name:
            continue  # the emulation takes 10 us for an instruction, the interpreter as long for a product
        if n == 0:
            np.testing.assert_allclose(run(program, given)[-1], want, rtol=1e-6)
        out = np.zeros_like(want)
        Module.from_object(build(program, amx_target).data)[func.name](
            *[_narrow(x, p.dtype) for x, p in zip(given, func.params, strict=False)], out
        )  # type: ignore[union-attr]
        scale = max(float(np.abs(want).max()), 1.0)
        assert np.abs(out.astype("float64") - want).max() <= (2e-6 * scale if name == "bfloat16" else 0)
        assert "tdpb" in assembly(program, AMX)


def _narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """bfloat16 values, which the interpreter has as float32, as an array of bfloat16."""
    if dtype != "bfloat16":
        return x
    assert (round_bfloat16(x) == x).all()
    return x.astype(pytest.importorskip("ml_dtypes").bfloat16)


def test_the_law_of_configurations() -> None:
    """More rows of the space, without running them: the parametric schedule and its replay agree."""
    func = workload("dense(m=40,n=70,k=130,dtype=bfloat16)").func
    rng = np.random.default_rng(1)
    for sketch in generate(func, AMX, rules=[sketches]).sketches:
        for row in sketch.space.sample(6, rng):
            numbers = tuple(int(x) for x in row)
            assert structural.equal(sketch.concretize(numbers), replay(sketch.trace.with_configuration(numbers), func).func)
