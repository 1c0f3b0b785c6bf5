"""Call each benchmark once with small workloads; no time is asserted."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"matmul": "matmul(m=16,n=16,k=16)", "conv2d": "conv2d(n=1,h=4,w=4,ci=4,co=8,kh=3,kw=3,pad=1)"}


def load() -> ModuleType:
    settings = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location("benchmarks_of_tunesmith", ROOT / settings["benchmark_dir"] / "benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARKS = load()


def cases() -> list[Any]:
    return list(_cases())


def _cases() -> Iterator[Any]:
    for name, suite in inspect.getmembers(BENCHMARKS, inspect.isclass):
        for method in [m for m in dir(suite) if m.startswith(("time_", "track_"))] if suite.__module__ == BENCHMARKS.__name__ else []:
            for parameter in suite.params:
                small = SMALL.get(parameter.partition("(")[0], parameter)
                yield pytest.param(suite, method, small, id=f"{name}.{method}-{small.partition('(')[0]}")


@pytest.mark.parametrize(("suite", "method", "parameter"), cases())
def test_benchmark_runs(suite: type, method: str, parameter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BENCHMARKS, "ROWS", 16)
    monkeypatch.setattr(BENCHMARKS, "ROUNDS", 1)
    monkeypatch.setattr(BENCHMARKS, "SKETCHES", 1)
    made = suite()
    if hasattr(made, "setup"):
        made.setup(parameter)
    found = getattr(made, method)(parameter)
    assert found is None if method.startswith("time_") else found > 0
    assert method.startswith("time_") or made.unit


def test_all_wanted_quantities_are_benchmarked() -> None:
    names = {case.id.partition("-")[0] for case in cases()}
    assert names == {
        "Compile.track_build",
        "Compile.track_lower",
        "Draft.track_drafted",
        "Import.track_import",
        "Score.track_scored",
        "Sketches.time_generate",
    }
