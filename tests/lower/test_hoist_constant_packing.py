"""The packing of constants becomes separate functions, and the results do not change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import te
from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import with_versions
from tunesmith.measure.evaluator.packed_call import load_call
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import BuildError, ScriptError

TARGET = Target("llvm").with_attributes(num_cores=2)
CONV = "conv2d(n=1,h=7,w=6,ci=3,co=20,kh=3,kw=3,pad=1,layout=NCHW,bias=1)"


def dense(m: int = 3, n: int = 20, k: int = 5) -> PrimFunc:
    return workload(f"dense(m={m},n={n},k={k},bias=0)").func


def packed(func: PrimFunc, change: Callable[[Schedule], None] = lambda s: None) -> PrimFunc:
    s = Schedule(func)
    copy = s.cache_read(s.get_block("C"), "W", "global", [[1, "/", 8], 0, [1, "%", 8]])
    s.annotate(copy, "pack_constant", "W")
    change(s)
    return s.func


def test_main_and_packers() -> None:
    hoisted = hoist_constant_packing(packed(dense()))
    assert hoisted is not None
    for f in (hoisted.main, *hoisted.packers):
        verify(f)
    assert [p.name for p in hoisted.main.params] == ["A", "W_copy", "C"]  # type: ignore[union-attr]
    assert hoisted.main.name == "dense__packed" and hoisted.positions == (1,) and hoisted.main.allocs == ()
    (packer,) = hoisted.packers
    expected = parse(
        """
@T.prim_func
def dense__pack_W(W: T.Buffer((5, 20), "float32"), W_copy: T.Buffer((3, 5, 8), "float32")):
    for ax0, ax1, ax2 in T.grid(3, 5, 8):
        with T.block("W_copy"):
            v0, v1, v2 = T.axis.remap("SSS", [ax0, ax1, ax2])
            T.block_attr({"pack_constant": "W"})
            W_copy[v0, v1, v2] = T.select(v0 * 8 + v2 < 20, W[v1, v0 * 8 + v2], T.float32(0))
"""
    )
    assert structural.difference(packer, expected) is None, str(packer)


def test_a_function_without_packing() -> None:
    assert hoist_constant_packing(dense()) is None
    assert build(dense(), TARGET, packing="both").functions == ("dense",)


def test_main_and_packers_compute_the_same_as_the_function() -> None:
    func = packed(dense())
    hoisted = hoist_constant_packing(func)
    assert hoisted is not None
    rng = np.random.default_rng(0)
    a, w = rng.integers(-4, 5, (3, 5)).astype(np.float32), rng.integers(-4, 5, (5, 20)).astype(np.float32)
    whole = run(func, {"A": a, "W": w})[2]
    copy = run(hoisted.packers[0], {"W": w})[1]
    parts = run(hoisted.main, {"A": a, "W_copy": copy})[2]
    np.testing.assert_array_equal(whole, a @ w)
    np.testing.assert_array_equal(parts, whole)


def test_packing_sketches_of_a_convolution_run_with_and_without_hoisting() -> None:
    w = workload(CONV)
    inputs = w.random_inputs(3)
    (reference,) = w.reference(inputs)
    rng = np.random.default_rng(7)
    sketches = [s for s in generate(w.func, TARGET).sketches if "const" in s.name]
    assert len(sketches) > 3
    for s in sketches[::2]:
        row = tuple([int(x) for x in s.space.sample(1, rng)[0]])
        artifact = build(s.concretize(row), TARGET, packing="both")
        for call in ("ahead", "each"):
            out = np.full(reference.shape, np.nan, np.float32)
            arguments = [*[x.copy() for x in inputs], out]
            if call == "ahead":
                run = load_call(artifact.code(), arguments)
                arguments[1][...] = 0  # the packed copy already has the weights
                run()
            else:
                Module.from_object(artifact.data)["conv2d"](*arguments)
            np.testing.assert_allclose(out, reference, rtol=1e-4, atol=1e-4, err_msg=f"{s.name} {row} {call}")


def test_hoisted_packing_drops_the_original_function() -> None:
    ahead = build(packed(dense()), TARGET, packing="ahead")
    assert Module.from_object(ahead.data).functions == ("dense__pack_W", "dense__packed")
    assert ahead.functions == ("dense",) and ahead.code().function == "dense__packed"
    both = build(packed(dense()), TARGET, packing="both")
    module = Module.from_object(both.data)
    assert module.functions == ("dense",) and module["dense__packed"].name == "dense__packed", "parts are callable, and not listed"
    each = build(packed(dense()), TARGET)
    assert Module.from_object(each.data).functions == ("dense",) and each.code().packs == ()


def refused(func: PrimFunc, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        hoist_constant_packing(func)


def test_refusals() -> None:
    refused(packed(dense()).with_(attrs=()), r"W is not a constant parameter; declared constants: none")

    def inside(s: Schedule) -> None:
        s.compute_at(s.get_block("W_copy"), s.get_loops(s.get_block("C"))[0])

    refused(packed(dense(), inside), r"must copy one buffer to another and be the only block of its loop nest")

    def register(s: Schedule) -> None:
        s.set_scope(s.get_block("W_copy"), "workspace")

    refused(packed(dense(), register), r"writes W_copy, which is not an intermediate buffer of scope global")

    twice = parse(
        """
@T.prim_func
def twice(W: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    T.func_attr({"constants": "W"})
    P = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("P"):
            v = T.axis.spatial(4, i)
            T.block_attr({"pack_constant": "W"})
            P[v] = W[v]
    for i in range(4):
        with T.block("C"):
            v = T.axis.spatial(4, i)
            C[v] = P[v] + W[v]
"""
    )
    assert isinstance(twice, PrimFunc)
    refused(twice, r"W cannot be packed ahead, block C reads it unpacked")


def test_constants_are_parameters() -> None:
    with pytest.raises(ScriptError, match=r"`constants` names V, which is not a buffer parameter"):
        verify(dense().with_(attrs=(("constants", "V W"),)))
    with pytest.raises(ScriptError, match=r"`constants` names U, V, which are not buffer parameters"):
        verify(dense().with_(attrs=(("constants", "V U W"),)))
    assert dense().constants == ("W",)


def test_versions_share_equal_copies_and_keep_what_they_read() -> None:
    n = te.var("n")
    a, w, k = te.placeholder((n, 5), name="A"), te.placeholder((5, 20), name="W"), te.reduce_axis(5, "k")
    base = te.create_prim_func([a, w, te.compute((n, 20), lambda i, j: te.sum(a[i, k] * w[k, j], axis=[k]), "C")], "dense")
    base = base.with_(attrs=(("constants", "W"),))

    def columns(width: int) -> PrimFunc:
        s = Schedule(base)
        copy = s.cache_read(s.get_block("C"), "W", "global", [[1, "/", width], 0, [1, "%", width]])
        s.annotate(copy, "pack_constant", "W")
        return s.func

    boxes = [SizeRanges.of({"n": (low, low + 1)}) for low in (1, 3, 5)]
    func = with_versions(base, list(zip(boxes, [columns(8), columns(8), columns(4)], strict=True)))
    hoisted = hoist_constant_packing(func)
    assert hoisted is not None
    for f in (hoisted.main, *hoisted.packers):
        verify(f)
    assert [p.name for p in hoisted.main.params] == ["A", "W", "W_copy", "W_copy", "C", "n"], "the last version reads W itself"
    assert hoisted.positions == (2, 3) and hoisted.sources == (0, 1, 1, 1, 2, 3)
    assert [p.name for p in hoisted.packers] == ["dense__pack_W_0", "dense__pack_W_1"]
    module = Module.from_object(build([func, hoisted.main, *hoisted.packers], TARGET).data)
    weights = np.random.default_rng(0).random((5, 20), np.float32)
    copies = [np.zeros([e.as_int() for e in p.params[1].shape], np.float32) for p in hoisted.packers]  # type: ignore[union-attr]
    for packer, copy in zip(hoisted.packers, copies, strict=True):
        module[packer.name](weights, copy)
    for rows in range(9):
        x = np.random.default_rng(rows).random((rows, 5), np.float32)
        direct, out = np.zeros((2, rows, 20), np.float32)
        module["dense"](x, weights, direct, rows)
        module["dense__packed"](x, weights, *copies, out, rows)
        np.testing.assert_allclose(direct, x @ weights, rtol=1e-5)
        np.testing.assert_array_equal(out, direct)


def transformed(terms: str = "W[v] * 2.0", reads: str = "Q[v]", constants: str = "W") -> PrimFunc:
    """P is computed from constants, and Q is a copy of it."""
    func = parse(
        f"""
@T.prim_func
def transformed(X: T.Buffer((4,), "float32"), W: T.Buffer((4,), "float32"), V: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    T.func_attr({{"constants": "{constants}"}})
    P = T.alloc_buffer((4,), "float32")
    Q = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("P"):
            v = T.axis.spatial(4, i)
            P[v] = {terms}
    for i in range(4):
        with T.block("Q"):
            v = T.axis.spatial(4, i)
            T.block_attr({{"pack_constant": "W"}})
            Q[v] = P[3 - v]
    for i in range(4):
        with T.block("C"):
            v = T.axis.spatial(4, i)
            C[v] = {reads} * X[v]
"""
    )
    assert isinstance(func, PrimFunc)
    return func


def test_constants_are_transformed_ahead() -> None:
    func = transformed()
    hoisted = hoist_constant_packing(func)
    assert hoisted is not None
    (packer,) = hoisted.packers
    verify(packer)
    verify(hoisted.main)
    assert [p.name for p in hoisted.main.params] == ["X", "Q", "V", "C"] and hoisted.main.allocs == ()  # type: ignore[union-attr]
    assert [b.name for b in packer.allocs] == ["P"]
    x, w, v = (np.arange(4, dtype=np.float32) + k for k in range(3))
    q = run(packer, [w])[-1]
    np.testing.assert_array_equal(run(hoisted.main, [x, q, v])[-1], run(func, [x, w, v])[-1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"terms": "W[v] + V[v]", "constants": "V W"}, "P is computed from V, W, not from one constant alone"),
        ({"terms": "W[v] + X[v]"}, "P is computed from W, X, not from one constant alone"),
        ({"terms": "X[v]"}, "P is computed from X, not from one constant alone; declared constants: W"),
        ({"terms": "1.0"}, "P is computed from no parameter"),
        ({"reads": "(Q[v] + P[v])"}, "P cannot be packed ahead, block C reads it unpacked"),
        ({"reads": "(Q[v] + W[v])"}, "W cannot be packed ahead, block C reads it unpacked"),
    ],
)
def test_transforms_that_are_refused(changes: dict[str, str], text: str) -> None:
    refused(transformed(**changes), text)
