"""Products of quarters: the rewrite, random products in any order of axes, two applications."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.schedule.primitives.strassen import LEFT, RESULT, RIGHT
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.seeds import stream
from tunesmith.testing.primitive_samples import PRODUCT

Apply = Callable[..., Schedule]


def test_the_coefficients_multiply_matrices_of_quarters() -> None:
    """Each product of quarters occurs in the result as often as in a matrix product."""
    for row in range(2):
        for column in range(2):
            found = np.zeros((4, 4), int)
            for p, c in enumerate(RESULT[row * 2 + column]):
                found += int(c) * np.outer([int(x) for x in LEFT[p]], [int(x) for x in RIGHT[p]])
            want = np.zeros((4, 4), int)
            for k in range(2):
                want[row * 2 + k, k * 2 + column] = 1
            assert (found == want).all()


def test_strassen(apply: Apply, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(apply(PRODUCT, lambda s: s.strassen(s.get_block("C"), [0, 1, 2])).func))


def test_the_result_has_the_blocks_in_order() -> None:
    s = Schedule(PRODUCT)
    names = [s.block(b).name for b in s.strassen(s.get_block("C"), [0, 1, 2], 2)]
    assert names == ["A_sums", "W_sums", "C_products"]
    assert [b.name for b in s.blocks()] == [*names, "C", "D"]


def random_product(seed: int) -> tuple[PrimFunc, list[int], int]:
    """A product with batches, reductions that stay whole and reductions of one term, in any order; the divided axes, and a panel."""
    rng = stream(seed, "strassen")
    size = {x: int(rng.integers(2, 8)) for x in "ijk"} | {"n": int(rng.integers(1, 4)), "w": int(rng.integers(1, 3)), "u": 1}
    kinds = {"i": "S", "j": "S", "k": "R", "n": "S", "w": "R", "u": "R"}
    shift = bool(rng.integers(2))
    a = ["vi", "vk", "vn + vu" if shift else "vn", "vw"]
    b = ["vk", "vj", "vw", *(["vn"] if rng.integers(2) else [])]
    c = ["vi", "vj", "vn"]
    loops = list(size)
    operands = [("A", a), ("B", b)]
    for listed in (loops, a, b, c, operands):
        rng.shuffle(listed)

    def buffer(name: str, dims: list[str]) -> str:
        return f'{name}: T.Buffer(({"".join(f"{size[e[1]]}, " for e in dims)}), "float32")'

    out = f"C[{', '.join(c)}]"
    term = " * ".join(f"{name}[{', '.join(dims)}]" for name, dims in operands)
    names = ", ".join(loops)
    func = parse(f"""
@T.prim_func
def f({buffer("A", a)}, {buffer("B", b)}, {buffer("C", c)}):
    for {names} in T.grid({", ".join(str(size[x]) for x in loops)}):
        with T.block("C"):
            {", ".join(f"v{x}" for x in loops)} = T.axis.remap("{"".join(kinds[x] for x in loops)}", [{names}])
            with T.init():
                {out} = 0.0
            {out} = {out} + {term}
""")
    assert isinstance(func, PrimFunc)
    return func, [loops.index(x) for x in "ijk"], int(rng.integers(1, 4))


def check(func: PrimFunc, s: Schedule, seed: int) -> None:
    rng = stream(seed, "data")
    data = [rng.standard_normal([e.as_int() for e in p.shape]).astype(np.float32) for p in func.params[:2] if isinstance(p, Buffer)]
    want, made = run(func, data)[2].astype(np.float64), run(s.func, data)[2]
    assert np.abs(made - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), str(s.func)


@pytest.mark.parametrize("seed", range(60))
def test_random_products(seed: int) -> None:
    func, axes, panel = random_product(seed)
    s = Schedule(func)
    s.strassen(s.get_block("C"), axes, panel)
    check(func, s, seed)


@pytest.mark.parametrize("seed", range(20))
def test_two_applications(seed: int) -> None:
    func, axes, _ = random_product(seed)
    s = Schedule(func)
    products = s.strassen(s.get_block("C"), axes)[2]
    names = [it.var.name for it in s.block(products).iters]
    position = [names.index(f"v{x}") for x in "ijk"]
    if all((s.block(products).iters[n].extent.const or 0) > 1 for n in position):
        s.strassen(products, position)
        assert s.error_growth > 3
    check(func, s, seed)
