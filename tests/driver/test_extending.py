"""Run docs/extending.md and compare its files with the package in tests/extension_package.

All runs are in a separate process in which the package is installed through its entry points, because registries persist in a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "extending.md"
PACKAGE = ROOT / "tests" / "extension_package"

RUN = """
import importlib.util, pathlib, sys

spec = importlib.util.spec_from_file_location("documents", sys.argv[1])
documents = importlib.util.module_from_spec(spec)
sys.modules["documents"] = documents
spec.loader.exec_module(documents)
namespace, count = {"__name__": "__main__"}, 0
for example in documents.examples(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")):
    if example.source.startswith("# "):
        continue
    cheaper = {"budget=64": "budget=2, workers=0, progress=False", "Search(": "Search(batch=1, leaders=0, "}
    printed = documents.run(example, "extending", pathlib.Path(), namespace, cheaper)
    assert example.output in (None, printed), f"line {example.line} prints\\n{printed}"
    count += 1
print(count, "examples")
"""

NAMES = """
import importlib

registries = {
    "tunesmith.graph_operator": "graph.ir.operator:GRAPH_OPERATORS",
    "tunesmith.torch_operator": "graph.importers.torch.call:TORCH_OPERATORS",
    "tunesmith.search_rule": "search.space.rules_table:SEARCH_RULES",
    "tunesmith.target_kind": "ir.target.attributes:TARGET_KINDS",
    "tunesmith.target_tag": "ir.target.attributes:TARGET_TAGS",
    "tunesmith.device": "runtime.device.device:DEVICES",
    "tunesmith.external_codegen": "graph.offload.external_codegen:EXTERNAL_CODEGENS",
    "tunesmith.baseline": "measure.baselines.registry:BASELINES",
    "tunesmith.backend": "codegen.backends.backend:BACKENDS",
}
for group, path in registries.items():
    module, _, name = path.partition(":")
    registry = getattr(importlib.import_module("tunesmith." + module), name)
    assert registry.group == group
    assert set(EXPECTED[group]) <= set(registry.names())
    for name in EXPECTED[group]:
        registry.get(name)
assert registries.keys() == EXPECTED.keys()
"""


def points() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    return found


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """Environment of a process in which the package is installed."""
    info = tmp_path / "installed" / "tunesmith_extension-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tunesmith-extension\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items()) for group, names in points().items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    path = [str(PACKAGE), str(info.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in path if p])}


def python(script: str, environment: dict[str, str], folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_of_the_guide_are_those_of_the_package() -> None:
    shown = dict(re.findall(r"^```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL))
    files = {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in PACKAGE.rglob("*") if p.suffix in (".py", ".toml")}
    del files["tunesmith_extension/__init__.py"]
    assert shown == files


def test_the_guide_runs_and_prints_what_it_quotes(installed: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    printed = python(RUN, installed, tmp_path, ROOT / "tests" / "test_tour.py", DOCUMENT)
    assert printed.splitlines()[-1] == "13 examples"


def test_the_package_passes_the_conformance_suites(installed: dict[str, str], tmp_path: Path) -> None:
    suites = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--pyargs", "tunesmith_extension.conformance"]
    done = subprocess.run([sys.executable, *suites, "-k", "not Runner"], cwd=tmp_path, env=installed, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


INTERNAL = {
    "script dialect": "readers of tunesmith's own scripts",
    "script formula": "expressions of functions that scripts of TVM name",
    "structure": "digests of tunesmith's own functions",
}
"""Registries that are no interface: only parts of tunesmith are in them."""


def test_the_guide_lists_the_group_of_every_registry() -> None:
    layout = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tunesmith"]["layout"]
    sources = [p for folder in layout for p in sorted((ROOT / folder).rglob("*.py"))]
    kinds = {kind for p in sources for kind in re.findall(r"= (?:\w+)?Registry\(\s*\"([a-z ]+)\"", p.read_text())}
    assert set(INTERNAL) < kinds
    groups = {"tunesmith." + kind.replace(" ", "_") for kind in kinds - set(INTERNAL)}
    listed = re.findall(r"^\|.*, `(tunesmith\.\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(groups) == sorted(listed), "a row for each group, and one only"


def test_every_registry_has_a_contract() -> None:
    layout = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tunesmith"]["layout"]
    texts = [p.read_text() for folder in layout for p in sorted((ROOT / folder).rglob("*.py"))]
    made = [re.findall(r"= (?:\w+)?(Registry)\(|contract=(?:instance_of|derived_from|FUNCTION)", text) for text in texts]
    wrong = [found for found in made if found.count("Registry") * 2 != len(found)]
    assert any(made) and not wrong


def test_every_entry_point_is_found_under_its_group(installed: dict[str, str], tmp_path: Path) -> None:
    python(f"EXPECTED = {points()!r}\n{NAMES}", installed, tmp_path)
