"""Baselines are listed with their versions and descriptions, without an import of their libraries."""

from __future__ import annotations

import pytest

from tunesmith.measure.baselines.registry import BASELINES, described_baselines
from tunesmith.support.errors import UserError


def test_baselines_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.measure.baselines.registry.package_version", lambda p: "2.4.1" if p == "numpy" else "not installed")
    get = BASELINES.get

    def broken(name: str) -> object:
        if name == "jax":
            raise UserError("cannot import it")
        return get(name)

    monkeypatch.setattr(BASELINES, "get", broken)
    found = {name: (state, what) for name, state, what in described_baselines()}
    assert sorted(found) == sorted(BASELINES.names())
    assert found["openblas"] == ("numpy 2.4.1", "numpy with OpenBLAS")
    assert found["tvm"] == ("apache-tvm not installed", "TVM with one plain schedule: register tile, vectors, parallel rows")
    assert found["jax"] == ("unusable", "cannot import it")
    assert all(what for _, what in found.values())
