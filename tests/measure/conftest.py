"""What the tests of records, logs and databases share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.measure.record import Record


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
