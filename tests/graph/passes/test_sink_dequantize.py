"""Test that selections of dequantised elements select bytes, and which are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Operand
from tunesmith.graph.passes.sink_dequantize import sink_dequantize
from tunesmith.ir.function import IRModule
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
Made = Callable[[GraphBuilder, Operand], Operand]

BLOCK = """
@G.function
def main(q: G.Tensor((1, 4, 6, 6), "uint8")):
    s = G.constant(0.125, (), "float32")
    z = G.constant(3, (), "uint8")
    d = G.dequantize(q, s, z)
    p = G.max_pool2d(d, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    r = G.reshape(p, shape=(1, 36))
    a = G.quantize(r, s, z)
    return a
"""


def test_a_pooling_between_two_scales(passed: Passed, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(passed(sink_dequantize, BLOCK)["main"]))


def pair(b: GraphBuilder, unit: Any = 0.3, zero: Any = 128) -> tuple[Operand, Operand]:
    return b.constant(np.asarray(unit, np.float32)), b.constant(np.asarray(zero, np.uint8))


def module(made: Made) -> IRModule:
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(made(b, b.input("q", (1, 2, 5, 5), "uint8")))})


def pooled(**changes: Any) -> Made:
    window = {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), **changes}
    return lambda b, q: b.max_pool2d(b.dequantize(q, *pair(b)), **window)


SUNK: dict[str, Made] = {
    "the maximum of windows": pooled(),
    "padding on one side": pooled(padding=(2, 0, 0, 2)),
    "a permutation": lambda b, q: b.permute_dims(b.dequantize(q, *pair(b)), axes=(0, 2, 3, 1)),
    "two selections": lambda b, q: b.flip(b.reshape(b.dequantize(q, *pair(b)), shape=(2, 25)), axes=(1,)),
    "a slice": lambda b, q: b.strided_slice(b.dequantize(q, *pair(b)), axes=(2,), begin=(1,), end=(4,), strides=(2,)),
    "fewer dimensions than the scale": lambda b, q: b.reshape(b.dequantize(q, *pair(b, [[[0.3]]], [[7]])), shape=(50,)),
    "both scales are equal": lambda b, q: b.quantize(b.dequantize(q, *pair(b)), *pair(b)),
    "a pooling between equal scales": lambda b, q: b.quantize(pooled()(b, q), *pair(b)),
    "a negative scale": lambda b, q: b.reshape(b.dequantize(q, *pair(b, -0.3)), shape=(50,)),
}


@pytest.mark.parametrize("name", SUNK)
def test_sunk(name: str) -> None:
    mod = module(SUNK[name])
    done = sink_dequantize(mod)
    assert done is not mod and sink_dequantize(done)["main"] is done["main"], "the pass is idempotent"
    lines = str(done["main"]).splitlines()
    calls = [line.split("G.")[1].split("(")[0] for line in lines if "= G." in line and "constant" not in line]
    assert "dequantize" not in calls[:-1] and "quantize" not in calls
    q = stream(0, "sink").integers(0, 256, (1, 2, 5, 5)).astype(np.uint8)
    for arguments in ([q], [np.zeros_like(q)]):
        (want,), (made,) = (run(m["main"], arguments, m) for m in (mod, done))
        assert made.dtype == want.dtype and np.array_equal(made, want)


def test_every_byte_is_unchanged_by_a_scale_and_its_inverse() -> None:
    """For 16 bits too: the error of the quotient is less than half a step."""
    for scale in stream(1, "scales").uniform(1e-6, 1e6, 50):
        s, z = np.float32(scale), np.float32(30000)
        q = np.arange(1 << 16, dtype=np.float32)
        assert np.array_equal(np.rint((q - z) * s / s) + z, q)


KEPT: dict[str, Made] = {
    "a negative scale changes the order": lambda b, q: b.max_pool2d(b.dequantize(q, *pair(b, -0.3)), kernel=(2, 2), strides=(2, 2)),
    "a window of padding alone": pooled(padding=(3, 1, 1, 1)),
    "a window beyond the image": pooled(ceil_mode=True),
    "windows with gaps": pooled(dilation=(2, 2)),
    "scales of channels": lambda b, q: b.reshape(b.dequantize(q, *pair(b, [[[0.1]], [[0.2]]])), shape=(50,)),
    "a scale that adds a dimension": lambda b, q: b.reshape(b.dequantize(q, *pair(b, [[[[[0.1]]]]])), shape=(50,)),
    "a scale that is no constant": lambda b, q: b.reshape(b.dequantize(q, b.input("s", ()), pair(b)[1]), shape=(50,)),
    "another scale": lambda b, q: b.quantize(b.dequantize(q, *pair(b)), *pair(b, 0.2)),
    "another zero point": lambda b, q: b.quantize(b.dequantize(q, *pair(b)), *pair(b, 0.3, 127)),
    "a scale whose products are denormal": lambda b, q: b.quantize(b.dequantize(q, *pair(b, 1e-42)), *pair(b, 1e-42)),
    "a second scale that adds a dimension": lambda b, q: b.quantize(b.dequantize(q, *pair(b)), *pair(b, [[[[[0.3]]]]], 128)),
    "sums": lambda b, q: b.avg_pool2d(b.dequantize(q, *pair(b)), kernel=(2, 2), strides=(2, 2)),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str, unchanged: Passed) -> None:
    unchanged(sink_dequantize, module(KEPT[name])["main"])
