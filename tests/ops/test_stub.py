"""The stub of tensor expressions is generated from its declarations; editors and shells see every name."""

from __future__ import annotations

from pathlib import Path

import tunesmith
from tunesmith import te
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ops.stub import stub_text

STUB = Path(tunesmith.__file__).with_name("te.pyi")


def test_the_stub_is_current() -> None:
    assert STUB.read_text() == stub_text(), "run python -m tunesmith.ops.stub > src/tunesmith/te.pyi"


def test_every_intrinsic_is_listed() -> None:
    assert set(INTRINSICS) | set(te.__all__) <= set(dir(te))
    assert all(f"\ndef {name}(" in stub_text() for name in INTRINSICS)
