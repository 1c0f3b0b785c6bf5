"""The page for users of TVM: its code runs, and the names on its right side exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import tunesmith
from tunesmith.cli.main import main
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.script import syntax
from tunesmith.ir.script.tvm_functions import FUNCTIONS, RENAMED
from tunesmith.lower.pipelines import PASSES
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "from-tvm.md").read_text(encoding="utf-8")
PLAIN = re.compile(r'"|=|\[|mod\.|//|%|i \* |\bA\b|: ')
"""Code that is no name: arguments, expressions."""


def rows() -> Iterator[tuple[str, str]]:
    """The section and the right cell of each row."""
    section = ""
    for line in PAGE.splitlines():
        section = line[3:] if line.startswith("## ") else section
        if line.startswith("| ") and not line.startswith("| TVM") and not line.startswith("| in TVM"):
            yield section, line.rstrip(" |").rpartition(" | ")[2]


NAMES = [(section, name) for section, cell in rows() for name in re.findall(r"`([^`]+)`", cell) if not PLAIN.search(name)]


def exists(name: str) -> bool:
    """Whether a name is one of the package, the script, a primitive, a pass or a command."""
    if name.startswith("tunesmith "):
        command: object = main
        for word in name.split()[1:]:
            command = getattr(command, "commands", {}).get(word)
        return command is not None
    if name.startswith("tunesmith."):
        parts, found = name.split(".")[1:], tunesmith
        for n, part in enumerate(parts):
            try:
                found = getattr(found, part) if hasattr(found, part) else import_module(".".join(["tunesmith", *parts[: n + 1]]))
            except ImportError:
                return False
        return True
    if name.startswith("T."):
        if name[2:] in FUNCTIONS or name[2:] in RENAMED:
            return True
        inner: object = syntax
        for part in name[2:].split("."):
            word = re.match(r"\w+", part)
            inner = getattr(inner, word[0], None) if word else None
        return inner is not None
    if name.startswith("te."):
        return hasattr(tunesmith.te, name[3:])
    kinds = {"graph", "aot", "topi"}
    return (name in PRIMITIVES and hasattr(Schedule, name)) or name in PASSES or name in GRAPH.names or name in INTRINSICS or name in kinds


def test_the_page_has_names() -> None:
    assert len(NAMES) > 100 and {section for section, _ in NAMES} >= {"Script", "Schedule", "Graphs", "MetaSchedule"}


@pytest.mark.parametrize(("section", "name"), NAMES, ids=[name for _, name in NAMES])
def test_names_of_the_right_side_exist(section: str, name: str) -> None:
    assert exists(name), f"{section}: {name}"


def test_the_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(code, "from-tvm.md", "exec"), namespace)
    assert namespace["lib"] is not None
