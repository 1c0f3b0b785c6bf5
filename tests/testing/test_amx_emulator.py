"""Compare emulated AMX with numpy models bit for bit, and test the decoder, threads, and the context.

On a processor with AMX the comparisons run on the hardware, and the tests of the emulator itself are skipped.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading
from typing import Any

import numpy as np
import pytest

from tunesmith.runtime.processor import EMULATED, check_processor, hardware_flags, needs_symbol
from tunesmith.support.errors import RunError
from tunesmith.testing import amx_emulator
from tunesmith.testing.amx_emulator import FLAGS, INSTRUCTIONS, Counts, available, emulated_amx, in_hardware
from tunesmith.testing.amx_model import ELEMENTS, configuration, product, random_bytes

pytestmark = pytest.mark.skipif(not available(), reason="no Linux for x86-64 with AMX or a C compiler")
emulator_only = pytest.mark.skipif(in_hardware(), reason="the processor has AMX, and nothing is emulated")

Three = tuple[int, int, int]
"""Numbers of tiles, extents or strides, for each of three matrices or axes."""
ALL_TILES = configuration(dict.fromkeys(range(8), (16, 64)))


def assert_equal_bits(kind: str, actual: np.ndarray, expected: np.ndarray) -> None:
    x, y = np.ascontiguousarray(actual).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    same = x == y
    if kind in ("tdpbf16ps", "tdpfp16ps"):
        same |= np.isnan(x.view(np.float32)) & np.isnan(y.view(np.float32))
    assert same.all(), f"{(~same).sum()} of {same.size} differ; first: {x[~same][0]:#010x} instead of {y[~same][0]:#010x}"


# ---- Products ----

TRIPLES = ((0, 1, 2), (7, 3, 5), (4, 6, 0), (2, 7, 1))


@pytest.fixture(scope="module")
def products(compiled: Any) -> Any:
    """Functions `<product>_<tiles>(config, a, stride, b, stride, c, stride)`: loads, product, store."""
    text = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
"""
    for kind in ELEMENTS:
        text += f"declare void @llvm.x86.{kind}(i8 immarg, i8 immarg, i8 immarg)\n"
        for d, s, t in TRIPLES:
            text += f"""
define void @{kind}_{d}{s}{t}(ptr %cfg, ptr %a, i64 %lda, ptr %b, i64 %ldb, ptr %c, i64 %ldc) #0 {{
  call void @llvm.x86.ldtilecfg(ptr %cfg)
  call void @llvm.x86.tileloadd64(i8 {s}, ptr %a, i64 %lda)
  call void @llvm.x86.tileloadd64(i8 {t}, ptr %b, i64 %ldb)
  call void @llvm.x86.tileloadd64(i8 {d}, ptr %c, i64 %ldc)
  call void @llvm.x86.{kind}(i8 {d}, i8 {s}, i8 {t})
  call void @llvm.x86.tilestored64(i8 {d}, ptr %c, i64 %ldc)
  call void @llvm.x86.tilerelease()
  ret void
}}
"""
    return compiled(text)


def strided(data: np.ndarray, stride: int) -> np.ndarray:
    """A copy whose rows are `stride` bytes apart, in memory filled with 0xa5."""
    rows, columns = data.shape
    memory = np.full(abs(stride) * (rows - 1) + columns, 0xA5, np.uint8)
    start = -stride * (rows - 1) if stride < 0 else 0
    view = np.lib.stride_tricks.as_strided(memory[start:], (rows, columns), (stride, 1))
    view[:] = data
    return view


def check_product(products: Any, kind: str, tiles: Three, shape: Three, strides: Three, values: str, seed: int) -> None:
    """Compare one product with its model: shape (m, n, k) in rows and elements of four bytes, strides of A, B, C in bytes."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = random_bytes(rng, kind, values, m, 4 * k), random_bytes(rng, kind, values, k, 4 * n)
    c = random_bytes(rng, kind, values, m, 4 * n, accumulator=True)
    x, y, z = (strided(data, stride) for data, stride in zip((a, b, c), strides, strict=True))
    d, s, t = tiles
    name = f"{kind}_{d}{s}{t}"
    products(name)(configuration({d: (m, 4 * n), s: (m, 4 * k), t: (k, 4 * n)}), x, strides[0], y, strides[1], z, strides[2])
    expected = product(kind, a, b, c)
    assert_equal_bits(kind, z, expected)
    assert (x == a).all() and (y == b).all()
    memory: Any = z.base
    while memory.base is not None:
        memory = memory.base
    assert (memory == 0xA5).sum() >= memory.size - z.size, "bytes between the rows were written"


@pytest.mark.parametrize("values", ["bits", "ordinary", "tiny"])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_products_equal_the_model(amx: Counts, kind: str, values: str, products: Any) -> None:
    if kind == "tdpfp16ps" and in_hardware() and "amx_fp16" not in hardware_flags():
        pytest.skip("the processor has no products of float16")
    rng = np.random.default_rng(3)
    shapes = [(16, 16, 16), (1, 1, 1), (16, 3, 5), (7, 16, 2), (5, 11, 16)] + [tuple(map(int, rng.integers(1, 17, 3))) for _ in range(5)]
    strides = [(64, 64, 64), (64, 128, 1000), (-64, 68, -100), (100_000, -4096, 64), (-65, 67, 71)]
    for seed, shape in enumerate(shapes):
        check_product(products, kind, TRIPLES[seed % 4], shape, strides[seed % 5], values, seed)
    if amx.emulated:
        counts = amx()
        assert counts[kind] == counts["ldtilecfg"] == counts["tilestored"] == 10 and counts["tileloadd"] == 30


def test_mxcsr_is_neither_used_nor_changed(amx: Counts, assembly: Any) -> None:
    """Rounding towards zero, and denormals as they are, in the program."""
    body = """
mov %rcx, %r15
ldtilecfg (%rdi)
ldmxcsr 1024(%rcx)
mov $$64, %eax
tileloadd (%rsi,%rax), %tmm1
tileloadd (%rdx,%rax), %tmm2
tileloadd (%rcx,%rax), %tmm0
tdpbf16ps %tmm2, %tmm1, %tmm0
stmxcsr 1028(%r15)
movl $$0x1f80, 1032(%r15)
ldmxcsr 1032(%r15)
tilestored %tmm0, (%rcx,%rax)
"""
    run = assembly(run=body)("run")
    rng = np.random.default_rng(0)
    for values in ("ordinary", "tiny"):
        a, b = (random_bytes(rng, "tdpbf16ps", values, 16, 64) for _ in range(2))
        c = random_bytes(rng, "tdpbf16ps", values, 16, 64, accumulator=True)
        memory = np.concatenate([c.ravel(), np.array([0x7F80, 0, 0, 0], np.uint32).view(np.uint8)])
        run(ALL_TILES, a, b, memory)
        assert_equal_bits("tdpbf16ps", memory[:1024].reshape(16, 64), product("tdpbf16ps", a, b, c))
        assert memory[1028:1032].view(np.uint32)[0] & 0xFFC0 == 0x7F80


# ---- Decoder ----

LOW = ("rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi")
REGISTERS = (*LOW, *(f"r{i}" for i in range(8, 16)))


def address_cases() -> list[tuple[str, str | None, int, int, int]]:
    """Base, index, scale, displacement, tile: every register in both roles, and every size of displacement."""
    rng = np.random.default_rng(5)
    cases = []
    for i, base in enumerate(REGISTERS * 3):
        others = [r for r in REGISTERS if r != base]
        index = None if i % 7 == 6 else others[(i * 4 + i // 15) % 14]
        cases.append((base, index, int(rng.choice([1, 2, 4, 8])), (0, 8, -128, 127, 128, -129, 70_000, -70_001)[i % 8], i % 8))
    return cases


def test_addresses_of_loads_and_stores(amx: Counts, assembly: Any) -> None:
    """Load a tile from one address and store it to another, with each register as base and as index."""
    bodies = {}
    cases = address_cases()
    for i, (base, index, scale, offset, tile) in enumerate(cases):
        address = f"{offset}(%{base})" if index is None else f"{offset}(%{base},%{index},{scale})"
        pops = f"pop %{base}" + (f"\npop %{index}" if index else "\npop %r10" if base != "r10" else "\npop %r11")
        move = f"push %rcx\npush %rdx\npush %rsi\nldtilecfg (%rdi)\n{pops}\n{{}}\npop %rdi"
        load = move.format(f"{('tileloadd', 'tileloaddt1')[i % 2]} {address}, %tmm{tile}")
        bodies[f"load{i}"] = f"{load}\nmov $$64, %esi\ntilestored %tmm{tile}, (%rdi,%rsi)"
        store = move.replace("ldtilecfg (%rdi)", f"ldtilecfg (%rdi)\nmov $$64, %eax\ntileloadd (%rcx,%rax), %tmm{tile}")
        bodies[f"store{i}"] = store.format(f"tilestored %tmm{tile}, {address}")
    find = assembly(**bodies)
    rng = np.random.default_rng(6)
    for i, (_, index, scale, offset, _) in enumerate(cases):
        memory = rng.integers(0, 256, 150_000, np.uint8)
        rows = np.lib.stride_tricks.as_strided(memory[75_000 + offset :], (16, 64), (0 if index is None else 9 * 8, 1))
        register = memory[75_000:].ctypes.data, 9 * 8 // scale
        out = np.zeros((16, 64), np.uint8)
        find(f"load{i}")(ALL_TILES, *register, out)
        assert (out == rows).all(), cases[i]
        before, source = memory.copy(), rng.integers(0, 256, (16, 64), np.uint8)
        find(f"store{i}")(ALL_TILES, *register, source)
        assert (rows == (source[-1:] if index is None else source)).all(), cases[i]
        rows[:] = np.lib.stride_tricks.as_strided(before[75_000 + offset :], rows.shape, rows.strides)
        assert (memory == before).all(), "bytes beside the rows were written"


def test_addresses_without_base_and_with_the_stack_pointer(amx: Counts, assembly: Any) -> None:
    low = mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # MAP_32BIT
    memory = np.frombuffer(low, np.uint8)
    memory[:] = np.random.default_rng(7).integers(0, 256, memory.size, np.uint8)
    at = memory.ctypes.data + 40_000
    end = "\nmov $$64, %eax\ntilestored %tmm3, (%rdx,%rax)"
    find = assembly(
        no_base=f"ldtilecfg (%rdi)\ntileloadd {at}(,%rsi,4), %tmm3{end}",
        no_base_or_index=f"ldtilecfg (%rdi)\ntileloadd {at}, %tmm3{end}",
        stack=f"ldtilecfg (%rdi)\nmov %rsp, %r9\nmov $${at - 5}, %rsp\ntileloadd 5(%rsp,%rsi,4), %tmm3\nmov %r9, %rsp{end}",
        stack_only=f"ldtilecfg (%rdi)\nmov %rsp, %r9\nmov $${at}, %rsp\ntileloadd (%rsp), %tmm3\nmov %r9, %rsp{end}",
    )
    for name, stride in (("no_base", 80), ("no_base_or_index", 0), ("stack", 80), ("stack_only", 0)):
        out = np.zeros((16, 64), np.uint8)
        find(name)(ALL_TILES, 20, out)
        expected = np.lib.stride_tricks.as_strided(memory[40_000:], (16, 64), (stride, 1))
        assert (out == expected).all(), name


def test_configurations_are_loaded_and_stored(amx: Counts, assembly: Any) -> None:
    data = configuration({0: (16, 64), 1: (3, 4), 4: (1, 60), 7: (9, 20)})
    constant = ",".join(map(str, data))
    out = np.zeros((2, 64), np.uint8)
    find = assembly(
        relative=f"ldtilecfg 77f(%rip)\nsttilecfg (%rdi)\ntilerelease\nsttilecfg 64(%rdi)\njmp 78f\n77:\n.byte {constant}\n78:",
        indexed="mov %rdi, %r13\nmov $$-4, %r12\nldtilecfg 16(%r13,%r12,4)\nmov %rsi, %rax\nsttilecfg -16(%rax,%r12,2)\n"
        "xor %edx, %edx\nlea 1064(%rsi), %r8\nldtilecfg -1000(%r8)\nsttilecfg 128(%rsi,%rdx)",
    )
    find("relative")(out)
    assert (out[0] == data).all() and not out[1].any()
    # 24 bytes for the negative displacement, the first result, a configuration of zeros, the second result.
    memory = np.zeros(24 + 3 * 64, np.uint8)
    memory[152:] = 1
    find("indexed")(data, memory[24:])
    assert (memory[:64] == data).all() and not memory[64:].any()


def test_rows_before_the_start_row_are_kept(amx: Counts, assembly: Any) -> None:
    body = """
ldtilecfg (%rdi)
mov $$64, %eax
sttilecfg (%rdx)
tileloadd (%rsi,%rax), %tmm2
sttilecfg 64(%rdx)
tilestored %tmm2, 128(%rdx,%rax)
"""
    run = assembly(run=body)("run")
    source, out = np.full((16, 64), 7, np.uint8), np.full((18, 64), 1, np.uint8)
    run(configuration({2: (10, 32)}, start_row=3), source, out)
    assert out[0, 1] == 3 and out[1, 1] == 0
    assert not out[2:5, :32].any() and (out[5:12, :32] == 7).all() and (out[2:, 32:] == 1).all() and (out[12:] == 1).all()


def test_tiles_keep_their_values_until_zeroed(amx: Counts, assembly: Any) -> None:
    """All eight tiles at once; ldtilecfg sets all to zero."""
    loads = "\n".join(f"tileloadd {64 * i}(%rsi,%rax), %tmm{i}" for i in range(8))
    stores = "\n".join(f"tilestored %tmm{i}, {64 * i}(%rdx,%rax)" for i in range(8))
    load = f"ldtilecfg (%rdi)\nmov $$512, %eax\n{loads}\n"
    zeros = "tilezero %tmm0\ntilezero %tmm6\n"
    find = assembly(keep=load + stores, zero=load + zeros + stores, again=f"{load}ldtilecfg (%rdi)\n{stores}")
    data = np.random.default_rng(8).integers(0, 256, (16, 8, 64), np.uint8)
    for name, zeroed in (("keep", []), ("zero", [0, 6]), ("again", list(range(8)))):
        out, expected = np.zeros_like(data), data.copy()
        expected[:, zeroed] = 0
        find(name)(ALL_TILES, data, out)
        assert (out == expected).all(), name


# ---- Threads ----


def test_threads_have_tiles_of_their_own(amx: Counts, products: Any, in_threads: Any) -> None:
    """Two configurations at once."""
    wait = threading.Barrier(2)

    def work(shape: Three) -> None:
        wait.wait()
        for i in range(60):
            check_product(products, "tdpbssd", (0, 1, 2), shape, (64, 64, 64), "bits", i)

    in_threads(work, [(16, 16, 16), (5, 7, 9)])


@pytest.mark.skipif(in_hardware(), reason="a thread has the configuration of the thread that started it on a processor with AMX")
def test_threads_that_end_leave_their_tiles_to_others(amx: Counts, assembly: Any, in_threads: Any) -> None:
    """More threads one after another than the emulator has states; tiles of a new thread are not configured."""
    run = assembly(run="sttilecfg (%rsi)\nldtilecfg (%rdi)\nsttilecfg 64(%rsi)")("run")
    out = np.zeros((1100, 2, 64), np.uint8)
    for row in out:
        in_threads(lambda out: run(ALL_TILES, out), [row])
    assert not out[:, 0].any() and (out[:, 1] == ALL_TILES).all()


# ---- The context ----


def handler_of_sigill() -> bytes:
    """Address of the handler of the process, and the first signals of its mask."""
    data = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).sigaction(signal.SIGILL, None, data) == 0
    return data.raw[:16]


@emulator_only
def test_the_context_restores_the_handler_and_the_flags(assembly: Any, end_of: Any) -> None:
    run = assembly(run="ldtilecfg (%rdi)\ntilerelease")("run")
    code = [needs_symbol(FLAGS)]
    before = handler_of_sigill()
    with emulated_amx() as outer:
        inside = handler_of_sigill()
        with emulated_amx() as inner:
            run(ALL_TILES)
        assert handler_of_sigill() == inside != before and EMULATED == FLAGS
        run(ALL_TILES)
        assert outer.emulated and outer()["tilerelease"] == 2 and inner()["ldtilecfg"] == 2
        outer.reset()
        assert set(outer().values()) == {0} and inner()["ldtilecfg"] == 2
        check_processor(code, "code")
    assert handler_of_sigill() == before and not EMULATED
    with pytest.raises(RunError, match="code was compiled for a processor with amx_bf16, amx_int8, amx_tile, which this machine lacks"):
        check_processor(code, "code")
    assert end_of(lambda: run(ALL_TILES)) == (signal.SIGILL, "")


@emulator_only
def test_names_are_those_of_the_handler() -> None:
    library = amx_emulator._library()
    assert [library.amx_emulator_name(i) for i in range(len(INSTRUCTIONS))] == [name.encode() for name in INSTRUCTIONS]
    assert library.amx_emulator_name(len(INSTRUCTIONS)) is None


def test_machines_without_a_compiler_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx_emulator, "hardware_flags", frozenset)
    monkeypatch.setattr(amx_emulator, "c_compiler", lambda: None)
    assert not available()
    with pytest.raises(RunError, match="AMX is emulated on Linux for x86-64 with a C compiler"), emulated_amx():
        pass


def test_processors_with_amx_need_no_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx_emulator, "hardware_flags", lambda: FLAGS | {"sse2"})
    monkeypatch.setattr(amx_emulator, "c_compiler", lambda: None)
    before = handler_of_sigill()
    assert available()
    with emulated_amx() as counts:
        assert not counts.emulated and set(counts().values()) == {0} and counts().keys() == set(INSTRUCTIONS)
        assert handler_of_sigill() == before and not EMULATED
