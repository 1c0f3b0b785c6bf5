"""Chains of convolutions by blocks of rows: which functions, results, the law."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import PRIMITIVE, Operand
from tunesmith.graph.passes.legalise import legalise
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules.row_blocks import sketches
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

HERE = Target.detect()
NAMES = [f"row blocks {order}{window}" for order in ("rows-vec", "vec-rows") for window in ("", " window")]


def lowered(b: GraphBuilder, y: Operand) -> PrimFunc:
    """One TIR function of all calls."""
    (func,) = legalise(IRModule({"main": b.finish(y).with_(attrs=((PRIMITIVE, "1"),))})).values()
    assert isinstance(func, PrimFunc)
    return func


def random_chain(seed: int) -> PrimFunc:
    """Two to four layers of random kinds, windows, strides and paddings, with elementwise operators between them."""
    rng = stream(seed, "chains")
    b = GraphBuilder("main")
    n, h, w, c = (int(x) for x in (rng.integers(1, 3), rng.integers(6, 14), rng.integers(5, 20), rng.choice([3, 4, 8, 17])))
    x = y = b.input("x", (n, h, w, c))
    for i in range(int(rng.integers(2, 5))):
        kind = "depthwise" if i % 2 else rng.choice(["product", "convolution"])
        channels = y.type.extents[3]
        out = channels if kind == "depthwise" else int(rng.choice([5, 16, 24]))
        if kind == "product":
            y = b.matmul(y, b.input(f"w{i}", (channels, out)))
        else:
            kh, kw = (int(k) for k in rng.choice([1, 3, 5], 2))
            sides = tuple(int(p) for p in rng.integers(0, 3, 4))
            strides = tuple(int(s) for s in rng.integers(1, 3, 2)) if y.type.extents[1] > 5 else (1, 1)
            if y.type.extents[1] + sides[0] + sides[2] < kh + 2 or y.type.extents[2] + sides[1] + sides[3] < kw + 2:
                kh = kw = 1
            filters = b.input(f"w{i}", (kh, kw, 1 if kind == "depthwise" else channels, out))
            groups = channels if kind == "depthwise" else 1
            y = b.conv2d(y, filters, strides=strides, padding=sides, groups=groups, layout="NHWC")
        if rng.random() < 0.7:
            y = b.relu(b.add(y, b.input(f"b{i}", (out,))))
    if y.type == x.type:
        y = b.add(x, y)
    return lowered(b, y)


def check(func: PrimFunc, rows: int, names: list[str] | None = None) -> None:
    """Some rows of each sketch, one of its serial twin, compute what the interpreter does, and follow the law of sketches."""
    shapes = [[e.as_int() for e in p.shape] for p in func.params]
    given = [stream(n, "chain", *shape).standard_normal(shape).astype(np.float32) for n, shape in enumerate(shapes)]
    want = run(func, given[:-1])[-1]
    space = generate(func, HERE, rules=[sketches])
    assert not space.refused and not space.left_out
    found = [s.name for s in space.sketches if "serial" not in s.name]
    assert names is None or found == names
    assert found
    for sketch in space.sketches:
        twin = sketch.name.removesuffix(" serial") in found and sketch.name.endswith(" serial")
        for row in sketch.space.sample(1 if twin else rows, np.random.default_rng(0)):
            numbers = tuple(int(x) for x in row)
            program = sketch.concretize(numbers)
            assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func), (sketch.name, numbers)
            out = np.full_like(want, np.nan)
            Module.from_object(build(program, HERE).data)[func.name](*given[:-1], out)
            assert np.abs(out - want).max() <= 1e-5 * np.abs(want).max(), (sketch.name, numbers)


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed: int) -> None:
    check(random_chain(seed), rows=2)


def test_names_of_the_plans() -> None:
    b = GraphBuilder("main")
    y = b.relu(b.matmul(b.input("x", (1, 12, 10, 4)), b.input("w", (4, 16))))
    y = b.conv2d(y, b.input("v", (3, 3, 1, 16)), padding=(1, 1, 1, 1), groups=16, layout="NHWC")
    check(lowered(b, b.matmul(y, b.input("u", (16, 8)))), rows=1, names=NAMES)


def test_a_block_of_rows_computes_the_rows_that_its_windows_read() -> None:
    """Without borders of the image, a task of two rows of the result computes four rows of the image between the layers."""
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 14, 18, 4)), b.input("w", (4, 16)))
    func = lowered(b, b.conv2d(y, b.input("v", (3, 3, 1, 16)), groups=16, layout="NHWC"))
    sketch = generate(func, HERE, rules=[sketches]).sketches[0]
    row = next(r for r in sketch.space.sample(50, np.random.default_rng(0)) if r[0] == 2)
    text = str(sketch.concretize(tuple(int(x) for x in row)))
    assert re.search(r"for \w+ in T.(parallel|serial)\(6\):", text) and re.search(r"for (\w+, )+\w+ in T.grid\(1, 4, ", text)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,pad=1,bias=1,relu=1)",
        "matmul(m=32,n=32,k=32)",
        "attention(b=2,m=16,n=16,d=8)",
        "softmax(m=8,n=64)",
    ],
)
def test_other_functions_have_no_sketches(text: str) -> None:
    assert sketches(workload(text).func, HERE) == []


def test_layers_whose_result_others_read_have_no_sketches() -> None:
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 12, 10, 4)), b.input("w", (4, 16)))
    z = b.conv2d(y, b.input("v", (3, 3, 1, 16)), padding=(1, 1, 1, 1), groups=16, layout="NHWC")
    assert sketches(lowered(b, b.add(y, z)), HERE) == []


def test_dense_layers_with_channels_first_have_no_sketches() -> None:
    """Blocks of the axis after the images would be blocks of channels, each of which reads all channels of the image before."""
    b = GraphBuilder("main")
    y = b.conv2d(b.input("x", (1, 4, 12, 10)), b.input("v", (8, 4, 3, 3)))
    assert sketches(lowered(b, b.conv2d(y, b.input("w", (8, 8, 3, 3)))), HERE) == []


def test_images_of_a_block_fit_the_second_level_cache() -> None:
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 64, 64, 16)), b.input("w", (16, 64)))
    func = lowered(b, b.conv2d(y, b.input("v", (3, 3, 1, 64)), groups=64, padding=(1, 1, 1, 1), layout="NHWC"))
    target = HERE.with_attributes(l2_bytes=256 << 10)
    for sketch in generate(func, target, rules=[sketches]).sketches:
        assert max(int(row[0]) for row in sketch.space.sample(200, np.random.default_rng(0))) == (256 << 10) // (64 * 64 * 4) - 2


@pytest.mark.parametrize("options", [{"padding_value": -2.0}, {"h": 1}])
def test_chains_whose_candidates_could_not_be_compiled_have_no_sketches(options: dict[str, float]) -> None:
    """A value other than 0 is no reason to skip a product, so that the rows around a block are read; so is an image of one row."""
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, int(options.get("h", 8)), 8, 8)), b.input("w", (8, 16)))
    value = options.get("padding_value", 0.0)
    y = b.conv2d(y, b.input("v", (3, 3, 1, 16)), padding=(1, 1, 1, 1), groups=16, layout="NHWC", padding_value=value)
    assert sketches(lowered(b, y), HERE) == []
