"""Digests of user code: classes with their bases and imports, functions, partial objects and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest

from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.support.code_digest import changed_files, code_digests
from tunesmith.support.load_from_file import load_from_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A sampler whose base class is in another file, which imports a third, and a rule."""
    lines = "from base_of_mine import Base\n\ndef rule(func, target): return []\n"
    lines += "class Mine(Base):\n    @classmethod\n    def load(cls, file): ..."
    (tmp_path / "mine.py").write_text(lines)
    (tmp_path / "base_of_mine.py").write_text("import numpy, json\nimport deep_of_mine\nfrom tunesmith.ir import expr\nclass Base: ...\n")
    (tmp_path / "deep_of_mine.py").write_text("X = 1\n")
    (tmp_path / "unused.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("base_of_mine", "deep_of_mine"):
        sys.modules.pop(name, None)


ALL = ["base_of_mine.py", "deep_of_mine.py", "mine.py"]


def test_the_files_of_a_class_and_of_what_they_import(folder: Path) -> None:
    found = code_digests([load_from_file("mine.py:Mine")])
    assert list(found) == ALL
    assert found["mine.py"] == blake2b((folder / "mine.py").read_bytes(), digest_size=16).hexdigest()
    (folder / "deep_of_mine.py").write_text("X = 2\n")
    after = code_digests([load_from_file("mine.py:Mine")])
    assert changed_files(found, after) == ["deep_of_mine.py"] and changed_files(after, after) == []
    assert changed_files({"mine.py": None}, after) == ["mine.py"] and changed_files({}, after) == [], "new files are not changed ones"


def test_paths_outside_of_the_folder_are_absolute(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    kind = load_from_file("mine.py:Mine")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert list(code_digests([kind], elsewhere)) == [(folder / name).as_posix() for name in ALL]
    assert list(code_digests([kind], folder.parent)) == [f"{folder.name}/{name}" for name in ALL]


def test_functions_instances_partial_objects_and_files(folder: Path) -> None:
    (folder / "saved.json").write_text(json.dumps({}))
    kind = load_from_file("mine.py:Mine")
    rule = load_from_file("mine.py:rule")
    assert list(code_digests([rule])) == ALL == list(code_digests([kind()])) == list(code_digests([partial(partial, rule)]))  # type: ignore[operator]
    assert list(code_digests([partial(kind.load, "saved.json")])) == [*ALL, "saved.json"]  # type: ignore[attr-defined]
    assert list(code_digests([Path("saved.json"), "missing.json"])) == ["saved.json"]
    derived = type("Derived", (kind,), {"__module__": "tunesmith.experiments.study.ablations"})  # type: ignore[arg-type]
    assert list(code_digests([derived])) == ALL, "its base is the user's"


def test_code_with_versions_and_without_files_is_left_out() -> None:
    import numpy as np

    namespace: dict[str, type] = {}
    exec("class Typed: ...", {"__name__": "__main__"}, namespace)
    assert code_digests([RandomSampler, np.random.Generator, np.mean, json.loads, len, partial(int), namespace["Typed"], None]) == {}
