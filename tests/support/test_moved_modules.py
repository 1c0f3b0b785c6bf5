"""The hint about modules that moved: its table is that of the changelog, and its modules exist."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunesmith.support.moved_modules import _MOVED, moved_to

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def test_every_module_of_the_changelog_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(tunesmith\..*)` \| `(tunesmith\.\S+)` \|$", CHANGELOG.read_text(), re.MULTILINE)
    moved = {part.removeprefix("tunesmith."): new.removeprefix("tunesmith.") for old, new in rows for part in old.split("`, `")}
    moved = {re.sub(r"\.[A-Z]\w*$", "", old): re.sub(r"\.[A-Z]\w*$", "", new) for old, new in moved.items()}
    folder = {"replay": "driver.replay", "doctor": "driver.doctor", "measure.peers": "measure.baselines"}
    assert moved | folder == _MOVED


@pytest.mark.parametrize("module", sorted(set(_MOVED.values())))
def test_the_modules_of_the_table_exist(module: str) -> None:
    assert find_spec(f"tunesmith.{module}") is not None


def test_the_hint_is_for_failed_imports_of_moved_modules_only() -> None:
    with pytest.raises(ImportError) as refusal:
        importlib.import_module("tunesmith.measure.peers.peer")
    assert moved_to(refusal.value).startswith(". tunesmith.measure.peers is tunesmith.measure.baselines since version 0.2")
    assert moved_to(ImportError("no module", name="numpyy")) == moved_to(ImportError()) == moved_to(ValueError()) == ""
