"""Check the table of features: every row names proofs, and every proof exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "features.md"


def rows(text: str) -> dict[str, list[str]]:
    """Feature -> its proofs, in the order of the table."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    numbers = [int(number) for number, *_ in cells]
    assert numbers == list(range(1, len(cells) + 1)), "the rows are numbered from 1"
    return {feature: re.findall(r"`([^`]+)`", proofs) for _, feature, _, proofs in cells}


def missing(proof: str) -> str:
    """What is missing of a proof: `path` or `path::test`; empty if it is there."""
    path, _, test = proof.partition("::")
    file = ROOT / path
    if not file.is_file():
        return f"there is no file {path}"
    if not path.startswith(("tests/", "examples/")):
        return f"{path} is neither a test nor an example, which the tests run"
    names = {n.name for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)}
    if path.startswith("tests/") and not any(n.startswith("test") for n in names) and "Conformance" not in file.read_text(encoding="utf-8"):
        return f"{path} has no test"
    return f"{path} has no test {test}" if test and test not in names else ""


def test_every_feature_has_proofs() -> None:
    found = rows(TABLE.read_text(encoding="utf-8"))
    assert len(found) >= 31
    without = [feature for feature, proofs in found.items() if not proofs]
    assert not without, f"features without a proof: {without}"
    faults = [f"{feature}: {why}" for feature, proofs in found.items() for p in proofs if (why := missing(p))]
    assert not faults, "\n".join(faults)


def test_a_row_without_its_proof_fails() -> None:
    assert missing("tests/nowhere.py") == "there is no file tests/nowhere.py"
    assert missing("tests/test_features.py::test_nothing") == "tests/test_features.py has no test test_nothing"
    assert "neither a test nor an example" in missing("README.md")
    assert not missing("tests/test_features.py::test_every_feature_has_proofs")
    with pytest.raises(AssertionError, match="numbered from 1"):
        rows("| 2 | x | y | `z` |")
