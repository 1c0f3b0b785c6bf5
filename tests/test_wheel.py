"""The wheel holds what the tree holds, all of it under `tunesmith/`, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]
NOT_PACKAGED = {"tests", "docs", "build"}


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    targets: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    return targets


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_tables_of_folders_agree(settings: dict[str, Any]) -> None:
    """A folder that is missing from one of the three is missing from the wheel, from the sdist, or stands at the wrong place."""
    sources: dict[str, str] = settings["wheel"]["sources"]
    assert sources == {folder: "tunesmith" if folder == "src/tunesmith" else f"tunesmith/{folder}" for folder in sources}
    assert list(sources) == settings["wheel"]["only-include"]
    top_folders = {"/" + folder.split("/")[0] for folder in sources}
    assert top_folders <= set(settings["sdist"]["include"])


def test_every_folder_with_code_is_packaged(settings: dict[str, Any]) -> None:
    packaged = {folder.split("/")[0] for folder in settings["wheel"]["only-include"]}
    with_code = {path.relative_to(ROOT).parts[0] for pattern in ("*/*.py", "*/*/*.py") for path in ROOT.glob(pattern)}
    with_code = {name for name in with_code if not name.startswith(".")}
    assert with_code - NOT_PACKAGED <= packaged


def test_the_wheel_holds_every_python_file_of_the_tree_and_no_other(wheel: Path, settings: dict[str, Any]) -> None:
    expected = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in settings["wheel"]["sources"].items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in _names(wheel) if name.endswith(".py")} == expected
    assert "tunesmith/py.typed" in _names(wheel)


def test_nothing_but_tunesmith_reaches_site_packages(wheel: Path) -> None:
    """A top-level `datasets` would shadow another library for everyone who installs this."""
    tops = {name.split("/")[0] for name in _names(wheel)}
    version = wheel.name.split("-")[1]
    assert tops == {"tunesmith", f"tunesmith-{version}.dist-info"}
    assert not [name for name in _names(wheel) if "__pycache__" in name or "/tests/" in name]


def test_the_command_and_the_license_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        assert "tunesmith = tunesmith.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()


def test_the_unpacked_wheel_imports_from_its_own_place(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "import tunesmith, tunesmith.support.errors as e; print(list(tunesmith.__path__), e.__file__, sep='\\n')"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"[{str(tmp_path / 'tunesmith')!r}]", str(tmp_path / "tunesmith" / "support" / "errors.py")]
