"""Files are written atomically, and no draft is left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tunesmith.support import atomic_file


def test_the_old_file_is_kept_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(ZeroDivisionError), atomic_file.replacing(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            atomic_file.write_text(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]
    atomic_file.write_text(path, "new \ud800")
    assert path.read_text() == "new \\ud800" and path.stat().st_mode & 0o777 == 0o640


def test_links_and_devices(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to("a.txt")
    atomic_file.write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a.txt").read_bytes() == b"new"
    atomic_file.write_text("/dev/null", "x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="directory"):
        atomic_file.write_text(tmp_path, "x")
    with pytest.raises(OSError, match="No such file"):
        atomic_file.write_text(tmp_path / "missing" / "a.txt", "x")


def test_a_pipe_in_proc(tmp_path: Path) -> None:
    """As /dev/stdout of a command in a pipeline: the path resolves to `pipe:[N]`, which does not exist."""
    reader, writer = os.pipe()
    try:
        atomic_file.write_text(f"/proc/self/fd/{writer}", "through")
        assert os.read(reader, 100) == b"through"
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{writer}")
        atomic_file.write_text(tmp_path / "link", "again")
        assert os.read(reader, 100) == b"again"
        with pytest.raises(OSError, match="no regular file, and would be lost"):
            atomic_file.place_of(f"/proc/self/fd/{writer}")
    finally:
        os.close(reader)
        os.close(writer)


def test_files_of_other_programs_replace_only_regular_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    old, link, pipe = tmp_path / "real" / "a.so", tmp_path / "link.so", tmp_path / "pipe"
    old.write_text("old")
    old.chmod(0o750)
    link.symlink_to(old)
    os.mkfifo(pipe)
    assert atomic_file.place_of(link) == old and atomic_file.place_of(tmp_path / "new") == tmp_path / "new"
    for bad, why in ((tmp_path, "folder"), (pipe, "no regular file"), ("a\0", "null"), ("\ud800", "surrogates")):
        with pytest.raises(OSError, match=why):
            atomic_file.place_of(bad)
    with pytest.raises(OSError, match="null"):
        atomic_file.write_text("a\0", "x")

    def elsewhere(self: Path, target: Path) -> None:
        if self.name == "draft":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        os.replace(self, target)

    for text in ("one", "two"):
        draft = tmp_path / "draft"
        draft.write_text(text)
        atomic_file.put(draft, old)
        assert link.is_symlink() and link.read_text() == text and old.stat().st_mode & 0o777 == 0o750
        monkeypatch.setattr(Path, "replace", elsewhere)
