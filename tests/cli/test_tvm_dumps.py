"""The commands on script text that TVM printed: compile, show, tune, replay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunesmith.cli.main import main

DUMPS = Path(__file__).parents[1] / "golden" / "tvm"
TARGET = "llvm -num-cores=1"


def spec_of(name: str, folder: Path) -> str:
    text = (DUMPS / f"{name}.txt").read_text(encoding="utf-8")
    (folder / "dump.py").write_text(text, encoding="utf-8")
    found = re.search(r"def (\w+)", text)
    assert found is not None
    return f"{folder / 'dump.py'}:{found[1]}"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(x) for x in arguments])


@pytest.mark.parametrize("name", [p.stem for p in sorted(DUMPS.glob("*.txt"))])
def test_every_dump_compiles(name: str, tmp_path: Path) -> None:
    result = command("compile", spec_of(name, tmp_path), "--target", TARGET, "-o", tmp_path / "lib.so")
    assert result.exit_code == 0 and (tmp_path / "lib.so").is_file(), result.output


@pytest.mark.parametrize("name", ["softmax", "gather", "searchsorted"])
def test_dumps_are_tuned_shown_and_replayed(name: str, tmp_path: Path) -> None:
    spec, log = spec_of(name, tmp_path), tmp_path / "log.jsonl"
    options = ("--target", TARGET, "--workers", "0", "--sampler", "random", "--trials", "2", "--log", log)
    for result in (command("tune", spec, *options), command("show", spec, "--target", TARGET), command("replay", log)):
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("matmul_tiled", "scheduled already"),
        ("matmul_lowered", "which has no blocks"),
        ("gelu", "has dynamic shapes: pass the sizes to tune it for"),
    ],
)
def test_what_cannot_be_tuned_says_why(name: str, message: str, tmp_path: Path) -> None:
    result = command("show", spec_of(name, tmp_path), "--target", TARGET)
    assert result.exit_code in (1, 2) and message in " ".join(result.output.split())


def test_two_functions_with_a_size_of_the_text(tmp_path: Path) -> None:
    text = (DUMPS / "gelu.txt").read_text(encoding="utf-8")
    head, _, rest = text.partition("@T.prim_func")
    other = rest.replace("def main", "def second")
    (tmp_path / "dump.py").write_text(f"{head}@T.prim_func{rest}\n@T.prim_func{other}", encoding="utf-8")
    result = command("compile", f"{tmp_path / 'dump.py'}:second", "--target", TARGET, "-o", tmp_path / "lib.so")
    assert result.exit_code == 0, result.output
