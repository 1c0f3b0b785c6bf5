"""Hand-written sketches with imperfect tiles and odd sizes, for tests of features and cost models."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.search.space.param_space import ParamSpace
from tunesmith.support.seeds import stream

TILES = (1, 2, 3, 4, 6, 8, 16)


@dataclass(frozen=True)
class Case:
    """A sketch and its final parametric schedule."""

    name: str
    schedule: Schedule

    def rows(self, n: int, seed: int = 0) -> np.ndarray:
        """Admissible rows, a third of them biased to small values, because unit loops are the usual source of errors."""
        space = ParamSpace(self.schedule.params, self.schedule.constraints)
        rng = stream(seed, "rows", self.name)
        rows = space.sample(8 * n, rng)
        small = rows[np.argsort(rows.sum(axis=1), kind="stable")[: n // 3]]
        return np.concatenate([small, rows[: n - len(small)]])

    def program(self, row: np.ndarray) -> PrimFunc:
        """The concrete program of a configuration."""
        return concretize(self.schedule.func, dict(zip(self.schedule.params, row.tolist(), strict=True)))


def _gemm(s: Schedule, order: str, pack: bool) -> None:
    """Register tile of i3 x j3 around k, tiles, packed B, parallel outermost."""
    b = s.get_block("C")
    i, j, k = s.get_loops(b)
    fi = s.sample_tile(i, 4, "i", [TILES, TILES, (1, 2, 5, 6, 14)])
    fj = s.sample_tile(j, 4, "j", [TILES, TILES, (1, 16, 32, 48)])
    fk = s.sample_tile(k, 2, "k", [(1, 2, 4)])
    i0, i1, i2, i3 = s.split(i, [None, *fi])
    j0, j1, j2, j3 = s.split(j, [None, *fj])
    k0, k1 = s.split(k, [None, *fk])
    middle = [i2, j2] if order == "ij" else [j2, i2]
    s.reorder([i0, j0, i1, j1, *middle, k0, k1, i3, j3])
    after = s.get_consumers(b)
    write = after[0] if after else s.cache_write(b, "register")
    if after:
        s.set_scope(b, "register")
    s.reverse_compute_at(write, middle[1])
    if pack:
        p = s.cache_read(b, "B", "workspace", [[1, "/", fj[-1]], 0, [1, "%", fj[-1]]])
        s.compute_at(p, j1)
        s.vectorize(s.get_loops(p)[-1])
    s.vectorize(j3)
    s.unroll(i3)
    s.vectorize(s.get_loops(write)[-1])
    s.decompose_reduction(b, k0)
    s.parallel(s.fuse([i0, j0]))


def _conv(s: Schedule) -> None:
    """Padding copied at its use, so that footprints overlap."""
    b = s.get_output_blocks()[0]
    pad = next(p for p in s.get_producers(b))
    loops = s.get_loops(b)
    n, h, w, o = loops[:4]
    h0, h1 = s.split(h, [None, *s.sample_tile(h, 2, "h", [TILES])])
    w0, w1 = s.split(w, [None, *s.sample_tile(w, 2, "w", [TILES])])
    o0, o1 = s.split(o, [None, *s.sample_tile(o, 2, "o", [(1, 4, 16)])])
    s.reorder([n, h0, w0, o0, *loops[4:], h1, w1, o1])
    s.compute_at(pad, w0)
    s.unroll(w1)
    s.decompose_reduction(b, loops[4])
    s.vectorize(o1)
    s.parallel(s.fuse([n, h0]))


def _pointwise(s: Schedule) -> None:
    loops = s.get_loops(s.get_output_blocks()[0])
    both = s.fuse(loops)
    f0, f1, f2 = s.split(both, [None, *s.sample_tile(both, 3, "f", [(1, 2, 7, 64), (1, 8, 16, 24)])])
    s.vectorize(f2)
    s.annotate(f1, "prefetch", 16)
    s.parallel(f0)


def _rows(s: Schedule) -> None:
    """Several stages under one parallel loop over rows."""
    last = s.get_output_blocks()[0]
    i, _ = s.get_loops(last)
    i0, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [(1, 2, 3, 8)])])
    for block in reversed([x for x in s.blocks() if x.name != last.block]):
        s.compute_at(s.get_block(block.name), i0)
    _, j = s.get_loops(last)[-2:]
    _, j1 = s.split(j, [None, *s.sample_tile(j, 2, "j", [(1, 4, 16)])])
    s.vectorize(j1)
    s.parallel(i0)


_MAKERS: dict[str, tuple[str, Callable[[Schedule], None]]] = {
    "gemm ij packed": ("matmul(m=100,n=70,k=30)", lambda s: _gemm(s, "ij", True)),
    "gemm ji plain": ("matmul(m=64,n=96,k=32)", lambda s: _gemm(s, "ji", False)),
    "gemm one row": ("matmul(m=1,n=70,k=17)", lambda s: _gemm(s, "ij", True)),
    "gemm unscheduled": ("matmul(m=12,n=7,k=5)", lambda s: None),
    "conv": ("conv2d(n=2,h=9,w=11,ci=3,co=10,kh=3,kw=3,pad=1)", _conv),
    "conv stride": ("conv2d(n=1,h=9,w=11,ci=3,co=10,kh=3,kw=2,pad=1,stride=2)", _conv),
    "gelu": ("gelu(shape=7x90)", _pointwise),
    "softmax": ("softmax(m=20,n=37)", _rows),
}


def _make(name: str) -> Case:
    text, schedule = _MAKERS[name]
    s = Schedule(workload(text).func, parametric=True)
    schedule(s)
    return Case(name, s)


@pytest.fixture(scope="session", params=sorted(_MAKERS))
def case(request: pytest.FixtureRequest) -> Case:
    """Each sketch in turn."""
    return _make(request.param)


@pytest.fixture(scope="session")
def make_case() -> Callable[[str], Case]:
    """A function that makes the sketch with a given name."""
    return _make


@cache
def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tunesmith_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # required by dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The module feature_reference.py."""
    return _module("feature_reference")


@pytest.fixture(scope="session")
def gpu() -> ModuleType:
    """The module gpu_reference.py."""
    return _module("gpu_reference")
