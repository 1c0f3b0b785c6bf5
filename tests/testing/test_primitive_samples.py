"""Test that the table of primitives has no empty cell: each has a sample that passes all checks, refusals, and fuzzing."""

from __future__ import annotations

import pytest

from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.testing.primitive_conformance import COLUMNS, cells
from tunesmith.testing.primitive_samples import SAMPLES
from tunesmith.testing.program_fuzz.generate_steps import FUZZED


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_no_cell_is_empty(name: str) -> None:
    found = cells(name)
    assert tuple(found) == COLUMNS
    empty = [column for column, text in found.items() if not text]
    assert not empty, f"{name} lacks {', '.join(empty)}; see primitive_samples.SAMPLES, generate_steps.FUZZED, Requires in its docstring"


def test_tables_name_only_primitives() -> None:
    assert set(SAMPLES) == set(FUZZED) == set(PRIMITIVES)
