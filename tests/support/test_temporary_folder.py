"""Temporary folders are removed when the process ends, including by SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.support.temporary_folder import CleanUp, temporary_folder


class Owner:
    """Owner of a clean-up."""


def ended(code: str, folder: Path) -> tuple[int, list[Path]]:
    """Run code in a process and end it by SIGTERM: its exit status, and the files that it leaves."""
    command = [sys.executable, "-c", f"import sys; folder = {str(folder)!r}\n{code}\nprint('ready', flush=True)\nsys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        return process.wait(60), list(folder.iterdir())


def test_a_block_removes_its_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyError), temporary_folder("some-", tmp_path) as folder:
        (folder / "file").write_text("text")
        assert list(tmp_path.iterdir()) == [folder] and folder.name.startswith("some-")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_clean_up_is_called_once() -> None:
    called: list[int] = []
    owner = Owner()
    clean_up = CleanUp(owner, called.append, 1)
    clean_up()
    clean_up()
    del owner
    assert called == [1]


def test_sigterm_removes_folders_and_still_ends_the_process(tmp_path: Path) -> None:
    code = "from tunesmith.support.temporary_folder import temporary_folder\nblock = temporary_folder(parent=folder); block.__enter__()"
    assert ended(code, tmp_path) == (-signal.SIGTERM, [])


def test_a_handler_of_the_program_is_kept(tmp_path: Path) -> None:
    code = (
        "import signal; from tunesmith.support.temporary_folder import temporary_folder\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); block = temporary_folder(parent=folder); block.__enter__()"
    )
    assert ended(code, tmp_path) == (5, [])


def test_a_measurer_leaves_no_folder(tmp_path: Path) -> None:
    code = (
        "import tempfile; tempfile.tempdir = folder\n"
        "from tunesmith.ir.target.target import Target; from tunesmith.measure.measurer import Measurer\n"
        "from tunesmith.measure.builder import InProcessBuilder; from tunesmith.measure.local_runner import InProcessRunner\n"
        "measurer = Measurer(Target('llvm -num-cores=1'), InProcessBuilder(), InProcessRunner())"
    )
    assert ended(code, tmp_path) == (-signal.SIGTERM, [])
