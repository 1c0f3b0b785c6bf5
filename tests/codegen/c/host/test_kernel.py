"""C text of kernels: vectors in variables, masks, parallel loops, scratch memory, dynamic shapes; and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.build import build
from tunesmith.codegen.c.host import kernel
from tunesmith.codegen.c.host.build import print_source
from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.specialize import specialize
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.lower.size_versions import with_versions
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError

TARGET = Target("c -mcpu=x86-64-v3 -num-cores=1")
PARALLEL = Target("c -mcpu=x86-64-v3 -num-cores=4")


def parsed(text: str) -> PrimFunc:
    """The function in a script."""
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return func


def tiled() -> PrimFunc:
    """A product with a tile of 2 x 2 vectors in registers, whose rows run in parallel."""
    s = Schedule(workload("matmul(m=8,n=20,k=6)").func)
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    i0, i1 = s.split(i, [None, 2])
    j0, j1, j2 = s.split(j, [None, 2, 8])
    s.reorder([i0, j0, k, i1, j1, j2])
    s.parallel(i0)
    made = s.cache_write(block, "register")
    s.reverse_compute_at(made, j0)
    rows, columns = s.get_loops(made)[-2:]
    outer, inner = s.split(columns, [None, 8])
    for loop in (s.get_loops(block)[-1], inner):
        s.vectorize(loop)
    init = s.decompose_reduction(block, k)
    for loop in (i1, j1, rows, outer, *s.get_loops(init)[-3:-1]):
        s.unroll(loop)
    return s.func


def test_a_register_tile(assert_golden: Callable[..., None]) -> None:
    func = tiled()
    assert_golden(print_source(func, PARALLEL), "codegen/c/host_tile")
    a, b = [np.random.default_rng(0).standard_normal(s).astype("float32") for s in ((8, 6), (6, 20))]
    c = np.zeros((8, 20), "float32")
    Module.from_object(build(func, PARALLEL).data)["matmul"](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_rows_with_exponentials(assert_golden: Callable[..., None]) -> None:
    assert_golden(print_source(default_schedule(workload("softmax(m=6,n=20)").func, TARGET), TARGET), "codegen/c/host_softmax")


SIZED = """
@T.prim_func
def scaled(A: T.Buffer((n, 12), "float16"), B: T.Buffer((n, 12), "float16"), n: T.int64):
    W = T.alloc_buffer((n, 12), "float32")
    for i, j in T.grid(n, 12):
        with T.block("W"):
            vi, vj = T.axis.remap("SS", [i, j])
            W[vi, vj] = T.cast(A[vi, vj], "float32") * 2.0
    for i, j in T.grid(n, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.cast(W[n - 1 - vi, vj], "float16")
"""


def test_dynamic_shapes_take_memory_from_the_heap(assert_golden: Callable[..., None]) -> None:
    func = parsed(SIZED)
    assert_golden(print_source(func, TARGET), "codegen/c/host_dynamic")
    f = Module.from_object(build(func, TARGET).data)["scaled"]
    for n in (1, 5, 0):
        a = np.arange(12 * n, dtype="float16").reshape(n, 12)
        b = np.zeros((n, 12), "float16")
        f(a, b, n)
        np.testing.assert_array_equal(b, 2 * a[::-1])


def test_a_version_gets_its_own_sizes() -> None:
    """A version without the first size, because that is 0 or constant, takes the second one."""
    func = parsed(
        """
@T.prim_func
def f(X: T.Buffer((n,), "float32"), Y: T.Buffer((5, n), "float32"), t: T.int64, n: T.int64):
    for i in T.grid(n):
        with T.block("Y"):
            v = T.axis.spatial(n, i)
            Y[t, v] = X[v]
"""
    )
    tuned = with_versions(func, [(SizeRanges.of({"t": (3, 3)}), specialize(func, {"t": 3}))])
    for made in (func, tuned):
        call = tunesmith.build(made, TARGET)["f"]
        for t in range(5):
            x, y = np.arange(1, 8, dtype="float32"), np.zeros((5, 7), "float32")
            call(x, y, t, 7)
            np.testing.assert_array_equal(y, np.outer(np.eye(5)[t], x))


def test_versions_get_the_sizes_that_they_have() -> None:
    n, m, k = te.var("n"), te.var("m"), te.var("k")
    x = te.placeholder((n, m, k), name="X")
    i, j = te.reduce_axis(n, "i"), te.reduce_axis(m, "j")
    func = te.create_prim_func([x, te.compute((k,), lambda c: te.sum(x[i, j, c], axis=[i, j]), "Y")], "total")
    f = Module.from_object(build(func, TARGET).data)["total"]
    for sizes in ((0, 2, 5), (2, 0, 5), (0, 0, 5), (2, 3, 4)):
        y = np.full(sizes[2], 7, "float32")
        f(np.ones(sizes, "float32"), y, *sizes)
        np.testing.assert_array_equal(y, sizes[0] * sizes[1])


def test_names_of_c_are_avoided() -> None:
    func = parsed("""
@T.prim_func
def double(int: T.Buffer((8,), "int32"), load_x: T.Buffer((8,), "int32")):
    for for_ in T.serial(8):
        with T.block("v1"):
            float32x8 = T.axis.spatial(8, for_)
            load_x[float32x8] = int[float32x8] + 1
""")
    a, b = np.arange(8, dtype="int32"), np.zeros(8, "int32")
    Module.from_object(build(func, TARGET).data)["double"](a, b)
    np.testing.assert_array_equal(b, a + 1)


SUMS = """
@T.prim_func
def f({A}: T.Buffer((64, 300), "float32"), {B}: T.Buffer((64, 300), "float32")):
    {M} = T.alloc_buffer((64, 300), "float32")
    for {i} in T.parallel(64):
        for {j} in range(300):
            with T.block("m"):
                v, w = T.axis.remap("SS", [{i}, {j}])
                {M}[v, w] = {A}[v, w] * T.float32(2.0)
    for {k} in T.parallel(64):
        for {l} in range(300):
            with T.block("b"):
                v, w = T.axis.remap("SS", [{k}, {l}])
                {B}[v, w] = {M}[v, w] + {M}[63 - v, w]
"""
NAMES = (
    {"A": "f_kernel_i_share", "B": "f_kernel_busy", "M": "f_kernel_arena"},
    {"A": "f_kernel", "B": "f_kernel_i", "i": "i", "k": "i_share"},
    {"A": "f_kernel_k_share", "M": "f_kernel_v0", "i": "i_share", "k": "i"},
    {"i": "arena", "k": "busy", "A": "RAND_MAX", "B": "SIZE_MAX", "M": "EOF", "j": "EXIT_SUCCESS", "l": "MB_CUR_MAX"},
    {"i": "kernel", "k": "x_kernel", "A": "size_t", "B": "stdin", "M": "nullptr", "j": "float64_of_bits_uint64", "l": "x_EOF"},
    {"A": "EOF", "B": "x_EOF", "M": "shared_bytes", "j": "NULL", "l": "private_bytes"},
)


@pytest.mark.parametrize("names", NAMES)
def test_names_of_other_things_in_the_text_are_avoided(names: dict[str, str]) -> None:
    text = SUMS.format(**{**{x: x for x in "ABMijkl"}, **names})
    target = Target("c -mcpu=x86-64-v3 -num-cores=2")
    a, b = np.random.default_rng(0).random((64, 300), "float32"), np.zeros((64, 300), "float32")
    before = a.copy()
    Module.from_object(build(parsed(text), target).data)["f"](a, b)
    np.testing.assert_array_equal(a, before)
    np.testing.assert_array_equal(b, 2 * a + 2 * a[::-1])


def test_large_register_buffers_are_scratch_memory() -> None:
    func = parsed("""
@T.prim_func
def f(A: T.Buffer((70000,), "float32"), B: T.Buffer((70000,), "float32")):
    with T.block("root"):
        R = T.alloc_buffer((70000,), "float32", scope="register")
        for i in T.serial(70000):
            with T.block("R"):
                vi = T.axis.spatial(70000, i)
                R[vi] = A[vi] + 1.0
        for i in T.serial(70000):
            with T.block("B"):
                vi = T.axis.spatial(70000, i)
                B[vi] = R[69999 - vi]
""")
    text = print_source(func, TARGET)
    assert "f_kernel_arena" in text and "_Alignas(64) float" not in text


def refused(func: PrimFunc, target: Target = TARGET) -> str:
    """The message of the refusal."""
    with pytest.raises(BuildError) as error:
        build(func, target)
    return str(error.value)


def test_tile_registers_are_refused() -> None:
    text = refused(
        parsed("""
@T.prim_func
def f(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32")):
    R = T.alloc_buffer((16, 16), "float32", scope="amx.tile")
    for i, j in T.grid(16, 16):
        with T.block("R"):
            vi, vj = T.axis.remap("SS", [i, j])
            R[vi, vj] = A[vi, vj]
    for i, j in T.grid(16, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = R[vi, vj]
""")
    )
    assert "f: the buffer R of scope amx.tile" in text and "Schedule for the kind llvm" in text


def test_vectors_of_other_lengths_are_refused() -> None:
    """Targets have vectors of a power of two; a program that is lowered by other passes may have any."""
    with pytest.raises(BuildError, match="a vector of 12 lanes: C compilers have vectors of a power of two only"):
        Prelude().type_of("float32x12")


def test_one_part_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "EMITTED", 3)
    text = refused(default_schedule(workload("matmul(m=8,n=16,k=8)").func, TARGET))
    assert "matmul: [code-size] a part that is compiled as one C function has more than 3 lines" in text


def test_source_of_a_compiled_function() -> None:
    module = tunesmith.build(workload("relu(shape=8)").func, "c -num-cores=1")
    assert "void relu_kernel(const float *restrict X, float *restrict Y) {" in module.source
