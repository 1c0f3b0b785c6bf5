"""Compare the files around the code with each other: workflows, issue forms, hooks, citation, changelog, source distribution."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tunesmith

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
YAML = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])


def parsed(path: Path) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def versions() -> list[str]:
    """The Pythons of the classifiers."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["project"]["classifiers"]]
    return [m[1] for m in found if m]


@pytest.mark.parametrize("path", YAML, ids=lambda p: p.name)
def test_file_is_yaml(path: Path) -> None:
    assert isinstance(parsed(path), dict)


def test_workflow_tests_the_pythons_of_the_classifiers() -> None:
    job = parsed(ROOT / ".github/workflows/tests.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == versions()
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])


def test_lowest_python_is_tested_everywhere() -> None:
    lowest = versions()[0]
    assert PROJECT["project"]["requires-python"] == f">={lowest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == lowest
    steps = parsed(ROOT / ".github/workflows/minimum-versions.yml")["jobs"]["test"]["steps"]
    assert any(step.get("with", {}).get("python-version") == lowest for step in steps)
    assert any("--resolution lowest-direct" in step.get("run", "") for step in steps)


@pytest.mark.parametrize("name", ["bug_report.yml", "feature_request.yml"])
def test_issue_form_has_the_fields_of_a_form(name: str) -> None:
    form = parsed(ROOT / ".github/ISSUE_TEMPLATE" / name)
    assert {"name", "description", "body"} <= form.keys()
    fields = [entry for entry in form["body"] if entry["type"] != "markdown"]
    assert len({entry["id"] for entry in fields}) == len(fields)
    for entry in fields:
        assert entry["type"] in ("textarea", "dropdown", "input") and entry["attributes"]["label"]
        assert all(isinstance(option, str) for option in entry["attributes"].get("options", []))


def test_hooks_run_the_linters_of_make_lint() -> None:
    hooks = {hook["id"]: hook for repo in parsed(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    assert {"ruff", "ruff-format", "mypy", "end-of-file-fixer", "check-yaml"} <= hooks.keys()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("ruff", "ruff-format", "mypy"):
        command = hooks[name]["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        assert f"$(BIN)/{command}" in makefile


def test_citation_names_this_version() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == tunesmith.__version__ and citation["license"] == PROJECT["project"]["license"]


def test_source_distribution_contains_the_files_at_the_root() -> None:
    include = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert not [entry for entry in include if not (ROOT / entry[1:]).exists()]
    documents = {f"/{path.name}" for path in ROOT.iterdir() if path.suffix in (".md", ".cff", ".toml", ".txt") and path.is_file()}
    assert documents - {"/pyproject.toml"} <= set(include)


def test_changelog_names_modules_that_exist() -> None:
    """The second column of the table of moved modules."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tunesmith\.[\w.]+`(?:, `[\w.]+`)* \| `(tunesmith\.[\w.]+)` \|$", text, re.MULTILINE)
    assert len(rows) > 20
    for name in rows:
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module) is None or (found := importlib.util.find_spec(name) if _is_package(module) else None) is None:
            assert hasattr(importlib.import_module(module), attribute), name
        else:
            assert found


def _is_package(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None
