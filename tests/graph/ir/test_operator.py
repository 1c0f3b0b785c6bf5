"""operator: data of the registered operators."""

from __future__ import annotations

import pytest

from tunesmith.graph.ir.operator import _LIBRARY, GRAPH_OPERATORS


@pytest.mark.parametrize("name", [name for names in _LIBRARY.values() for name in names])
def test_every_operator_has_a_meaning(name: str) -> None:
    """The reference of the documentation lists it."""
    meaning = GRAPH_OPERATORS.get(name).meaning
    assert meaning.endswith(".") and not meaning.endswith("..") and "  " not in meaning and "\n" not in meaning
