"""Plots of a table: formats, reproducible files and refusals."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tunesmith.datasets.record_table import RecordTable
from tunesmith.experiments.pools import plots as plot_dataset
from tunesmith.experiments.pools.plots import plot
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.errors import MissingExtraError, UserError


@pytest.fixture
def table(hand: ModuleType, tmp_path: Path) -> RecordTable:
    records = [hand.record_of(hand.matmul(), seconds=k * 1e-6, timestamp=float(k), clean=k % 2 == 0) for k in range(1, 9)]
    failed = hand.record_of(hand.matmul(), samples=(), error=ErrorInfo("crash", ""), verified=False, timestamp=99.0)
    spread = hand.record_of(hand.matmul(), samples=(1e-6, 2e-6, 3e-6), timestamp=77.0)
    return RecordTable.from_log(hand.write_log(tmp_path / "log.jsonl", *records, failed, spread))


def test_plots(table: RecordTable, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = plot(table, tmp_path / "a")
    assert [f.name for f in files] == ["slowdown.svg", "outcomes.svg", "noise.svg"]
    texts = [f.read_text() for f in files]
    assert all(t.startswith("<?xml") for t in texts) and "Outcomes" in texts[1].replace("&#x20;", " ")
    assert [f.read_text() for f in plot(table, tmp_path / "b")] == texts
    (first, *_) = plot(table, tmp_path / "c", "png")
    assert first.read_bytes()[:4] == b"\x89PNG"


def test_names_contain_no_control_characters(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()), name="a\x1b[31m\x00b")
    table = RecordTable.from_log(log)
    assert [name for name, _ in plot_dataset._tasks(table)] == ["a?[31m?b"]
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for file in plot(table, tmp_path / "a"):
            ElementTree.parse(file)


def test_refusals(table: RecordTable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="svg or png, not 'pdf'"):
        plot(table, tmp_path, "pdf")
    with pytest.raises(UserError, match="the table is empty"):
        plot(table.take([]), tmp_path)
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write plots"):
        plot(table, tmp_path / "file")


def test_without_matplotlib_the_install_line_is_reported(table: RecordTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'tunesmith\[plot\]'"):
        plot(table, tmp_path)
