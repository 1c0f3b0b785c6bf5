"""Test calls with cold constants: results, the original call, and cases without rotation."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.measure.evaluator.packed_call import PackedCall, cold_memory, load_call
from tunesmith.ops.workload import workload
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.search.space.rules_table import generate

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
COMMON = np.frombuffer(b"\x3c\x3c\x3c\x3c", np.float32)[0]


def dense(packed: bool) -> tuple[PackedCall, list[np.ndarray], tuple[ParamSpec, ...]]:
    """A call of a 3 x 5 by 5 x 20 product with constant weights, packed or not."""
    w = workload("dense(m=3,n=20,k=5,bias=0)")
    sketch = next(s for s in generate(w.func, TARGET).sketches if ("const" in s.name) == packed)
    row = tuple([int(x) for x in sketch.space.sample(1, np.random.default_rng(0))[0]])
    artifact = build(sketch.concretize(row), TARGET, packing="ahead")
    arguments = [*w.random_inputs(0), np.full((3, 20), np.nan, np.float32)]
    params = tuple([ParamSpec(p.name, "float32", a.shape) for p, a in zip(w.func.params, arguments, strict=True)])
    return load_call(artifact.code(), arguments), arguments, params


@pytest.mark.parametrize("packed", [True, False])
def test_cold_calls_read_constants_from_rotating_addresses(packed: bool) -> None:
    call, arguments, params = dense(packed)
    y = arguments[-1]
    call()
    right = y.copy()
    memory = cold_memory(8 * 1024)
    size = 20 * 5 * 4 if not packed else next(iter(call._arrays.values())).data.nbytes
    assert 2 <= memory.nbytes // (size + 64)
    cold = call.cold([p if p.name == "W" else None for p in params], memory)
    memory.view(np.float32)[:] = COMMON * np.arange(len(memory) // 4)  # so that the copies differ
    seen = set()
    for _ in range(3 * (memory.nbytes // size)):
        y.fill(np.nan)
        cold()
        assert np.isfinite(y).all()
        seen.add(y.tobytes())
    assert 2 <= len(seen) <= memory.nbytes // size
    call()
    np.testing.assert_array_equal(y, right)


def test_bytes_of_cold_memory_are_ordinary_numbers() -> None:
    call, arguments, _ = dense(packed=True)
    call.cold([None] * 3, cold_memory(1 << 16))()
    np.testing.assert_allclose(arguments[-1], np.repeat(arguments[0].sum(axis=1, keepdims=True) * COMMON, 20, axis=1), rtol=1e-5)
    for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "uint16", "int64"):
        array = GuardedArray(dtype, (16,))
        array.data.view(np.uint8)[:] = cold_memory(array.data.nbytes)
        values = array.load().astype(np.float64)
        assert np.isfinite(values).all() and (values > 1e-20).all()


def test_cold_call_without_constants_or_memory_is_unchanged() -> None:
    call, _, params = dense(packed=False)
    assert call.cold([None] * len(params), cold_memory(1 << 16)) is call
    assert call.cold([p if p.name == "W" else None for p in params], cold_memory(500)) is call
    assert call.cold([p if p.name == "W" else None for p in params], cold_memory(0)) is call


def test_cold_calls_of_bfloat16_keep_their_arguments() -> None:
    w = workload("dense(m=3,n=20,k=6,bias=0,dtype=bfloat16)")
    sketch = next(s for s in generate(w.func, TARGET).sketches if "const" in s.name)
    row = tuple([int(x) for x in sketch.space.sample(1, np.random.default_rng(0))[0]])
    arrays = [GuardedArray("bfloat16", spec.shape) for spec in (*w.inputs, *w.outputs)]
    inputs = w.random_inputs(0)
    for array, values in zip(arrays, inputs, strict=False):
        array.store(values)
    code = build(sketch.concretize(row), TARGET, packing="ahead").code()
    call = load_call(code, [a.argument() for a in arrays])
    cold = call.cold([None] * 3, cold_memory(1 << 16))
    for _ in range(200):
        cold()
    call()
    np.testing.assert_allclose(arrays[2].load(), w.reference(inputs)[0], rtol=1e-2, atol=1e-2)
