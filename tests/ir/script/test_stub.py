"""The stub of the script namespace is generated from its declarations and has every name of them."""

import ast
import inspect
from pathlib import Path

import pytest

import tunesmith
from tunesmith import script
from tunesmith.ir.script.stub import stub_text

STUB = Path(tunesmith.__file__).with_name("script.pyi")


def test_intrinsics_of_many_operands_take_any_number_in_their_signature() -> None:
    assert "def concat16(*vectors: Value, dtype: str = ...) -> Expr:" in stub_text()


def test_the_stub_is_current() -> None:
    assert STUB.read_text() == stub_text(), "run python -m tunesmith.ir.script.stub > src/tunesmith/script.pyi"


def test_every_name_of_the_namespace_is_declared() -> None:
    declared = {getattr(n, "name", None) for n in ast.parse(stub_text()).body} | {"T", "axis"}
    assert set(script.__all__) <= declared


@pytest.mark.parametrize("name", ["serial", "exp", "float32", "Buffer"])
def test_a_word_has_a_docstring(name: str) -> None:
    function = next(n for n in ast.parse(stub_text()).body if getattr(n, "name", "") == name)
    assert isinstance(function, (ast.FunctionDef, ast.ClassDef))
    assert ast.get_docstring(function) == inspect.getdoc(getattr(script, name))
