"""Write run folders of studies by hand, for the tests of their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tunesmith.experiments.study.config import ExperimentConfig
from tunesmith.experiments.study.results import Arm, Cell, CellResult, RunIndex, SpaceSize, cell_folder, write_json

Times = Mapping[tuple[str, str], Sequence[float | None]]
"""(workload, sampler) to the final seconds of each seed; None for a failed search."""


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run(name, {(workload, sampler): [seconds of seed 0, of seed 1, ...]})` writes a run folder.

    A search of 8 trials reaches its time after 4 of them; its best before that is twice as long.
    """

    def write(name: str, times: Times, *, question: str = "Which is faster?", failure: str = "", flops: int = 2_000_000) -> Path:
        folder = tmp_path / name
        results = []
        for (workload, sampler), seconds in times.items():
            for seed, best in enumerate(seconds):
                cell = Cell(workload, Arm(sampler, "", "default"), seed)
                if best is None:
                    results.append(CellResult(cell, "failed", failure=failure or "the device is gone"))
                else:
                    curve = (None, *[2 * best] * 2, *[best] * 5)
                    spent = {"total": 2.0, "draft": 0.5, "verify": 0.25, "build": 0.5, "measure": 0.5, "train": 0.25}
                    errors = {"crash": 1}
                    found = (8, 8, errors, best, flops, "tile", 1000, 10, spent, curve)
                    results.append(CellResult(cell, "done", "0" * 32, *found))
        settings = ExperimentConfig(name, ("x",)).settings()
        workloads = dict.fromkeys(w for w, _ in times)
        spaces = tuple([SpaceSize(w, True, 2, 1000, 900) for w in workloads])
        switches = {"racing": True, "draft_model": True, "imperfect_tiles": True}
        index = RunIndex(name, question, settings, {"default": switches}, tuple(results), spaces)
        write_json(folder / "index.json", index.to_json())
        for r in results:
            write_json(cell_folder(folder, r.cell) / "result.json", r.to_json())
        return folder

    return write
