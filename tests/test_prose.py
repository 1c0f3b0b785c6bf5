"""The prose of the sources: first lines say what a module does, and the glossary's terms replace private words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "support", "ir", "runtime", "ops", "schedule", "lower", "codegen", "measure", "graph", "datasets", "costmodel", "search",
    "experiments", "src",
)  # fmt: skip

BANNED_STARTS = ("What ", "Whether ", "How ", "Where ", "Who ", "When ", "This ", "A thing ", "The thing ")
"""First words of a module's docstring that hide its subject and verb."""
BANNED = re.compile(r"\b(nobody|whoever|told|stands|hopeless|forever|lest|, say)\b")
"""Words of first lines that make persons of threads, files and values, or say little."""
PRIVATE_NAMES = re.compile(
    r"\b(check_meetings|own_binders|share_threads|combine_threads|fill_tiles|close_gaps|version_guards|hoist_conditions|clip_loops|Workbench|"
    r"DeviceBench|ActorCrew|CrewMember|Ledger|Drafter|Entrant|TwinRewriter|call_form|Lt0|create_peer|emit_sized_entry|whole_vectors)\b"
)
"""Names of earlier versions whose terms are in docs/glossary.md."""
KEPT = {
    "ir/structural_digest.py": "digests in logs were made with the old names of classes",
    "lower/renamed_passes.py": "old names of passes are suggested under their new ones",
}


def first_lines() -> Iterator[tuple[str, str]]:
    """(path, first line of the docstring) of every module."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            yield path.relative_to(ROOT).as_posix(), (text or "").partition("\n")[0]


def faults(line: str) -> list[str]:
    """What is wrong with the first line of a module."""
    found = [f"begins with {start.strip()!r}" for start in BANNED_STARTS if line.startswith(start)]
    found += [f"contains {word!r}" for word in BANNED.findall(line)]
    return found if line else ["there is none"]


def test_first_lines_have_a_subject_and_a_verb() -> None:
    found = [f"{path}: {line!r}: {', '.join(faults(line))}" for path, line in first_lines() if faults(line)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ["What no barrier could mend", "Whether a loop carries", "a tile that nobody fills", "it is told in one place", "memory, say", ""],
)
def test_bad_first_lines_are_found(line: str) -> None:
    assert faults(line)


def test_the_sources_use_the_terms_of_the_glossary() -> None:
    found = []
    for folder in (*FOLDERS, "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md") and name not in KEPT and not path.is_symlink():
                found += [f"{name}: {word}" for word in PRIVATE_NAMES.findall(path.read_text(encoding="utf-8"))]
    assert not found, "\n" + "\n".join(sorted(set(found)))


def test_paths_in_sources_and_documents_exist() -> None:
    """Paths of the extension package of docs/extending.md are made by its reader; CHANGELOG.md names files of earlier versions."""
    path = re.compile(r"(?<![\w/.])(?:[a-z_]+/)+[a-z_0-9]+\.py\b")
    sources = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")]
    documents = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    missing = set()
    for file in [*sources, *documents]:
        if file.name != "CHANGELOG.md":
            for named in path.findall(file.read_text(encoding="utf-8")):
                places = (ROOT, ROOT / "src" / "tunesmith", file.parent)
                if not named.startswith("tunesmith_extension/") and not any((place / named).exists() for place in places):
                    missing.add(f"{file.relative_to(ROOT)}: {named}")
    assert not missing
