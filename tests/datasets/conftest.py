"""Fixtures for the tests of tables: synthetic records of several tasks on several targets."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from tunesmith.datasets.record_table import RecordTable
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine

Make = Callable[..., Record]

STEPS = [["get_block", {"name": "C"}, ["b0"]], ["sample_tile", {"loop": {"rv": "l0"}, "n": 2}, ["v0"], [4]]]


@pytest.fixture
def make_record(hand: ModuleType) -> Make:
    """A valid, verified record; keyword arguments replace its fields."""

    def make(**changes: object) -> Record:
        row = changes.get("row", (4,))
        assert isinstance(row, tuple)
        fields: dict[str, object] = {
            "workload": "w0",
            "target": Target("llvm -mcpu=znver5 -num-cores=2").to_json(),
            "trace": [STEPS[0], [*STEPS[1][:3], list(row)]],
            "sketch": "tile",
            "row": row,
            "samples": (3e-6, 1e-6, 2e-6),
            "clean": True,
            "error": None,
            "verified": True,
            "host": {"cpu": "test", "cores": 2},
            "versions": {"tunesmith": "0.1.0"},
            "seed": 7,
            "timestamp": 1000.5,
            "policy": {"kind": "race", "give_up": None, "repeats": 3},
            "extra": {"tag": "x"},
        }
        return Record(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def table(make_record: Make) -> RecordTable:
    """Two matmuls and a conv on two targets, ten candidates each, one of them measured twice and one failed."""
    lines = [WorkloadLine(f"w{k}", name, f"script {k}") for k, name in enumerate(("matmul(m=8)", "matmul(m=16)", "conv2d(n=1)"))]
    targets = [Target("llvm -mcpu=znver5 -num-cores=2"), Target("llvm -mcpu=znver4 -num-cores=4")]
    records = []
    for line in lines:
        for t in targets:
            common = {"workload": line.digest, "target": t.to_json()}
            records += [make_record(**common, row=(r,), samples=(r * 1e-6,)) for r in range(1, 11)]
            records.append(make_record(**common, row=(3,), samples=(5e-6,), timestamp=2000.0))
            records.append(make_record(**common, row=(11,), samples=(), error=ErrorInfo("crash", "died"), verified=False))
    return RecordTable.from_records(records, lines, targets)
