"""The wheel contains exactly the tree's files, all under `tunesmith/`, and works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_contains_exactly_the_python_files_of_the_tree(wheel: Path) -> None:
    package = ROOT / "src" / "tunesmith"
    linked = [path for path in package.iterdir() if path.is_symlink()]
    expected = {f"tunesmith/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    expected |= {
        f"tunesmith/{link.name}/{path.relative_to(link.resolve()).as_posix()}" for link in linked for path in link.resolve().rglob("*.py")
    }
    assert len(expected) > 500 and {name for name in _names(wheel) if name.endswith(".py")} == expected
    sources = {"tunesmith/testing/amx_emulator.c", "tunesmith/testing/emulated_machine.c"}
    assert {"tunesmith/py.typed", "tunesmith/experiments/study/report.html.j2", *sources} <= _names(wheel)


def test_only_tunesmith_is_installed_in_site_packages(wheel: Path) -> None:
    """A top-level `datasets` would shadow another library in every installation."""
    tops = {name.split("/")[0] for name in _names(wheel)}
    version = wheel.name.split("-")[1]
    assert tops == {"tunesmith", f"tunesmith-{version}.dist-info"}
    assert not [name for name in _names(wheel) if "__pycache__" in name or "/tests/" in name]


def test_the_wheel_contains_the_command_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        assert "tunesmith = tunesmith.__main__:run" in archive.read(f"{info}/entry_points.txt").decode()
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()


def test_the_unpacked_wheel_imports_from_its_own_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "import tunesmith, tunesmith.support.errors as e; print(list(tunesmith.__path__), e.__file__, sep='\\n')"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"[{str(tmp_path / 'tunesmith')!r}]", str(tmp_path / "tunesmith" / "support" / "errors.py")]
