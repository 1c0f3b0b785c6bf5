"""Check the statements of SECURITY.md: files that are data execute nothing, and each code path and test that it names exists."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

import tunesmith
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.models.registry import find_model, load_model
from tunesmith.driver.logs.log_tools import verify
from tunesmith.driver.show import show_log
from tunesmith.ir.script.printer import script
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import WorkloadLine
from tunesmith.support.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python file in the current folder that leaves a file RAN if it is executed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'RAN')!r}).touch()\ndef f(): pass\nclass Model: pass\n"
    )
    return tmp_path


def test_names_in_a_log_are_never_run_as_files(trap: Path, hand: ModuleType) -> None:
    record = hand.record_of(hand.matmul())
    log = trap / "log.jsonl"
    RecordLog(log).append(WorkloadLine(record.workload, "trap.py:f", script(hand.matmul())), record)
    assert tunesmith.replay(log, verify=True).rows[0].workload == "trap.py:f"
    assert "trap.py:f" in str(show_log(log))
    assert not verify(log).faults
    assert tunesmith.compile(hand.matmul(), record_target(record.target), records=log).coverage[0].status == "used"
    assert not (trap / "RAN").exists()


def record_target(data: object) -> tunesmith.Target:
    assert isinstance(data, dict)
    return tunesmith.Target.from_json(data)


@pytest.mark.parametrize("name", ["trap.py:Model", "trap:Model", "os:system", "trap.py:Model@trap.json"])
def test_a_saved_model_names_no_code(name: str, trap: Path) -> None:
    file = trap / "model.json"
    file.write_text(json.dumps({"model": name, "schema": SCHEMA_VERSION}))
    for read in (find_model, load_model):
        with pytest.raises(UserError, match="unknown cost model"):
            read(str(file))
    assert not (trap / "RAN").exists()


def test_the_trap_works(trap: Path) -> None:
    with pytest.raises(UserError):
        find_model("trap.py:Model")
    assert (trap / "RAN").exists()


def test_named_files_and_tests_exist() -> None:
    names = re.findall(r"`((?:\w+/)+\w+\.py)?(::\w+)?`", TEXT)
    assert len([file for file, _ in names if file]) > 20
    last = ""
    for file, test in names:
        last = file or last
        if file:
            assert (ROOT / file).is_file(), file
        if test:
            tree = ast.parse((ROOT / last).read_text(encoding="utf-8"))
            assert test[2:] in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, f"{last}{test}"
