"""Fixtures for the tests of records, logs, builders and runners."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import Block, Iter, nest, store
from tunesmith.measure.candidate import MeasureTask, NamedTrace
from tunesmith.measure.records.record import Record
from tunesmith.schedule.schedule import Schedule


def add_function(size: int) -> PrimFunc:
    """C = A + B."""
    a, b, c = Buffer("A", (size,)), Buffer("B", (size,)), Buffer("C", (size,))
    i, vi = Var("i"), Var("vi")
    block = Block("C", (Iter(vi, poly(size), "S"),), (poly(i),), (), None, store(c, (vi,), a[vi] + b[vi]))
    return PrimFunc("add", (a, b, c), (), nest([(i, size)], block))


def tiled(func: PrimFunc) -> NamedTrace:
    """Sketch of `add_function` with a split loop and a vectorised inner loop; its rows have one number."""
    s = Schedule(func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    _, inner = s.split(i, [None, *s.sample_tile(i, 2, "i", domains=[(4, 8, 16, 20)])])
    s.vectorize(inner)
    return NamedTrace("tiled", s.trace)


def parallel(func: PrimFunc) -> NamedTrace:
    """Sketch of `add_function` with a split loop and a parallel outer loop."""
    s = Schedule(func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", domains=[(4, 8, 16, 20)])])
    s.parallel(outer)
    return NamedTrace("parallel", s.trace)


@pytest.fixture(scope="session")
def add_task() -> MeasureTask:
    """C = A + B on 60 floats, with 16 bytes between the end of an array and its guard page; two sketches."""
    func = add_function(60)
    return MeasureTask(func, [tiled(func), parallel(func)], reference=lambda inputs: [inputs[0] + inputs[1]], name="add(60)")


@pytest.fixture(scope="session")
def long_add_task() -> MeasureTask:
    """C = A + B on 60,000 floats, so that a correct kernel takes a thousand times as long as an empty one."""
    func = add_function(60_000)
    return MeasureTask(func, [tiled(func), parallel(func)], reference=lambda inputs: [inputs[0] + inputs[1]], name="add(60000)")


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """A valid, verified record; keyword arguments replace its fields."""

    def make(**changes: object) -> Record:
        fields: dict[str, object] = {
            "workload": "w0",
            "target": {"kind": "llvm", "mcpu": "znver5", "num-cores": 2},
            "trace": [{"kind": "split", "inputs": ["l0"], "attrs": {"factors": [None, 8]}, "decision": [4, 8]}],
            "sketch": "tile-3",
            "row": (4, 8),
            "samples": (3e-6, 1e-6, 2e-6),
            "clean": True,
            "error": None,
            "verified": True,
            "host": {"cpu": "test", "cores": 2},
            "versions": {"tunesmith": "0.1.0"},
            "seed": 7,
            "timestamp": 1000.5,
            "policy": {"repeats": 3},
            "extra": {"tag": "x"},
        }
        return Record(**{**fields, **changes})  # type: ignore[arg-type]

    return make
