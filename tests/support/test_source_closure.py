"""Source closure of a file: import statements anywhere in it; installed packages are identified by version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunesmith.support import source_closure as module
from tunesmith.support.source_closure import imported_names, source_closure


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pack" / "deep").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "deep" / "__init__.py").write_text("from ..other import x\n")
    (tmp_path / "pack" / "other.py").write_text("x = 1\n")
    (tmp_path / "pack" / "unused.py").write_text("x = 1\n")
    (tmp_path / "helper.py").write_text("def f():\n    import pack.deep\n")
    lines = ["import os.path, numpy as np", "from helper import f", "from tunesmith.ir import expr", "import not_there"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    return tmp_path


def test_files_reached_by_imports(tree: Path) -> None:
    found = source_closure([tree / "mine.py"])
    assert [p.relative_to(tree.resolve()).as_posix() for p in found.files] == [
        "helper.py",
        "mine.py",
        "pack/__init__.py",
        "pack/deep/__init__.py",
        "pack/other.py",
    ]
    assert found.packages == ("numpy", "tunesmith")
    assert "pack.other.x" in imported_names(tree / "pack" / "deep" / "__init__.py")


def test_the_digest_covers_files_packages_and_tunesmith(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source_closure([tree / "mine.py"]).digest()
    (tree / "pack" / "unused.py").write_text("x = 2\n")
    assert source_closure([tree / "mine.py"]).digest() == before
    (tree / "pack" / "other.py").write_text("x = 2\n")
    edited = source_closure([tree / "mine.py"]).digest()
    assert edited != before
    moved = tmp_path_factory.mktemp("elsewhere") / "there"
    tree.rename(moved)
    assert source_closure([moved / "mine.py"]).digest() == edited
    monkeypatch.setattr(module, "_version", lambda package: "another")
    upgraded = source_closure([moved / "mine.py"]).digest()
    monkeypatch.setattr(module, "_own_digest", lambda: b"another")
    assert len({edited, upgraded, source_closure([moved / "mine.py"]).digest()}) == 3


def test_files_that_are_not_python_have_no_imports(tmp_path: Path) -> None:
    for name, text in (("a.py", "import ("), ("b.json", "import helper"), ("c.py", "\0")):
        (tmp_path / name).write_text(text)
        assert source_closure([tmp_path / name]).files == ((tmp_path / name).resolve(),)


def test_two_files_that_import_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import a\n")
    assert len(source_closure([tmp_path / "a.py"]).files) == 2
