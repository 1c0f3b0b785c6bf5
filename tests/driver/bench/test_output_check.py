"""Outputs are checked with a tolerance that zeros never meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunesmith.driver.bench.entry import find_entries
from tunesmith.driver.bench.setting import Data, Setting
from tunesmith.driver.bench.worker import Ready, System
from tunesmith.measure.evaluator.guard_pages import round_to

SUMS = """
from tunesmith import script as T


@T.prim_func
def sums(A: T.Buffer((64, 1024), "bfloat16"), C: T.Buffer((64,), "bfloat16")):
    for i, k in T.grid(64, 1024):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.bfloat16(0.0)
            C[vi] += A[vi, vk]
"""


class Computed(System):
    """Returns outputs that `compute` makes from the data of the workload."""

    def __init__(self, compute: str) -> None:
        super().__init__()
        self._compute = compute

    def ready(self, setting: Setting, data: Data) -> Ready:
        return Ready("x", lambda: None, getattr(self, self._compute)(data), "bf16")

    def zeros(self, data: Data) -> list[np.ndarray]:
        return [np.zeros_like(x) for x in data.reference]

    def negated(self, data: Data) -> list[np.ndarray]:
        return [-x for x in data.reference]

    def half(self, data: Data) -> list[np.ndarray]:
        return [x / 2 for x in data.reference]

    def backwards(self, data: Data) -> list[np.ndarray]:
        """The sums in reverse order, each rounded to bfloat16."""
        total = np.zeros(64, np.float32)
        for column in data.inputs[0].T[::-1]:
            total = round_to("bfloat16", total + column)
        return [total]

    def exact(self, data: Data) -> list[np.ndarray]:
        return [data.inputs[0].sum(axis=1)]

    def near(self, data: Data) -> list[np.ndarray]:
        """Errors of 1.6 % of the largest element, as those of libraries on deep models."""
        return [x + np.float32(0.016) * np.abs(x).max() for x in data.reference]


@pytest.fixture
def sums(tmp_path: Path) -> Setting:
    (tmp_path / "mine.py").write_text(SUMS)
    (entry,) = find_entries(f"{tmp_path}/mine.py:sums")
    return entry.save(tmp_path, "w", 0)


def test_zeros_are_no_sums_in_bfloat16(sums: Setting) -> None:
    for wrong in ("zeros", "negated", "half"):
        assert "within 0.25" in Computed(wrong).prepare(sums).wrong
    hint = Computed("zeros").prepare(sums).wrong
    assert "may have 2.1 times the size of its outputs, and more than 0.25 is refused" in hint and "accumulate sums in float32" in hint
    for right in ("backwards", "exact"):
        prepared = Computed(right).prepare(sums)
        assert prepared.wrong == "" and prepared.error is not None and 0 < prepared.error


@pytest.mark.parametrize("layers", [32.0, 1000.0])
def test_deep_models_in_bfloat16_are_checked(tmp_path: Path, layers: float) -> None:
    (entry,) = find_entries("matmul(m=16,n=16,k=16)")
    setting = entry.save(tmp_path, "w", 0)
    deep = replace(setting, functions=tuple([(f, layers) for f, _ in setting.functions]))
    for wrong in ("zeros", "negated", "half"):
        assert "elements are wrong" in Computed(wrong).prepare(deep).wrong
    assert Computed("near").prepare(deep).wrong == ""
