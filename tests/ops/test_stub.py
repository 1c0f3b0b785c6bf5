"""The stub of tensor expressions is generated from its declarations; editors and shells see every name."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path

import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ops.stub import stub_text
from tunesmith.support.errors import ScriptError

STUB = Path(tunesmith.__file__).with_name("te.pyi")


def test_the_stub_is_current() -> None:
    assert STUB.read_text() == stub_text(), "run python -m tunesmith.ops.stub > src/tunesmith/te.pyi"


def test_every_intrinsic_is_listed() -> None:
    assert set(INTRINSICS) | set(te.__all__) <= set(dir(te))
    assert all(f"\ndef {name}(" in stub_text() for name in INTRINSICS)


def test_intrinsics_have_a_signature_and_a_docstring() -> None:
    assert str(inspect.signature(te.copysign)).replace("'", "") == "(x: Expr, y: Expr, /, *, dtype: str | None = None) -> Expr"
    shown = pydoc.render_doc(te.sqrt, renderer=pydoc.plaintext)
    assert "function sqrt in module tunesmith.te" in shown and "The square root." in shown
    assert "The result has the type of the first operand." in shown
    module = pydoc.render_doc(te, renderer=pydoc.plaintext)
    assert all(f"\n    {name}(" in module for name in (*INTRINSICS, "compute", "pow"))
    assert te.exp is te.exp, "the functions are the same at each use"


def test_intrinsics_of_many_operands_take_any_number_in_their_signature() -> None:
    signature = "(*vectors: Expr, dtype: str | None = None) -> Expr"
    assert str(inspect.signature(te.concat16)).replace("'", "") == signature and f"def concat16{signature}:" in stub_text()
    assert "T.concat16(*vectors)" in str(te.concat16.__doc__)
    x = te.placeholder((16,), "int16", "X")
    with pytest.raises(ScriptError, match=r"te.concat16 takes 16 operands, te.concat16\(\*vectors\), got 3"):
        te.concat16(x[0], x[1], x[2])
    assert te.concat16(*[x[i] for i in range(16)]).dtype == "int16x16"


def test_operands_of_intrinsics() -> None:
    x = te.placeholder((4,), "float16", "X")
    assert te.isnan(x[0]).dtype == "bool" and te.copysign(x[0], 1.0).dtype == "float16"
    assert te.reinterpret(x[0], dtype="int16").dtype == "int16" and te.barrier().dtype == "int32"
    for make, message in (
        (lambda: te.exp(), r"te.exp takes 1 operand, te.exp\(x\), got 0"),
        (lambda: te.fma(x[0], 1.0), r"te.fma takes 3 operands, te.fma\(x, y, z\), got 2"),
        (lambda: te.exp(1.5), r"te.exp takes expressions, got the number 1.5: compute it in Python, or write te.const\(1.5, dtype\)"),
        (lambda: te.exp(x), r"an operand is an element or a number, got the Tensor X: index it, as in X\[...\]"),
        (lambda: te.exp("a"), r"an operand is an element or a number, got 'a' \(str\)"),
    ):
        with pytest.raises(ScriptError, match=message):
            make()
