"""The docstring of a primitive is its specification: it has the parts, and its example stands as a golden text."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tunesmith.schedule.primitive import PRIMITIVES

GOLDEN = Path(__file__).parents[1] / "golden" / "schedule"
PURE = ("get_output_blocks",)
"""Nothing to refuse."""


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_parts(name: str) -> None:
    text = inspect.getdoc(PRIMITIVES[name].function) or ""
    assert ("Requires:" in text) == (name not in PURE), "every precondition has a label"
    if "Rewrite:" in text:
        assert "Keeps:" in text, "a rewrite says what it keeps"
        assert list(GOLDEN.glob(f"*/test_{name}.txt")), f"the example of {name} has no golden text: write tests/schedule/...::test_{name}"
    labels = re.findall(r"^    ([a-z-]+): ", text.partition("Requires:")[2].partition("\nKeeps:")[0], re.MULTILINE)
    assert len(labels) == len(set(labels))
