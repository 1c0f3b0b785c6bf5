"""`path.py:name`: files are run as modules of their own; what is not there is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file


def test_names_and_files() -> None:
    assert names_a_file("mine.py:Mine") and names_a_file("/a/b.py:f")
    assert not names_a_file("xgb") and not names_a_file("model.json") and not names_a_file("matmul(m=1,n=1,k=1)")


def test_what_a_file_holds(tmp_path: Path) -> None:
    """Dataclasses too, which look up the module that they are in; two files of one name do not meet."""
    for i in (1, 2):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "mine.py").write_text(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass(slots=True)\nclass Mine:\n"
            f"    x: int = {i}\nnumber = {i}\n"
        )
    first: Any = load_from_file(f"{tmp_path / '1' / 'mine.py'}:Mine")
    second: Any = load_from_file(f"{tmp_path / '2' / 'mine.py'}:Mine")
    assert (first().x, second().x) == (1, 2) and first.__module__ != second.__module__
    assert load_from_file(f"{tmp_path / '2' / 'mine.py'}:number") == 2
    assert "mine" not in sys.modules


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nraise ValueError('no')\n")
    (tmp_path / "empty.py").write_text("")
    before = set(sys.modules)
    with pytest.raises(UserError, match="there is no file .*absent.py. Spell it path.py:name"):
        load_from_file(f"{tmp_path / 'absent.py'}:x")
    with pytest.raises(UserError, match="running .*bad.py failed with ValueError: no"):
        load_from_file(f"{tmp_path / 'bad.py'}:x")
    assert set(sys.modules) == before  # a module that failed is none
    with pytest.raises(UserError, match="empty.py holds no 'x'"):
        load_from_file(f"{tmp_path / 'empty.py'}:x")
