"""Source closure of a file: import statements anywhere in it; installed packages are identified by version."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tunesmith.support import source_closure as module
from tunesmith.support.source_closure import ImportedName, imports, source_closure


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
    deep = tree / "pack" / "deep" / "__init__.py"
    assert imports(deep) == [ImportedName("other", tree / "pack"), ImportedName("other.x", tree / "pack")]


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


def _names(folder: Path) -> list[str]:
    return [name.removeprefix("0:") for name in source_closure([folder / "mine.py"]).names]


def test_relative_imports_of_a_package_without_init(tmp_path: Path) -> None:
    (tmp_path / "part" / "deep").mkdir(parents=True)
    (tmp_path / "mine.py").write_text("from part.draw import pick\n")
    (tmp_path / "part" / "draw.py").write_text("from .constants import N\nfrom . import random\nfrom .deep import low\n")
    (tmp_path / "part" / "deep" / "low.py").write_text("from ..up import N\nfrom ........ import nothing\n")
    for name in ("constants", "random", "up", "unused"):  # `random` is not that of Python
        (tmp_path / "part" / f"{name}.py").write_text("N = 1\n")
    expected = ["mine.py", *[f"part/{name}.py" for name in ("constants", "deep/low", "draw", "random", "up")]]
    assert _names(tmp_path) == expected
    before = source_closure([tmp_path / "mine.py"]).digest()
    (tmp_path / "part" / "constants.py").write_text("N = 2\n")
    assert source_closure([tmp_path / "mine.py"]).digest() != before


def test_relative_imports_of_an_installed_package_are_of_that_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    (site / "plugin").mkdir(parents=True)
    (site / "plugin" / "mine.py").write_text("from .other import x\n")
    (site / "plugin" / "other.py").write_text("x = 1\n")
    monkeypatch.setattr(module, "_site_folders", lambda: (site.resolve(),))
    found = source_closure([site / "plugin" / "mine.py"])
    assert found.packages == ("plugin",) and found.names == ("0:mine.py",)


def test_a_compiled_module_counts(tmp_path: Path) -> None:
    compiled = tmp_path / f"fast_of_mine{EXTENSION_SUFFIXES[0]}"
    compiled.write_bytes(b"one")
    (tmp_path / "mine.py").write_text("import fast_of_mine\n")
    before = source_closure([tmp_path / "mine.py"]).digest()
    assert source_closure([tmp_path / "mine.py"]).files == (compiled.resolve(), (tmp_path / "mine.py").resolve())
    compiled.write_bytes(b"two")
    assert source_closure([tmp_path / "mine.py"]).digest() != before


def test_files_of_one_name_in_two_folders(tmp_path: Path) -> None:
    """Also the files whose closure it is: a sampler and a model may both be in a `mine.py`."""
    (tmp_path / "mine.py").write_text("import a.h, b.h\n")
    for i, folder in enumerate("ab"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "h.py").write_text(f"N = {i}\n")
    a, b = (tmp_path / folder / "h.py" for folder in "ab")
    before, both = source_closure([tmp_path / "mine.py"]).digest(), source_closure([a, b]).digest()
    assert both != source_closure([b, a]).digest()
    for i, path in enumerate((b, a)):
        path.write_text(f"N = {i}\n")
    assert source_closure([tmp_path / "mine.py"]).digest() != before and source_closure([a, b]).digest() != both
