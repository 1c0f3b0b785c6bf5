"""Test winograd: the matrices, programs, and results for random convolutions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.winograd_matrices import POINTS, winograd_matrices
from tunesmith.support.seeds import stream
from tunesmith.testing.primitive_samples import TAPS

Apply = Callable[..., Schedule]


@pytest.mark.parametrize(("m", "r"), [(m, r) for m in range(1, 8) for r in range(1, 8) if m + r - 2 in POINTS])
def test_the_matrices_compute_a_convolution_exactly(m: int, r: int) -> None:
    """In rational numbers, for every unit vector of data and of weights, which is enough because both sides are bilinear."""
    made = winograd_matrices(m, r)
    n = m + r - 1
    assert [len(made.inverse), len(made.weights), len(made.data)] == [m, n, n]
    for i in range(n):
        for j in range(r):
            products = [made.data[p][i] * made.weights[p][j] for p in range(n)]
            out = [sum((made.inverse[y][p] * products[p] for p in range(n)), Fraction(0)) for y in range(m)]
            assert out == [Fraction(i == y + j) for y in range(m)]


def test_winograd(apply: Apply, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(apply(TAPS, lambda s: s.winograd(s.get_block("C"), 2)).func))


def test_the_result_has_the_blocks_in_order() -> None:
    s = Schedule(TAPS)
    names = [s.block(b).name for b in s.winograd(s.get_block("C"), 2)]
    assert names == ["A_whole", "A_winograd", "W_winograd", "C_products", "C_tiles"]
    assert [b.name for b in s.blocks()] == [*names, "C"]


def random_convolution(seed: int) -> tuple[PrimFunc, int]:
    """A convolution of one to three dimensions, and a tile: orders of axes and loops, batches, starts, both orders of the product."""
    rng = stream(seed, "winograd")
    rank = int(rng.choice([1, 2, 2, 3]))
    taps = [int(rng.integers(2, 4 if rank == 3 else 5)) for _ in range(rank)]
    tile = int(rng.integers(2, 5)) if rank < 3 else 2
    sizes = [int(rng.integers(1, 9 if rank < 3 else 5)) for _ in range(rank)]
    starts = [int(rng.integers(0, 2)) for _ in range(rank)]
    n, ci, co = (int(rng.integers(1, 4)) for _ in range(3))
    window = list(enumerate(zip(sizes, taps, starts, strict=True)))
    image = [(f"vx{d} + vk{d}" + (f" + {start}" if start else ""), size + r - 1 + start) for d, (size, r, start) in window]
    outputs = [(f"x{d}", size, "S") for d, (size, _, _) in window]
    loops = [("n", n, "S"), *outputs, ("o", co, "S"), *[(f"k{d}", r, "R") for d, (_, r, _) in window], ("c", ci, "R")]
    a = [("vn", n), *image, ("vc", ci)]
    w = [*[(f"vk{d}", r) for d, (_, r, _) in window], ("vc", ci), ("vo", co)]
    c = [("vn", n), *[(f"v{x}", size) for x, size, _ in outputs], ("vo", co)]
    operands = [("A", a), ("W", w)]
    for listed in (loops, a, w, c, operands):
        rng.shuffle(listed)

    def buffer(name: str, dims: list[tuple[str, int]]) -> str:
        return f'{name}: T.Buffer(({", ".join(str(x) for _, x in dims)},), "float32")'

    out = f"C[{', '.join(e for e, _ in c)}]"
    term = " * ".join(f"{name}[{', '.join(e for e, _ in dims)}]" for name, dims in operands)
    names = ", ".join(x for x, _, _ in loops)
    func = parse(f"""
@T.prim_func
def f({buffer("A", a)}, {buffer("W", w)}, {buffer("C", c)}):
    for {names} in T.grid({", ".join(str(e) for _, e, _ in loops)}):
        with T.block("C"):
            {", ".join(f"v{x}" for x, _, _ in loops)} = T.axis.remap("{"".join(k for *_, k in loops)}", [{names}])
            with T.init():
                {out} = 0.0
            {out} = {out} + {term}
""")
    return func, tile


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions(seed: int) -> None:
    func, tile = random_convolution(seed)
    s = Schedule(func)
    s.winograd(s.get_block("C"), tile)
    rng = stream(seed, "data")
    data = [rng.standard_normal([e.as_int() for e in p.shape]).astype(np.float32) for p in func.params[:2] if isinstance(p, Buffer)]
    want, made = run(func, data)[2].astype(np.float64), run(s.func, data)[2]
    assert np.abs(made - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), str(s.func)
