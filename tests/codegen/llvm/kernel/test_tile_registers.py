"""Test tile registers: results of compiled code bit for bit, shared loads, regions, and what cannot be compiled."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import build
from tunesmith.codegen.llvm.build import assembly, emit_text
from tunesmith.codegen.llvm.build import build as llvm_build
from tunesmith.codegen.llvm.kernel import function
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError
from tunesmith.testing.amx_emulator import Counts

AMX = Target("llvm -mcpu=x86-64-v4 -mattr=+amx-tile,+amx-bf16,+amx-int8 -num-cores=2")
LAYOUT = [[0, "/", 16], [1, "/", 16], [0, "%", 16], [1, "%", 16]]


def product(m: int, n: int, k: int, left: str = "bfloat16", right: str = "bfloat16", out: str = "float32") -> PrimFunc:
    made = parse(f"""
@T.prim_func
def product(A: T.Buffer(({m}, {k}), "{left}"), B: T.Buffer(({k}, {n}), "{right}"), C: T.Buffer(({m}, {n}), "{out}")):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = {"0.0" if out == "float32" else "0"}
            C[vi, vj] = C[vi, vj] + T.cast("{out}", A[vi, vk]) * T.cast("{out}", B[vk, vj])
""")
    assert isinstance(made, PrimFunc)
    return made


def tiled(s: Schedule, rows: int = 2, columns: int = 2, intrinsic: str = "tdpbf16ps", threads: bool = True) -> None:
    """A register tile of rows x columns tile registers; A is read where it is, B is packed."""
    suffix, group = ("f32", 2) if intrinsic == "tdpbf16ps" else ("s32", 4)
    b = s.get_block("C")
    write = s.cache_write(b, "amx.tile")
    s.cache_read(b, "B", "global", [[1, "/", 16], [0, "/", group], [1, "%", 16], [0, "%", group]])
    i, j, k = s.get_loops(b)
    i0, i1, i2 = s.split(i, [None, rows, 16])
    j0, j1, j2 = s.split(j, [None, columns, 16])
    k0, *inner = s.split(k, [None, 16, group])
    s.reorder([i0, j0, k0, i1, j1, i2, j2, *inner])
    s.reverse_compute_at(write, j0)
    spill = s.read_at(j0, write, "C_amx.tile", "workspace")
    init = s.decompose_reduction(b, k0)
    x, y = s.get_loops(spill)[-2:]
    (x0, x1), (y0, y1) = s.split(x, [None, 16]), s.split(y, [None, 16])
    s.reorder([x0, y0, x1, y1])
    for loop in (i1, j1, x0, y0, *s.get_loops(init)[2:4]):
        s.unroll(loop)
    s.vectorize(s.get_loops(write)[-1])
    s.transform_layout(b, "C_amx.tile", LAYOUT)
    s.transform_layout(spill, "C_amx.tile_copy", LAYOUT)
    s.tensorize(i2, f"x86.{intrinsic}")
    s.tensorize(s.get_loops(init)[-2], f"x86.tilezero.{suffix}")
    s.tensorize(x1, f"x86.tilestore.{suffix}")
    if threads:
        s.parallel(i0)


def scheduled(func: PrimFunc, steps: Callable[[Schedule], None] = tiled) -> PrimFunc:
    s = Schedule(func)
    steps(s)
    return s.func


def called(func: PrimFunc, target: Target, *given: np.ndarray) -> np.ndarray:
    """The output of the compiled function, on this machine."""
    out = np.full([e.as_int() for e in func.params[-1].shape], 7, func.params[-1].dtype)  # type: ignore[union-attr]
    build(func, target)[func.name](*given, out)
    return out


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return round_bfloat16(rng.standard_normal(shape).astype("float32"))
    return rng.integers(*{"int8": (-128, 128), "uint8": (0, 256)}[dtype], shape).astype(dtype)


@pytest.mark.parametrize("threads", [False, True])
def test_bfloat16_bit_by_bit(amx: Counts, amx_target: Target, threads: bool) -> None:
    """Scheduled and lowered programs agree with numpy; the compiled one with the lowered one, bit for bit."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    func = scheduled(product(64, 32, 96), lambda s: tiled(s, threads=threads))
    a, b = random((64, 96), "bfloat16"), random((96, 32), "bfloat16", 1)
    want = a.astype("float64") @ b.astype("float64")
    assert np.abs(run(func, [a, b])[-1] - want).max() < 1e-4
    lowered = run(CPU(func, AMX), [a.ravel(), b.ravel()])[-1].reshape(64, 32)
    assert np.abs(lowered - want).max() < 1e-4
    got = called(func, amx_target, a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(got, lowered)
    if amx.emulated:
        assert amx()["tdpbf16ps"] == 4 * 2 * 3
        assert amx()["tileloadd"] == amx()["tdpbf16ps"], "four operands for four products"


@pytest.mark.parametrize(
    ("name", "left", "right"), [("ss", "int8", "int8"), ("su", "int8", "uint8"), ("us", "uint8", "int8"), ("uu", "uint8", "uint8")]
)
def test_bytes(amx_target: Target, name: str, left: str, right: str) -> None:
    func = scheduled(product(32, 32, 128, left, right, "int32"), lambda s: tiled(s, 1, 2, f"tdpb{name}d"))
    a, b = random((32, 128), left), random((128, 32), right, 1)
    want = a.astype("int32") @ b.astype("int32")
    np.testing.assert_array_equal(run(func, [a, b])[-1], want)
    np.testing.assert_array_equal(called(func, amx_target, a, b), want)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (2, 3), (4, 1), (1, 6)])
def test_register_tiles_with_partial_ones_at_the_end(amx: Counts, amx_target: Target, rows: int, columns: int) -> None:
    """80 rows are 5 tiles, 64 columns are 4: the last register tile has fewer tiles, all of them whole."""
    func = scheduled(product(80, 64, 64, "uint8", "int8", "int32"), lambda s: tiled(s, rows, columns, "tdpbusd"))
    a, b = random((80, 64), "uint8"), random((64, 64), "int8", 1)
    np.testing.assert_array_equal(called(func, amx_target, a, b), a.astype("int32") @ b.astype("int32"))
    if amx.emulated:
        assert amx()["tdpbusd"] == 5 * 4


def test_a_loop_loads_each_operand_once() -> None:
    """Four loads for four products; the sums stay in their registers, whatever LLVM's scheduler of the processor does."""
    func = scheduled(product(32, 32, 96))
    for cpu in ("znver5", "sapphirerapids", "x86-64-v4"):
        text = assembly(func, Target(f"llvm -mcpu={cpu} -mattr=+amx-tile,+amx-bf16,+amx-int8 -num-cores=2"))
        loads = re.findall(r"tileloadd.*%tmm(\d)", text)
        products = re.findall(r"tdpbf16ps\s+%tmm(\d), %tmm(\d), %tmm(\d)", text)
        assert sorted(loads) == ["4", "5", "6", "7"] and [p[2] for p in products] == ["0", "1", "2", "3"]
        assert all({b, a} <= set("4567") and a != b for b, a, _ in products)
        assert re.findall(r"tilestored\s+%tmm(\d)", text) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("rows", "columns", "loads"), [(2, 2, 4), (3, 2, 7), (2, 3, 7), (4, 1, 5), (1, 6, 7), (6, 1, 7)])
def test_products_are_ordered_so_that_they_share_operands(rows: int, columns: int, loads: int) -> None:
    func = scheduled(product(16 * rows, 16 * columns, 64, "uint8", "int8", "int32"), lambda s: tiled(s, rows, columns, "tdpbusd"))
    text, _ = emit_text(func, AMX)
    assert text.count("call void @llvm.x86.tileloadd64") == loads
    assert text.count("call void @llvm.x86.tdpbusd") == rows * columns


def test_a_tile_times_itself_takes_two_registers() -> None:
    """An instruction with two equal operands is illegal."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((1024,), "int8"), D: T.Buffer((256,), "int32")):
    for n in T.serial(1):
        C = T.allocate((256,), "int32", scope="amx.tile")
        C.vstore([0], T.Broadcast(T.int32(0), 256), stride=1)
        C.vstore([0], T.tdpbssd(C.vload([0], 256, stride=1), A.vload([0], 1024, stride=1), A.vload([0], 1024, stride=1)), stride=1)
        C.vstore([0], T.tdpbssd(C.vload([0], 256, stride=1), A.vload([0], 1024, stride=1), A.vload([0], 1024, stride=1)), stride=1)
        D.vstore([0], C.vload([0], 256, stride=1), stride=1)
""")
    assert isinstance(func, PrimFunc)
    text, _ = emit_text(func, AMX)
    assert len(re.findall(r"tdpbssd\(i8 0, i8 (\d), i8 (?!\1)\d\)", text)) == 2


def test_vectors_across_the_rows_of_a_tile_are_refused() -> None:
    """Strided stores whose lanes are adjacent would be rearranged for memory."""
    stores = "".join([f"    C.vstore([{j}], T.Broadcast(T.int32(0), 16), stride=16)\n" for j in range(16)])
    func = parse(f"""
@T.prim_func
def f(D: T.Buffer((256,), "int32")):
    C = T.allocate((256,), "int32", scope="amx.tile")
{stores}    D.vstore([0], C.vload([0], 256, stride=1), stride=1)
""")
    assert isinstance(func, PrimFunc)
    with pytest.raises(BuildError, match="other code than tensor intrinsics of whole tiles"):
        emit_text(func, AMX)


def test_an_operand_is_loaded_again_after_a_store() -> None:
    """The second product reads what was stored after the first one."""
    text, _ = emit_text(
        _parsed("""
        C.vstore([0], T.tdpbusd(C.vload([0], 256, stride=1), A.vload([0], 1024, stride=1), B.vload([0], 1024, stride=1)), stride=1)
        A[0] = T.uint8(1)
        C.vstore([0], T.tdpbusd(C.vload([0], 256, stride=1), A.vload([0], 1024, stride=1), B.vload([0], 1024, stride=1)), stride=1)
"""),
        AMX,
    )
    assert text.count("call void @llvm.x86.tileloadd64") == 3


def test_regions_are_inside_of_threads() -> None:
    """Each thread configures its registers once, and releases them."""
    text, _ = emit_text(scheduled(product(64, 32, 64)), AMX)
    bodies = [f for f in text.split("define ") if "ldtilecfg" in f and f.startswith("internal")]
    assert len(bodies) == 1 and ".parallel" in bodies[0].split("(")[0]
    assert bodies[0].count("@llvm.x86.ldtilecfg") == bodies[0].count("@llvm.x86.tilerelease") == 1
    assert text.count("call void @llvm.x86.ldtilecfg") == 1


def test_only_code_with_tiles_needs_the_unit() -> None:
    plain = product(64, 32, 64)
    assert "amx_tile" not in emit_text(plain, AMX)[0]
    symbol = re.search(r"__tunesmith_needs_v1[^\"]*", emit_text(scheduled(plain), AMX)[0])
    assert symbol is not None and {"amx_tile", "amx_bf16"} <= set(symbol[0].split(".")) and "amx_int8" not in symbol[0]


def test_a_library_asks_for_the_permission_when_it_is_loaded() -> None:
    """So that programs in C may use it, too."""
    asks = "call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)"
    assert asks not in emit_text(product(64, 32, 64), AMX)[0]
    text = emit_text(scheduled(product(64, 32, 64)), AMX)[0]
    assert asks in text and "@llvm.global_ctors" in text


def _parsed(body: str, tiles: int = 1, dtype: str = "int32") -> PrimFunc:
    made = parse(f"""
@T.prim_func
def f(A: T.Buffer((2048,), "uint8"), B: T.Buffer((2048,), "int8"), D: T.Buffer((256,), "int32")):
    for n in T.serial(1):
        C = T.allocate(({256 * tiles},), "{dtype}", scope="amx.tile")
{body.strip(chr(10))}
""")
    assert isinstance(made, PrimFunc)
    return made


ZERO = "        C.vstore([0], T.Broadcast(T.int32(0), 256), stride=1)"
STRIDED = "T.tdpbusd(C.vload([0], 256, stride=1), A.vload([0], 1024, stride=2), B.vload([0], 1024, stride=1))"
OTHER = "C of scope amx.tile is accessed by other code than tensor intrinsics of whole tiles"
REFUSED = [
    ("        D[0] = C[0] + 1", 1, "C of scope amx.tile is read by other code than tensor intrinsics"),
    ("        C[0] = 1", 1, OTHER),
    ("        T.evaluate(T.prefetch(C[0]))", 1, OTHER),
    (ZERO.replace("int32(0)", "int32(1)"), 1, OTHER),
    (ZERO.replace("[0]", "[16]"), 2, "is accessed at the element 16; a tile register has a constant number"),
    (f"        for m in T.serial(2):\n    {ZERO.replace('[0]', '[m * 256]')}", 2, "Unroll the loops that index its tiles"),
    (ZERO, 7, "need 7 tile registers; there are 8, and a product needs 2 for its operands"),
    ("        D.vstore([0], C.vload([0], 16, stride=1), stride=1)", 1, OTHER),
    (f"        C.vstore([0], {STRIDED}, stride=1)", 1, "an operand of a product of tiles is not a tile in memory"),
    (f"        for m in T.parallel(2):\n            D[m] = 1\n{ZERO}", 1, "a parallel loop is inside of a loop that keeps values in tile"),
]


@pytest.mark.parametrize(("body", "tiles", "message"), REFUSED)
def test_other_uses_of_tile_registers_are_refused(body: str, tiles: int, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        emit_text(_parsed(body, tiles), AMX)


def test_one_thread_executes_parallel_loops_between_uses_of_tile_registers(amx_target: Target) -> None:
    """Its parallel loops are serial."""
    loop = "        for m in T.parallel(2):\n            D[m] = 1"
    func = _parsed(f"{ZERO}\n{loop}\n        D.vstore([0], C.vload([0], 256, stride=1), stride=1)")
    one = amx_target.with_attributes(num_cores=1)
    out = np.full(256, 7, "int32")
    Module.from_object(llvm_build(func, one).data)["f"](np.zeros(2048, "uint8"), np.zeros(2048, "int8"), out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_body_of_a_kernel_without_tile_registers_is_searched_once(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []
    monkeypatch.setattr(function, "uses_tiles", lambda n: bool(searched.append(n)))
    emit_text(product(64, 32, 64), AMX.with_attributes(num_cores=threads))
    assert len(searched) == 1


def test_a_buffer_of_half_a_tile_is_refused() -> None:
    func = _parsed("        C.vstore([0], T.Broadcast(T.int16(0), 256), stride=1)", dtype="int16")
    with pytest.raises(BuildError, match="has 512 bytes, which is not a number of tiles of 1024 bytes"):
        emit_text(func, AMX)


def test_a_partial_tile_is_refused() -> None:
    """Loops would execute it, which cannot access tile registers."""
    func = scheduled(product(40, 32, 64), lambda s: tiled(s, threads=False))
    with pytest.raises(BuildError, match=r"scope amx.tile is .*other code than tensor intrinsics"):
        emit_text(func, AMX)


def test_a_target_without_the_unit_is_refused() -> None:
    func = scheduled(product(64, 32, 64))
    with pytest.raises(BuildError, match=r"needs a target of kind llvm with the features amx-tile"):
        build(func, Target("llvm -mcpu=x86-64-v4 -num-cores=2"))
