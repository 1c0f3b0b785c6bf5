"""Import the records of a MetaSchedule database, and compile with the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.datasets.replay_metaschedule import replay_database
from tunesmith.driver.logs.import_traces import import_metaschedule
from tunesmith.support.errors import RecordError

DATABASE = Path(__file__).parents[2] / "golden" / "tvm" / "records" / "row_sum"
TARGET = "llvm -num-cores=1"


def small(folder: Path, lines: int = 2) -> Path:
    """A copy of the database with its first records."""
    made = folder / "database"
    shutil.copytree(DATABASE, made)
    file = made / "database_tuning_record.json"
    file.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]), encoding="utf-8")
    return made


def test_imported_records_are_used_by_compile(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = import_metaschedule(small(tmp_path), log, TARGET)
    assert report.ok and len(report.rows) == 2 and all(0 < r.seconds < 1 and 0 < r.theirs < 1 and not r.note for r in report.rows)
    func = next(replay_database(DATABASE)).func
    lib = tunesmith.compile(func, TARGET, records=log)
    assert [c.status for c in lib.coverage] == ["used"]
    x = np.random.default_rng(0).standard_normal((4, 4096)).astype(np.float32)
    out = np.zeros(4, np.float32)
    lib[func.name](x, out)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-3, atol=1e-3)


def test_records_without_counterpart_are_rows_with_the_instruction(tmp_path: Path) -> None:
    folder = small(tmp_path, 1)
    file = folder / "database_tuning_record.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"RFactor"', '"Blockize"'), encoding="utf-8")
    result = CliRunner().invoke(main, ["log", "import", str(folder), "-o", str(tmp_path / "log.jsonl"), "--target", TARGET, "--json", "-"])
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)
    assert row["us"] is None and "instruction 6, Blockize: tunesmith has no counterpart" in row["note"]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="a database has the files"):
        import_metaschedule(tmp_path, tmp_path / "log.jsonl", TARGET)
    folder = small(tmp_path, 0)
    with pytest.raises(RecordError, match="the database has no record"):
        import_metaschedule(folder, tmp_path / "log.jsonl", TARGET)
