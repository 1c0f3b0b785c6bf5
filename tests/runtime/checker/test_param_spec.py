from __future__ import annotations

import pytest

from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import BuildError, ScriptError


def test_text_and_size() -> None:
    assert str(ParamSpec("A", "float32", (512, 500))) == "float32[512, 500]"
    assert str(ParamSpec("A", "bool", ())) == "bool[]"
    assert ParamSpec("A", "bfloat16", (3, 5)).nbytes == 30
    assert ParamSpec("A", "int64", ()).nbytes == 8
    assert ParamSpec("A", "int8", (4, 0)).nbytes == 0


@pytest.mark.parametrize("extent", [-1, "n", 2.0])
def test_extents_are_numbers(extent: object) -> None:
    with pytest.raises(BuildError, match=r"argument A: extent .* is not a number >= 0.*bind the symbolic extents"):
        ParamSpec("A", "float32", (4, extent))  # type: ignore[arg-type]


def test_vectors_are_refused_as_elements() -> None:
    with pytest.raises(BuildError, match="argument A: a buffer of float32x16.*use float32"):
        ParamSpec("A", "float32x16", (4,))


def test_unknown_dtype() -> None:
    with pytest.raises(ScriptError, match="unknown dtype 'float33'"):
        ParamSpec("A", "float33", (4,))
