"""Random programs with random schedules compute the same bits in C and in LLVM, without touching memory outside their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.artifact import Artifact
from tunesmith.support.errors import BuildError
from tunesmith.testing.program_fuzz import agreement
from tunesmith.testing.program_fuzz.agreement import Disagreement, compare_backends
from tunesmith.testing.program_fuzz.worker import Trial


@pytest.mark.parametrize("first", [0, 4])
def test_sample(first: int) -> None:
    compared = [compare_backends(seed, schedule, "c") for seed in range(first, first + 4) for schedule in range(3)]
    assert sum(count > 0 for count in compared) > 4


def test_disagreements_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(s for s in range(20) if compare_backends(s, 0, "c"))
    found = agreement._results
    calls: list[int] = []

    def changed(trial: Trial, artifact: Artifact) -> list[tuple[str, Any]]:
        calls.append(0)
        return [(name, np.full_like(a, len(calls))) for name, a in found(trial, artifact)]

    monkeypatch.setattr(agreement, "_results", changed)
    with pytest.raises(Disagreement, match="differs"):
        compare_backends(seed, 0, "c")


def test_programs_that_neither_backend_builds_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(func: object, target: object) -> Artifact:
        raise BuildError("no")

    monkeypatch.setattr(agreement, "build", refuse)
    assert compare_backends(0, 0, "c") == 0
