"""Search path of shared libraries, and the error if a library is not found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tunesmith.runtime.elf_symbols import read_symbols
from tunesmith.runtime.shared_libraries import candidates, load_library
from tunesmith.runtime.threads import load_openmp
from tunesmith.support.errors import RunError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on `sys.path`."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_libraries_of_packages_are_found(folder: Path) -> None:
    for place in ("package/lib", "wheel.libs", "package/other"):
        (folder / place).mkdir(parents=True)
        (folder / place / "libx.so").write_bytes(b"")
    assert list(candidates("libx.so")) == ["libx.so", str(folder / "package/lib/libx.so"), str(folder / "wheel.libs/libx.so")]
    assert list(candidates("/opt/libx.so")) == ["/opt/libx.so"]


def test_a_library_of_a_package_is_loaded(folder: Path) -> None:
    (folder / "package/lib").mkdir(parents=True)
    shutil.copy(_mapped("libgomp"), folder / "package/lib/libtunesmith_test.so")
    assert hasattr(load_library("libtunesmith_test.so"), "GOMP_parallel")


def _mapped(stem: str) -> str:
    """Path of a library loaded in this process: the OpenMP runtime."""
    load_openmp()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split(maxsplit=5)[5] for line in lines if stem in line)


def test_the_error_lists_the_paths_tried(folder: Path) -> None:
    (folder / "package/lib").mkdir(parents=True)
    broken = folder / "package/lib/libbroken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(
        RunError, match="cannot load the shared library libbroken.so. Install it, or put its folder into LD_LIBRARY_PATH"
    ) as e:
        load_library("libbroken.so")
    assert "\n  libbroken.so: " in str(e.value) and f"\n  {broken}: " in str(e.value)


def test_the_libraries_that_a_library_needs_are_read() -> None:
    assert any(name.startswith("libc.") for name in read_symbols(Path(_mapped("libgomp")).read_bytes()).libraries)
