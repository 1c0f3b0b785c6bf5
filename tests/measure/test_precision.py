"""Test the names of compute precisions."""

from __future__ import annotations

import pytest

from tunesmith.measure.precision import EPS, default_precision, precision_of
from tunesmith.support.errors import ScriptError


def test_names_of_dtypes() -> None:
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "float32x8": "f32", "int8": "int8", "bool": "bool"}
    assert {dtype: precision_of(dtype) for dtype in names} == names
    with pytest.raises(ScriptError, match="unknown dtype 'float31'"):
        precision_of("float31")


def test_a_float_input_decides() -> None:
    assert default_precision(["int64", "float16"]) == "f16"  # an embedding
    assert default_precision(["int8", "int32"]) == "int8"
    assert default_precision([]) == ""


def test_narrow_precisions_have_a_larger_eps() -> None:
    assert EPS["f64"] < EPS["f32"] < EPS["tf32"] == EPS["f16"] < EPS["bf16"]
