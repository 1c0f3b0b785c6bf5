"""Named random streams: reproducible, independent of each other and of order."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.support.errors import UserError
from tunesmith.support.seeds import derive, stream

NAMES = st.lists(st.one_of(st.text(max_size=5), st.integers(-3, 1 << 70)), max_size=4)


def test_values_never_change() -> None:
    """Records contain the seed of their run, so these numbers must never change."""
    assert derive(0) == 6090692566427906205
    assert derive(7, "search", "abc", 3) == 4195148604859060422
    assert stream(7, "search", "abc", 3).integers(0, 1 << 62, size=3).tolist() == [
        911380980422672138,
        907615008890122384,
        395654413335977646,
    ]


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    program = "from tunesmith.support.seeds import derive, stream; print(derive(1, 'a', 2), stream(1, 'a', 2).random())"
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    printed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(derive(1, "a", 2)), str(stream(1, "a", 2).random())]


@given(NAMES, NAMES)
def test_different_paths_give_different_seeds(one: list[str | int], other: list[str | int]) -> None:
    same = [(type(x), x) for x in one] == [(type(x), x) for x in other]
    assert (derive(3, *one) == derive(3, *other)) == same


def test_similar_paths_differ() -> None:
    paths: list[tuple[str | int, ...]] = [("ab",), ("a", "b"), ("a", "b", ""), (1,), ("1",), (), (11,), (1, 1), ("i1",)]
    assert len({derive(0, *path) for path in paths}) == len(paths)
    assert derive(1) != derive(0, 1) != derive(-1)


def test_streams_do_not_depend_on_earlier_draws() -> None:
    first = stream(0, "a").random(4)
    stream(0, "b").random(1000)
    assert np.array_equal(stream(0, "a").random(4), first)
    assert not np.array_equal(stream(0, "b").random(4), first)


def test_numpy_integers_count_as_integers() -> None:
    assert derive(np.int32(5), "x", np.uint8(2)) == derive(5, "x", 2)


@given(st.integers(1, 128), st.integers())
def test_bits_bound_the_value(bits: int, seed: int) -> None:
    assert 0 <= derive(seed, "x", bits=bits) < 1 << bits


def test_refusals() -> None:
    with pytest.raises(UserError, match=r"the seed of a random stream is an integer, not 1\.5"):
        stream(1.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a name of a random stream is an integer or a text, not None"):
        derive(0, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="1 to 128 bits, not 0"):
        derive(0, bits=0)
