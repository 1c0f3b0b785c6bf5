"""The names of `T`: each has an example that is Python and uses the name, and a meaning."""

from __future__ import annotations

import ast

import pytest

from tunesmith.ir.script import syntax

WORDS = {n: w for n in syntax.__all__ if isinstance(w := getattr(syntax, n), syntax.Word)}
WORDS |= {f"axis.{n}": w for n, w in vars(type(syntax.axis)).items() if isinstance(w, syntax.Word) and w.__name__ == f"axis.{n}"}


@pytest.mark.parametrize("name", WORDS)
def test_the_example_is_python_and_uses_the_name(name: str) -> None:
    word = WORDS[name]
    block = word.usage.startswith(("for ", "with "))
    ast.parse(f"{word.usage}:\n    pass" if block else word.usage)
    assert f"T.{name}(" in word.usage
    assert word.meaning.endswith(".") and word.__doc__ == f"{word.usage}: {word.meaning}"
