"""Printed kernels: goldens in both languages, vectors, wide indices, names, shared memory, error messages."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from tunesmith.codegen.device.build import build, emit_source
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Call, const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.poly import Var, floordiv, minimum, mod, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, Evaluate, For, Stmt, barrier, seq, store
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.runtime.device.array import DeviceArray
from tunesmith.runtime.device.device import opencl
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL as DRIVER
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.search.space.rules_table import generate
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError
from tunesmith.support.seeds import stream

Golden = Callable[..., None]
OPENCL, CUDA = Target("opencl"), Target("cuda -arch=sm_90")
TARGETS = {"opencl": OPENCL, "cuda": CUDA}
needs_device = pytest.mark.skipif(DRIVER.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
needs_compiler = pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="no NVRTC here: pip install 'tunesmith[cuda]'")


def compiles(func: PrimFunc) -> None:
    """Compile for both architectures, if the compiler is installed."""
    if importlib.util.find_spec("cuda") is None:
        return
    from tunesmith.codegen.cuda.nvrtc import compile_cuda

    for arch in ("sm_80", "sm_90"):
        compile_cuda(emit_source(func, Target(f"cuda -arch={arch}"))[0], arch)


def source(func: PrimFunc, target: Target = CUDA) -> str:
    return emit_source(func, target)[0]


def on_device(func: PrimFunc, *arrays: np.ndarray) -> list[np.ndarray]:
    memory = [DeviceArray.from_numpy(opencl(), x, b.dtype) for b, x in zip(func.params, arrays, strict=True)]  # type: ignore[union-attr]
    DeviceModule(DeviceProgram.from_bytes(build(func, OPENCL).data))[func.name](*memory)
    return [m.numpy() for m in memory]


# ---- whole kernels


def of_rules(schedules: ModuleType, text: str, target: Target, sketch: int = 0) -> PrimFunc:
    w = schedules.named(text)
    made = generate(w.func, target).sketches[sketch]
    (row,) = made.space.sample(1, stream(3, "c kernel", text))
    return made.concretize(tuple(map(int, row)))


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize(
    ("what", "text"),
    [("matmul", "matmul(m=40,n=36,k=24)"), ("softmax", "softmax(m=5,n=100)"), ("sum", "sum(shape=5000)"), ("gelu", "gelu(shape=64x16)")],
)
def test_kernels_of_rules(schedules: ModuleType, assert_golden: Golden, what: str, text: str, name: str) -> None:
    func = of_rules(schedules, text, TARGETS[name])
    text, functions = emit_source(func, TARGETS[name])
    launches = "\n".join([f"// {x.kernel}: grid {x.grid}, block {x.block}, arguments {x.arguments}" for x in functions[0].launches])
    assert_golden(f"{text}\n{launches}")
    if name == "cuda":
        compiles(func)


@T.prim_func
def by_hand(A: T.Buffer((24, 32), "float32"), B: T.Buffer((24, 32), "float32"), D: T.Buffer((24,), "int32")):
    W = T.alloc_buffer((24, 32), "float32")
    S = T.alloc_buffer((8, 32), "float32", scope="shared", pad=4)
    L = T.alloc_buffer((2,), "float32", scope="local")
    for i in T.thread_binding(24, "blockIdx.x"):
        for j in T.thread_binding(8, "threadIdx.x"):
            for v in T.vectorized(4):
                W[i, j * 4 + v] = T.exp(A[i, j * 4 + v])
    for b in T.thread_binding(3, "blockIdx.x"):
        for y in T.thread_binding(8, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                for v in T.vectorized(4):
                    S[y, x * 4 + v] = W[b * 8 + y, x * 4 + v]
                L[0] = 0.0
                for k in T.serial(32):
                    if k < y * 4:
                        L[0] = T.max(L[0], S[7 - y, k])
                    else:
                        L[0] = L[0] + S[7 - y, k]
                for u in T.unroll(4):
                    B[b * 8 + y, x * 4 + u] = L[0] - T.float32(0.5)
                if x < 1:
                    D[b * 8 + y] = T.cast("int32", L[0]) // 3 % 5


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_kernel_by_hand(assert_golden: Golden, name: str) -> None:
    """Two kernels and a shared workspace; tiles with padded rows; branches, loops, helpers."""
    text, (function,) = emit_source(by_hand, TARGETS[name])
    assert_golden(text)
    assert [(x.kernel, x.arguments, x.grid, x.block, x.shared_bytes) for x in function.launches] == [
        ("by_hand_kernel_0", (0, 3), (24, 1, 1), (8, 1, 1), 0),
        ("by_hand_kernel_1", (1, 2, 3), (3, 1, 1), (8, 8, 1), 0),
    ]
    assert function.workspaces == (24 * 32 * 4,)
    assert [(p.name, p.written) for p in function.params] == [("A", False), ("B", True), ("D", True)]
    if name == "cuda":
        compiles(by_hand)


@needs_device
def test_results_of_the_kernel_by_hand() -> None:
    a = stream(0, "hand").normal(size=(24, 32)).astype(np.float32)
    got = on_device(by_hand, a, np.zeros((24, 32), np.float32), np.zeros(24, np.int32))
    want = run_threads(by_hand, [a, np.zeros((24, 32), np.float32), np.zeros(24, np.int32)], check_races=False)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    np.testing.assert_array_equal(got[2], want[2])


def test_text_is_deterministic_and_functions_keep_their_order(schedules: ModuleType) -> None:
    func = of_rules(schedules, "softmax(m=5,n=100)", CUDA)
    assert source(func) == source(of_rules(schedules, "softmax(m=5,n=100)", CUDA))
    module = IRModule([func, by_hand.with_(name="other")])
    text, functions = emit_source(module, CUDA)
    assert [f.name for f in functions] == ["softmax", "other"]
    assert text.index("void __launch_bounds__") < text.index("softmax_kernel(") < text.index("other_kernel_0(")


# ---- vectors


def copies(dtype: str, lanes: int, offset: int = 0, row: int | None = None, stride: int = 1) -> PrimFunc:
    """Vector copies plus 1, in threads; row stride of A is `row`, with an offset of `offset` elements."""
    row = row or lanes * 4
    a, c = Buffer("A", (4 * row + offset + 64 * (stride > 1),), dtype), Buffer("C", (4 * row + offset,), dtype)
    t, u, v = Var("t"), Var("u"), Var("v")
    at = poly(t) * row + poly(u) * lanes + offset
    body = For(v, poly(lanes), store(c, (at + v,), Binary("add", a[at + poly(v) * stride], const(1, dtype))), "vectorized")
    return PrimFunc("copies", (a, c), (), For(t, poly(4), For(u, poly(row // lanes), body), "thread", "threadIdx.x"))


def casts(text: str) -> list[str]:
    """Pointer types of vector accesses."""
    return re.findall(r"\*\((?:__global |__local )?(?:const )?([a-z ]+\d*)\*\)", text)


@needs_device
@pytest.mark.parametrize(
    ("dtype", "lanes", "word"),
    [
        ("float32", 4, "float4"),
        ("float32", 2, "float2"),
        ("float64", 2, "double2"),
        ("int32", 4, "int4"),
        ("uint32", 2, "uint2"),
        ("int64", 2, "long2"),
        ("uint64", 2, "ulong2"),
        ("float16", 8, "uint4"),
        ("float16", 4, "uint2"),
        ("float16", 2, "uint"),
        ("bfloat16", 8, "uint4"),
        ("bfloat16", 2, "uint"),
        ("int16", 4, "uint2"),
        ("uint16", 8, "uint4"),
        ("int8", 16, "uint4"),
        ("int8", 8, "uint2"),
        ("int8", 4, "uint"),
        ("uint8", 16, "uint4"),
        ("uint8", 4, "uint"),
    ],
)
def test_vectors_are_loaded_and_stored_whole(dtype: str, lanes: int, word: str) -> None:
    """As words for small elements; negative values do not affect neighbouring lanes."""
    func = copies(dtype, lanes)
    assert casts(source(func, OPENCL)) == [word, word]
    compiles(func)
    n = 16 * lanes
    x = (np.arange(n) * 37 % 251 - (0 if dt.is_unsigned(dtype) else 125)).astype(dt.to_numpy(dtype))
    if dtype == "bfloat16":
        bits = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)  # exact for values of at most 8 bits
        got = (on_device(func, bits, np.zeros(n, np.uint16))[1].astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        got = on_device(func, x, np.zeros_like(x))[1]
    np.testing.assert_array_equal(got, x + x.dtype.type(1))


@pytest.mark.parametrize(
    "func",
    [
        copies("float32", 4, offset=1),
        copies("float32", 4, offset=2),
        copies("float32", 3, row=12),
        copies("float16", 4, offset=2),
        copies("int8", 4, offset=1),
        copies("int8", 2),
        copies("float16", 1),
    ],
    ids=["1", "2", "three", "halves", "bytes", "two bytes", "single"],
)
def test_unaligned_accesses_are_scalar(func: PrimFunc) -> None:
    """An address is known to be 16-byte aligned if every term of the index is a multiple of the vector."""
    for target in TARGETS.values():
        assert casts(source(func, target)) == []


@needs_device
def test_rows_of_odd_length() -> None:
    """Row i begins at 13 * i: vector accesses would be misaligned."""
    a, c, t, u, v = Buffer("A", (4, 13)), Buffer("C", (4, 13)), Var("t"), Var("u"), Var("v")
    copy = For(u, poly(3), For(v, poly(4), store(c, (t, poly(u) * 4 + v), a[t, poly(u) * 4 + v]), "vectorized"))
    func = PrimFunc("odd", (a, c), (), For(t, poly(4), copy, "thread", "threadIdx.x"))
    assert casts(source(func, OPENCL)) == casts(source(func)) == []
    x = np.arange(52, dtype=np.float32).reshape(4, 13)
    np.testing.assert_array_equal(on_device(func, x, np.zeros_like(x))[1][:, :12], x[:, :12])


def test_strided_vectors_are_gathered() -> None:
    text = source(copies("float32", 4, stride=2))
    assert casts(text) == ["float4"] and text.count("A[") == 4  # the store is one vector


def test_rows_padded_by_whole_vectors_keep_vector_accesses() -> None:
    for pad, found in ((4, ["float4"] * 2), (1, ["float4"])):
        s = Buffer("S", (4, 16), scope="shared", pad=pad)
        a, t, u, v = Buffer("A", (4, 16)), Var("t"), Var("u"), Var("v")
        copy = For(u, poly(4), For(v, poly(4), store(s, (t, poly(u) * 4 + v), a[t, poly(u) * 4 + v]), "vectorized"))
        back = store(a, (t, 0), BufferLoad(s, (poly(t), poly(3))))
        func = PrimFunc(
            "padded",
            (a,),
            (s,),
            For(Var("b"), poly(1), For(t, poly(4), seq([copy, back]), "thread", "threadIdx.x"), "thread", "blockIdx.x"),
        )
        assert casts(source(func)) == found, pad


# ---- indices


def huge(elements: int) -> PrimFunc:
    a, t = Buffer("A", (elements,), "int8"), Var("t")
    at = poly(t) * (elements // 4)
    return PrimFunc("huge", (a,), (), For(t, poly(4), store(a, (at,), a[at + 1]), "thread", "threadIdx.x"))


@pytest.mark.parametrize(("elements", "wide"), [(2**31 - 1, False), (2**31, True), (2**33, True)])
def test_indices_are_64_bits_wide_for_large_buffers(elements: int, wide: bool) -> None:
    texts = {name: source(huge(elements), target) for name, target in TARGETS.items()}
    assert ("const long t = (int)get_local_id(0);" in texts["opencl"]) == wide
    assert ("const long long t = (int)threadIdx.x;" in texts["cuda"]) == wide
    assert all(("const int t = " in text) != wide for text in texts.values())
    compiles(huge(elements))


def test_index_division_rounds_down() -> None:
    """Negative dividends are shifted to be positive, because C's division rounds to 0."""
    a, t = Buffer("A", (8,), "int64"), Var("t")
    at = poly(t)
    value = floordiv(at - 5, 3) * 100 + mod(5 - at * 2, 3) * 10 + floordiv(minimum(at - 5, 1), 4)
    func = PrimFunc("down", (a,), (), For(t, poly(8), store(a, (t,), value), "thread", "threadIdx.x"))
    assert "ts_" not in source(func, OPENCL).partition("void")[2]
    compiles(func)
    if DRIVER.count():
        n = np.arange(8)
        want = (n - 5) // 3 * 100 + (5 - n * 2) % 3 * 10 + np.minimum(n - 5, 1) // 4
        np.testing.assert_array_equal(on_device(func, np.zeros(8, np.int64))[0], want)


# ---- names


def named(buffer: str, out: str, loop: str, function: str = "f") -> PrimFunc:
    """A vectorised kernel with temporaries and a math function."""
    a, c, t, v = Buffer(buffer, (16,)), Buffer(out, (16,)), Var(loop), Var("v")
    at = poly(t) * 4 + v
    body = For(v, poly(4), store(c, (at,), Call("exp", (a[at],), "float32") + a[at]), "vectorized")
    return PrimFunc(function, (a, c), (), For(t, poly(4), body, "thread", "threadIdx.x"))


NAMES = (
    ("float", "int", "for"),
    ("half", "uint", "kernel"),
    ("exp", "expf", "i"),
    ("v1", "v2", "v3"),
    ("float4", "make_float4", "uint2"),
    ("barrier", "get_local_id", "as_float"),
    ("threadIdx", "blockIdx", "delete"),
    ("template", "xor", "nullptr"),
    ("__shared__", "__local", "arena"),
    ("a b", "1x", "é"),
    ("x", "x", "x"),
    ("NULL", "ts_exp", "pipe"),
)


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_reserved_names(names: tuple[str, str, str]) -> None:
    """Keywords, functions and types of the languages, names used by the printer, and duplicates."""
    func = named(*names)
    compiles(func)
    if DRIVER.count():
        x = np.arange(16, dtype=np.float32) / 8
        np.testing.assert_allclose(on_device(func, x, np.zeros_like(x))[1], np.exp(x) + x, rtol=1e-6)


@pytest.mark.parametrize("name", ["a.b", "a-b", "1f", "exp"])
def test_names_of_functions(name: str) -> None:
    """The kernel has a valid name in the language; the function keeps its own."""
    func = named("A", "C", "t", name)
    compiles(func)
    if DRIVER.count():
        x = np.arange(16, dtype=np.float32) / 8
        np.testing.assert_allclose(on_device(func, x, np.zeros_like(x))[1], np.exp(x) + x, rtol=1e-6)


# ---- shared memory


def reversing(elements: int, count: int = 1) -> PrimFunc:
    """Shared-memory tiles of `elements` elements, filled and read in reverse."""
    a, c = Buffer("A", (elements,)), Buffer("C", (elements,))
    tiles = [Buffer(f"S{n}", (elements,), scope="shared") for n in range(count)]
    steps: list[Stmt] = []
    t = Var("t")
    for s in tiles:
        i, j = Var("i"), Var("j")
        at, back = poly(i) * 32 + t, poly(j) * 32 + t
        steps.append(For(i, poly(elements // 32), store(s, (at,), a[at])))
        steps.append(For(j, poly(elements // 32), store(c, (back,), s[elements - 1 - back])))
    body: Stmt = For(Var("b"), poly(1), For(t, poly(32), seq(steps), "thread", "threadIdx.x"), "thread", "blockIdx.x")
    return PrimFunc("reversing", (a, c), tuple(tiles), body)


@needs_compiler
@pytest.mark.parametrize(("arch", "kilobytes"), [("sm_80", 96), ("sm_90", 192), ("sm_90", 96)])
def test_large_shared_memory_is_dynamic(arch: str, kilobytes: int) -> None:
    """More than 48 kB cannot be declared statically: an arena with aligned parts is passed at the launch."""
    from tunesmith.codegen.cuda.nvrtc import compile_cuda

    func = reversing(kilobytes * 128, 2)
    target = Target(f"cuda -arch={arch}")
    text, (function,) = emit_source(func, target)
    (launch,) = function.launches
    assert launch.shared_bytes == kilobytes * 1024
    assert "extern __shared__ __align__(16) unsigned char arena[];" in text
    assert "float* const S0 = (float*)(arena + 0);" in text
    assert f"float* const S1 = (float*)(arena + {kilobytes * 512});" in text
    resources = compile_cuda(text, arch).resources
    assert resources["reversing_kernel"].shared_bytes == 0


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_small_shared_memory_is_static(name: str) -> None:
    func = reversing(64, 2)
    text, (function,) = emit_source(func, TARGETS[name])
    assert function.launches[0].shared_bytes == 0 and "arena" not in text
    wanted = "__shared__ __align__(16) float S0[64];" if name == "cuda" else "__local float S0[64] __attribute__((aligned(16)));"
    assert wanted in text


@needs_device
def test_tiles_in_shared_memory() -> None:
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(on_device(reversing(64, 2), x, np.zeros_like(x))[1], x[::-1])


# ---- error messages


def test_too_much_shared_memory_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        source(reversing(64 * 1024))
    assert "reversing_kernel: 262144 bytes of shared memory (S0: 262144); a block of" in str(caught.value)
    assert f"has at most {CUDA.shared_memory_per_block}" in str(caught.value)


def threads(*extents: int, tag: str = "threadIdx") -> PrimFunc:
    a = Buffer("A", (4,))
    body: Stmt = store(a, (0,), a[1])
    for n, axis in zip(extents, "xyz", strict=False):
        body = For(Var(axis), poly(n), body, "thread", f"{tag}.{axis}")
    return PrimFunc("many", (a,), (), body)


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(BuildError, match="many_kernel: 2048 threads in a block, and cuda has at most 1024"):
        source(threads(64, 32))
    with pytest.raises(BuildError, match=f"many_kernel: 512 threads in a block, and opencl has at most {OPENCL.max_threads_per_block}"):
        source(threads(512), OPENCL)
    with pytest.raises(BuildError, match="many_kernel: 128 threads along z, and cuda has at most 64"):
        source(threads(1, 1, 128))


@pytest.mark.parametrize("extents", [(1, 65536), (1, 1, 65536), (2**31,)])
def test_too_many_blocks_are_refused(extents: tuple[int, ...]) -> None:
    with pytest.raises(BuildError, match=r"many_kernel: a grid of .* blocks; there are at most 2147483647, 65535 and 65535"):
        source(threads(*extents, tag="blockIdx"))


def test_dynamic_sizes_are_refused() -> None:
    n, i = Var("n"), Var("i")
    a = Buffer("A", (poly(n),))
    func = PrimFunc("dynamic", (a, n), (), For(i, poly(n), store(a, (i,), a[i])))
    with pytest.raises(BuildError, match="dynamic: a parameter is a dynamic size; GPU kernels need constant shapes. Bind the sizes"):
        source(func)


def test_a_parameter_in_another_scope_is_refused() -> None:
    a = Buffer("A", (4,), scope="local")
    with pytest.raises(BuildError, match="f: parameter A is in scope local; arrays of a caller are in global memory"):
        source(PrimFunc("f", (a,), (), store(a, (0,), a[1])))


def test_other_targets_are_refused() -> None:
    with pytest.raises(BuildError, match="device code is generated for cuda and opencl, not for targets of kind llvm"):
        source(by_hand, Target("llvm"))


NOTHING = Pipeline()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in T.vectorized(4):\n        A[i] = 1.0", "the loop i is vectorized; loops of one thread are serial or unrolled"),
        (
            'for i in T.serial(4):\n        for t in T.thread_binding(4, "threadIdx.x"):\n            A[t] = 1.0',
            "the loop t is threadIdx.x; loops of one thread",
        ),
        (
            'for i in T.serial(4):\n        with T.block("B"):\n            v = T.axis.spatial(4, i)\n            A[v] = 1.0',
            "cannot print a Block in device code; run the lowering",
        ),
        (
            'for i in T.serial(4):\n        S = T.allocate((4,), "float32", scope="shared")\n        S[i] = A[i]',
            "S of scope shared and 4 elements is not thread-local",
        ),
        (
            'for i in T.serial(4):\n        S = T.allocate((i,), "float32", scope="local")\n        S[0] = A[i]',
            "S of scope local and i elements is not thread-local",
        ),
        ("T.evaluate(T.exp(A[0]))", "device code cannot evaluate 'exp' for its effect"),
    ],
)
def test_statements_not_lowered_are_refused(body: str, message: str) -> None:
    func = parse(f'@T.prim_func\ndef f(A: T.Buffer((4,), "float32")):\n    {body}\n')
    with pytest.raises(BuildError, match=message):
        emit_source(func, CUDA, NOTHING)


def test_prefetches_are_omitted() -> None:
    a, t = Buffer("A", (4,)), Var("t")
    steps = seq([Evaluate(Call("prefetch", (a[t],), "float32")), store(a, (t,), a[t] + 1.0), barrier()])
    text = source(PrimFunc("f", (a,), (), For(t, poly(4), steps, "thread", "threadIdx.x")), OPENCL)
    assert "prefetch" not in text and text.count("barrier(") == 1


def test_private_memory_is_declared_in_its_scope() -> None:
    a, own, t, k = Buffer("A", (4,)), Buffer("L", (2,), scope="local"), Var("t"), Var("k")
    loop = For(k, poly(3), Allocate(own, seq([store(own, (1,), a[t]), store(a, (t,), own[1] + 1.0)])))
    text = source(PrimFunc("f", (a,), (), For(t, poly(4), loop, "thread", "threadIdx.x")))
    assert re.search(r"for \(int k = 0; k < 3; \+\+k\) \{\n +float L\[\d\];", text)
