"""Test random numbers against numpy, interpreted and compiled, in all types, with dynamic sizes, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.operators.random import DIGITS
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

OPERATOR = GRAPH_OPERATORS.get("random_uniform")


def numbers(seed: int, **attributes: Any) -> np.ndarray:
    return OPERATOR.evaluate([np.asarray(seed)], OPERATOR.bind(attributes))[0]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("dtype", [d for d in DIGITS if d != "bfloat16"])
def test_types_and_seeds(dtype: str, seed: int) -> None:
    for shape, stream in (((3, 5), 0), ((), 7), ((2, 1, 70), 2**32 - 1)):
        check_operator("random_uniform", [np.asarray(seed)], shape=shape, stream=stream, dtype=dtype)


def test_the_sequence_is_that_of_splitmix64() -> None:
    """The first outputs of the generator for the seed 1234567, as published with it."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    got = numbers(1234567, shape=(5,), dtype="float64")
    assert [int(x * 2**53) for x in got] == [n >> 11 for n in published]


@pytest.mark.parametrize("dtype", DIGITS)
def test_numbers_are_below_one_and_have_all_digits(dtype: str) -> None:
    x = numbers(3, shape=(1 << 16,), dtype=dtype).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    scaled = x * 2.0 ** DIGITS[dtype]
    assert np.array_equal(scaled, np.floor(scaled)) and (scaled % 2 == 1).mean() > 0.45


def test_streams_and_seeds_are_independent() -> None:
    made = [numbers(seed, shape=(4096,), stream=stream) for seed in range(3) for stream in range(3)]
    matrix = np.corrcoef(np.array(made, np.float64))
    assert np.abs(matrix - np.eye(len(made))).max() < 0.08


def test_dynamic_sizes() -> None:
    n = Var("n")
    b = GraphBuilder("main")
    x, seed = b.input("x", (n, 3)), b.input("seed", (), "int64")
    mod = IRModule({"main": b.finish(b.add(x, b.random_uniform(seed, shape=(n, 3), stream=2)))})
    for rows in (1, 6):
        (got,) = run(mod["main"], [np.zeros((rows, 3), np.float32), np.asarray(9)], mod)
        assert np.array_equal(got, numbers(9, shape=(rows, 3), stream=2))


@pytest.mark.parametrize(
    ("seed", "attributes", "message"),
    [
        (TensorType.of((), "int32"), {}, "the seed is one int64 number"),
        (TensorType.of((1,), "int64"), {}, "the seed is one int64 number, a tensor without axes"),
        (TensorType.of((), "int64"), {"stream": -1}, "a stream is an integer from 0"),
        (TensorType.of((), "int64"), {"stream": True}, "a stream is an integer from 0"),
        (TensorType.of((), "int64"), {"stream": 2**32}, "a stream is an integer from 0"),
        (TensorType.of((), "int64"), {"dtype": "int32"}, "random numbers are floats, not int32"),
        (TensorType.of((), "int64"), {"dtype": "float8"}, "float8"),
    ],
)
def test_errors(seed: TensorType, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        OPERATOR.infer([seed], OPERATOR.bind({"shape": (2,), **attributes}))
