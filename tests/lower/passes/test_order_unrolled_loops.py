"""order_unrolled_loops orders the loops of register tiles that exceed the registers, and leaves all others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.order_unrolled_loops import order_unrolled_loops
from tunesmith.runtime.module import Module
from tunesmith.support.seeds import stream

Lowered = Callable[..., PrimFunc]
AVX2 = Target("llvm -mcpu=x86-64-v3 -num-cores=1")
AVX512 = Target("llvm -mcpu=x86-64-v4 -num-cores=1")

TILE = """
@T.prim_func
def tile(A: T.Buffer((9, {j}), "float32"), B: T.Buffer((9, {i}, 8), "float32"), C: T.Buffer(({i}, {j}, 8), "float32")):
    for k in T.serial(9):
        for i in {outer}:
            for j in T.unroll({j}):
                for v in T.vectorized(8):
                    with T.block("tile"):
                        vi, vj, vv, vk = T.axis.remap("SSSR", [i, j, v, k])
                        with T.init():
                            C[vi, vj, vv] = 0.0
                        C[vi, vj, vv] = C[vi, vj, vv] + A[vk, vj] * B[vk, vi, vv]
"""


def tile(i: int, j: int, outer: str = "T.unroll({i})") -> PrimFunc:
    """A tile of i x j vectors: A has one value for each j, B one vector for each i."""
    return parse(TILE.replace("{outer}", outer).format(i=i, j=j))


def order(func: PrimFunc) -> str:
    """The loop variables, outermost first."""
    return "".join(n.var.name for n in walk(func.body) if type(n) is For)


def test_a_tile_that_exceeds_the_registers(lowered: Lowered, assert_golden: Callable[[str], None]) -> None:
    """Twelve accumulators; the six values of A would stay alive through the loop i, of the two vectors of B only two through j."""
    done = lowered(tile(2, 6), order_unrolled_loops)
    assert_golden(str(done))
    assert order(done) == "kjiv"


def test_the_order_with_the_fewest_values_alive_stays() -> None:
    """i has more iterations than j: the order is already the best one."""
    func = tile(6, 2)
    assert order_unrolled_loops(func, AVX2) is func


def test_a_tile_that_fits_the_registers_stays() -> None:
    """The same tile with 32 registers, and a smaller one with 16."""
    for func, target in ((tile(2, 6), AVX512), (tile(2, 3), AVX2)):
        assert order_unrolled_loops(func, target) is func


def test_gpu_programs_stay() -> None:
    func = tile(2, 6)
    assert order_unrolled_loops(func, Target("cuda -arch=sm_80")) is func


@pytest.mark.parametrize("outer", ["T.serial({i})", "T.vectorized({i})", 'T.unroll({i}, annotations={{"prefetch": 1}})'])
def test_other_loops_keep_their_places(outer: str) -> None:
    func = tile(2, 6, outer)
    assert order_unrolled_loops(func, AVX2) is func


TAPS = """
@T.prim_func
def taps(A: T.Buffer((3, {n}, 6), "float32"), B: T.Buffer((3, {n}, 2, 8), "float32"), C: T.Buffer((2, 6, 8), "float32")):
{loops}
                        with T.block("taps"):
                            vi, vj, vv, vk, vl = T.axis.remap("SSSRR", [i, j, v, k, l])
                            with T.init():
                                C[vi, vj, vv] = 0.0
                            C[vi, vj, vv] = C[vi, vj, vv] + A[vk, vl, vj] * B[vk, vl, vi, vv]
"""


def taps(order: str, lanes: str = "v") -> PrimFunc:
    """Unrolled loops of a reduction around and between those of a tile of 2 x 6 vectors."""
    sizes = {"i": 2, "j": 6, "k": 3, "l": 2 if lanes == "v" else 8, "v": 8}
    loops = [f"{' ' * 4 * n}for {x} in T.unroll({sizes[x]}):" for n, x in enumerate(order, 1)]
    loops.append(f"{' ' * 20}for {lanes} in T.vectorized({sizes[lanes]}):")
    return parse(TAPS.format(n=sizes["l"], loops="\n".join(loops)))


@pytest.mark.parametrize(("given", "expected"), [("klij", "klji"), ("ijkl", "klji"), ("ilkj", "lkji"), ("lijk", "lkji")])
def test_two_loops_of_a_reduction_keep_their_order(given: str, expected: str) -> None:
    """The terms of each sum are added as before; a step of the reduction in front of the tile keeps two vectors of B alive."""
    func = taps(given)
    done = order_unrolled_loops(func, AVX2)
    assert order(done) == expected + "v"
    rng = stream(0, "order_unrolled_loops", given)
    a, b = rng.standard_normal((3, 2, 6)).astype("float32"), rng.standard_normal((3, 2, 2, 8)).astype("float32")
    np.testing.assert_array_equal(run(done, [a, b])[-1], run(func, [a, b])[-1])


def test_a_vectorized_loop_of_the_reduction_keeps_the_order() -> None:
    func = taps("kijv", lanes="l")
    assert order_unrolled_loops(func, AVX2) is func


WINDOW = """
@T.prim_func
def window(A: T.Buffer((8, 8), "float32"), B: T.Buffer((3, 8), "float32"), C: T.Buffer((6, 8), "float32"), D: T.Buffer((6, 8), "float32")):
    for k in T.unroll(3):
        for j in T.unroll(6):
            for v in T.vectorized(8):
                with T.block("window"):
                    vj, vv, vk = T.axis.remap("SSR", [j, v, k])
                    with T.init():
                        C[vj, vv] = D[vj, vv]
                    C[vj, vv] = C[vj, vv] + A[vj + vk, vv] * B[vk, vv]
"""


def test_the_taps_of_a_window_run_inside_its_elements(lowered: Lowered, assert_golden: Callable[[str], None]) -> None:
    """Of k outside, six vectors of A wait for the next tap; of j outside, the two that the next element shares, and the three of B."""
    done = lowered(parse(WINDOW), order_unrolled_loops)
    assert_golden(str(done))
    assert order(done) == "jkv"


def test_a_window_of_larger_steps_shares_no_elements() -> None:
    """Elements 3 j + k of three taps differ: they are loaded once in any order."""
    func = parse(WINDOW.replace("(8, 8)", "(18, 8)").replace("vj + vk", "vj * 3 + vk").replace("T.unroll(6)", "T.unroll(4)"))
    assert order_unrolled_loops(func, AVX2) is func


@pytest.mark.parametrize(
    "body",
    [
        # An element of the previous iteration, in the order of the loops.
        "C[vi, vj, vv] = T.select(vi + vj > 0, C[T.max(vi - 1, 0), vj, vv], T.float32(1.0)) * A[vj] + B[vi, vv]",
        # Two iterations store one element: the last one wins.
        "C[vi // 2, vj, vv] = A[vj] * B[vi, vv] + D[vi, vj, vv]",
    ],
)
def test_dependent_iterations_keep_their_order(body: str) -> None:
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((6,), "float32"), B: T.Buffer((4, 8), "float32"), D: T.Buffer((4, 6, 8), "float32"), C: T.Buffer((4, 6, 8), "float32")):
    for i in T.unroll(4):
        for j in T.unroll(6):
            for v in T.vectorized(8):
                with T.block("f"):
                    vi, vj, vv = T.axis.remap("SSS", [i, j, v])
                    {body}
""")
    assert order_unrolled_loops(func, AVX2) is func


def test_two_buffers_stored_keep_the_order() -> None:
    func = parse("""
@T.prim_func
def f(A: T.Buffer((6,), "float32"), B: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 6, 8), "float32"), D: T.Buffer((4, 6, 8), "float32")):
    for i in T.unroll(4):
        for j in T.unroll(6):
            for v in T.vectorized(8):
                with T.block("f"):
                    vi, vj, vv = T.axis.remap("SSS", [i, j, v])
                    C[vi, vj, vv] = A[vj] * B[vi, vv]
                    D[vi, vj, vv] = A[vj] + B[vi, vv]
""")
    assert order_unrolled_loops(func, AVX2) is func


def test_wide_types_fill_more_registers() -> None:
    """Eight values of float64 are two vectors of AVX2: a tile of 2 x 3 exceeds the registers, and one of float32 does not."""
    wide = parse(TILE.replace("{outer}", "T.unroll({i})").format(i=2, j=4).replace("float32", "float64"))
    assert order(order_unrolled_loops(wide, AVX2)) == "kjiv"
    func = tile(2, 4)
    assert order_unrolled_loops(func, AVX2) is func


@pytest.mark.parametrize("target", [AVX2, Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")])
@pytest.mark.parametrize(("i", "j"), [(2, 6), (3, 5), (4, 7)])
def test_compiled_tiles_are_right(target: Target, i: int, j: int) -> None:
    func, rng = tile(i, j), stream(i, "order_unrolled_loops", j)
    a, b = rng.integers(-3, 4, (9, j)).astype("float32"), rng.integers(-3, 4, (9, i, 8)).astype("float32")
    got = np.full((i, j, 8), np.nan, "float32")
    Module.from_object(build(func, target).data)["tile"](a, b, got)
    np.testing.assert_array_equal(got, np.einsum("kj,kiv->ijv", a, b))
    np.testing.assert_array_equal(got, run(func, [a, b])[-1])
