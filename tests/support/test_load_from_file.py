"""`path.py:name`: files run as separate modules; missing files and names are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file
from tunesmith.support.source_closure import source_closure


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes the modules that a test loads."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_names_and_files() -> None:
    assert names_a_file("mine.py:Mine") and names_a_file("/a/b.py:f")
    assert not names_a_file("xgb") and not names_a_file("model.json") and not names_a_file("matmul(m=1,n=1,k=1)")


def test_names_in_a_file(tmp_path: Path) -> None:
    """Including dataclasses, which look up their module; two files of one name do not conflict."""
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
    assert set(sys.modules) == before  # a failed module is removed
    with pytest.raises(UserError, match="empty.py holds no 'x'"):
        load_from_file(f"{tmp_path / 'empty.py'}:x")


def test_a_file_imports_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_me.py").write_text("VALUE = 1\ndef late():\n    import beside_late\n    return beside_late.VALUE\n")
    (tmp_path / "beside_late.py").write_text("VALUE = 3\n")
    (tmp_path / "mine.py").write_text("import beside_me\nvalue, late = beside_me.VALUE, beside_me.late\n")
    path, modules = list(sys.path), set(sys.modules)
    try:
        assert load_from_file(f"{tmp_path / 'mine.py'}:value") == 1
        late: Any = load_from_file(f"{tmp_path / 'mine.py'}:late")
        assert late() == 3 and sys.path[: len(path)] == path
        # An edit is detected, even within one second and of the same length.
        (tmp_path / "beside_me.py").write_text((tmp_path / "beside_me.py").read_text().replace("VALUE = 1", "VALUE = 2"))
        assert load_from_file(f"{tmp_path / 'mine.py'}:value") == 2
        other = tmp_path / "other"
        other.mkdir()
        (other / "beside_me.py").write_text("VALUE = 9\n")
        (other / "mine.py").write_text("from beside_me import VALUE\n")
        with pytest.raises(UserError, match=r"which is .*other/beside_me\.py; but a module of that name is loaded already"):
            load_from_file(f"{other / 'mine.py'}:VALUE")
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            del sys.modules[name]


@pytest.mark.usefixtures("modules")
def test_modules_of_a_folder_that_the_file_puts_on_the_path(tmp_path: Path) -> None:
    """They are known once they are loaded: they count in the digest, and are executed again after an edit."""
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "inner_of_lib.py").write_text("VALUE = 1\n")
    (lib / "in_lib.py").write_text("from inner_of_lib import VALUE\n")
    file = tmp_path / "mine.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(lib)!r})\nfrom in_lib import VALUE\n")
    assert load_from_file(f"{file}:VALUE") == 1
    before = source_closure([file]).digest()
    assert source_closure([file]).names == ("0:lib/in_lib.py", "0:lib/inner_of_lib.py", "0:mine.py")
    (lib / "inner_of_lib.py").write_text("VALUE = 2\n")
    assert source_closure([file]).digest() != before
    assert load_from_file(f"{file}:VALUE") == 2


@pytest.mark.usefixtures("modules")
def test_two_files_with_modules_of_one_name_in_folders_of_their_own(tmp_path: Path) -> None:
    """The second would run with the module of the first."""
    for i in "12":
        (tmp_path / i / "lib").mkdir(parents=True)
        (tmp_path / i / "lib" / "in_both_libs.py").write_text(f"VALUE = {i}\n")
        text = "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\nfrom in_both_libs import VALUE\n"
        (tmp_path / i / "mine.py").write_text(text)
    for _ in range(2):
        assert load_from_file(f"{tmp_path}/1/mine.py:VALUE") == 1
        with pytest.raises(
            UserError, match=r"imports in_both_libs, which is .*/2/lib/.*; but .* loaded already, from .*/1/lib/in_both_libs\.py"
        ):
            load_from_file(f"{tmp_path}/2/mine.py:VALUE")


@pytest.mark.usefixtures("modules")
def test_a_module_that_was_edited_after_it_failed(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / "in_other_lib.py").write_text("VALUE = 0\n")
    file = tmp_path / "mine.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(lib)!r})\nfrom in_other_lib import VALUE\nHALF = 1 / VALUE\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        load_from_file(f"{file}:HALF")
    (lib / "in_other_lib.py").write_text("VALUE = 2\n")
    assert load_from_file(f"{file}:HALF") == 0.5


@pytest.mark.usefixtures("modules")
def test_a_changed_compiled_module_is_refused(tmp_path: Path) -> None:
    """Python cannot load it again, so the old code would run as if it were the new one."""
    compiled = tmp_path / f"fast_beside_mine{EXTENSION_SUFFIXES[0]}"
    compiled.write_bytes(b"one")
    sys.modules["fast_beside_mine"] = module = ModuleType("fast_beside_mine")
    module.__file__ = str(compiled)
    (tmp_path / "mine.py").write_text("import fast_beside_mine\nVALUE = 1\n")
    assert load_from_file(f"{tmp_path / 'mine.py'}:VALUE") == 1
    compiled.write_bytes(b"two")
    for _ in range(2):
        with pytest.raises(UserError, match=r"fast_beside_mine.*\.so, which has changed since it was loaded.*: start a new process"):
            load_from_file(f"{tmp_path / 'mine.py'}:VALUE")
