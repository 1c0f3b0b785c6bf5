"""Test refusals of reindex and cache_index."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


def one_block(body: str, extents: str = "4, 6") -> Schedule:
    """A schedule of a block over i and j that runs `body`."""
    lines = "\n            ".join(body.split("\n"))
    text = f"""
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), I: T.Buffer((8,), "int32"), C: T.Buffer((8, 8), "float32")):
    for i, j in T.grid({extents}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            {lines}
"""
    return Schedule(parse(text))


# ---- reindex


def test_reindex_kind(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("reindex", "kind", "the kind is 'both'; it is 'read' or 'write'", s, lambda: s.reindex(b, "A", "both"))


@pytest.mark.parametrize(("buffer", "kind", "message"), [("A", "write", "it writes C"), ("C", "read", "it reads A, W")])
def test_reindex_accesses_it(on: On, refuse: Refuse, buffer: str, kind: str, message: str) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("reindex", "accesses-it", message, s, lambda: s.reindex(b, buffer, kind))


def test_reindex_single_access(on: On, refuse: Refuse) -> None:
    s = on("windows")
    b = s.get_block("D")
    refuse("reindex", "single-access", "block D accesses S at [vi] and [1 + vi]", s, lambda: s.reindex(b, "S", "read"))


def test_reindex_scalar(refuse: Refuse) -> None:
    s = one_block("C.vstore([vi, vj], A.vload([vi, vj], 2))")
    b = s.get_block("C")
    refuse("reindex", "scalar", "A is accessed by vectors of 2 elements", s, lambda: s.reindex(b, "A", "read"))


def test_reindex_own_indices_of_a_gather(refuse: Refuse) -> None:
    s = one_block('C[vi, vj] = T.lookup(T.cast("int64", I[vi]), 8, lambda at: A[at, vj])')
    b = s.get_block("C")
    refuse("reindex", "own-indices", "an index that depends on at, which is no iteration variable", s, lambda: s.reindex(b, "A", "read"))


def test_reindex_own_indices_outside(refuse: Refuse) -> None:
    s = one_block("C[vi, vj] = T.if_then_else(vi < 0, A[9, vj], 0.0)")
    b = s.get_block("C")
    refuse("reindex", "own-indices", "the index 9 of A must be in [0, 8)", s, lambda: s.reindex(b, "A", "read"))


def test_reindex_own_indices_of_loops(refuse: Refuse) -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    for i in T.serial(8):
        for j in T.serial(i + 1):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                vj = T.axis.spatial(i + 1, j)
                C[vi, vj] = A[vj, vi]
"""
    s = Schedule(parse(text))
    b = s.get_block("C")
    refuse("reindex", "own-indices", "the extent 1 + i of iteration variable vj depends on a loop", s, lambda: s.reindex(b, "A", "read"))


def test_reindex_own_indices_of_sampled_sizes(refuse: Refuse) -> None:
    """The sign of an index decides whether it needs a guard."""
    s = Schedule(one_block("C[vi, vj] = A[vj + 7 - vi, 0]").func, parametric=True)
    b = s.get_block("C")
    (t,) = s.sample_tile(s.get_loops(b)[0], 2, "t")
    s.cache_read(b, "A", "global", [[0, "/", t], 1, [0, "%", t]])
    message = "whether the index floordiv(7 + -1*vi + vj, t1) of A_copy is in [0, ceildiv(8, t1)) depends on sampled sizes"
    with pytest.raises(ScheduleError, match="own-indices") as caught:
        s.reindex(b, "A_copy", "read")
    assert message in caught.value.message


def test_reindex_own_indices_that_sizes_cancel(refuse: Refuse) -> None:
    """A remainder of 1 does not use its variable, and the buffer would have no dimension for it."""
    s = Schedule(parse(CANCELLED))
    b = s.get_block("C")
    message = "which iteration variables block C uses in [mod(vi, t)] depends on sampled sizes"
    refuse("reindex", "own-indices", message, s, lambda: s.reindex(b, "A", "read"))


CANCELLED = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((4,), "float32")):
    t = T.param("t", [1, 2, 4])
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi % t]
"""


def test_reindex_made_before(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.merge(s.get_loops(s.get_block("B"))[0], s.get_loops(s.get_block("C"))[0])
    b = s.get_block("C")
    refuse("reindex", "made-before", "B is written by B in the nest of block C", s, lambda: s.reindex(b, "B", "read"))


def test_reindex_only_writer(refuse: Refuse) -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("first"):
            vi = T.axis.spatial(8, i)
            C[vi] = 0.0
    for i in T.serial(8):
        with T.block("second"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi]
"""
    s = Schedule(parse(text))
    b = s.get_block("second")
    refuse("reindex", "only-writer", "C is also written by first", s, lambda: s.reindex(b, "C", "write"))


def test_reindex_own_values(on: On, refuse: Refuse) -> None:
    s = on("odd")
    b = s.get_block("in_place")
    refuse("reindex", "own-values", "block in_place reads earlier values of F", s, lambda: s.reindex(b, "F", "write"))


@pytest.mark.parametrize("body", ["T.where(i + j < 8)\nC[vi, vj] = A[vi, vj]", "if A[vi, vj] < 0.0:\n    C[vi, vj] = 1.0"])
def test_reindex_whole(refuse: Refuse, body: str) -> None:
    s = one_block(body)
    b = s.get_block("C")
    refuse("reindex", "whole", "block C may not complete an element of C", s, lambda: s.reindex(b, "C", "write"))


SOMETIMES_STARTED = """
@T.prim_func
def f(A: T.Buffer((8, 4), "float32"), C: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                if A[vi, 0] < 0.0:
                    C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
"""


def test_reindex_whole_of_a_conditional_init(refuse: Refuse) -> None:
    """Elements that the init skips continue from the values of the caller, which a cache does not have."""
    s = Schedule(parse(SOMETIMES_STARTED))
    b = s.get_block("C")
    refuse("reindex", "whole", "block C may not complete an element of C", s, lambda: s.reindex(b, "C", "write"))
    refuse("cache_write", "whole", "block C may not write all elements of C", s, lambda: s.cache_write(b, "global"))


@pytest.mark.parametrize("index", ["vi + vj, 0", "vi // 2, vj", "vi % 2, vj", "vi * 2 + vj, 1"])
def test_reindex_distinct(refuse: Refuse, index: str) -> None:
    s = one_block(f"C[{index}] = A[vi, vj]", "2, 4")
    b = s.get_block("C")
    message = "block C may write one element of C for different iterations"
    refuse("reindex", "distinct", message, s, lambda: s.reindex(b, "C", "write"))


def test_reindex_read_after(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.merge(s.get_loops(s.get_block("B"))[0], s.get_loops(s.get_block("C"))[0])
    b = s.get_block("B")
    refuse("reindex", "read-after", "B is read by C in the nest of block B", s, lambda: s.reindex(b, "B", "write"))


OUTSIDE = """
@T.prim_func
def f(I: T.Buffer((4,), "int32"), A: T.Buffer((8,), "float32"), C: T.Buffer((4,), "float32")):
    I[2] = 1
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi] + T.lookup(T.cast("int64", I[vi]), 8, lambda at: A[at])
"""


def test_reindex_in_blocks(refuse: Refuse) -> None:
    s = Schedule(parse(OUTSIDE.replace("I[2] = 1", "A[2] = 1.0").replace(' + T.lookup(T.cast("int64", I[vi]), 8, lambda at: A[at])', "")))
    b = s.get_block("C")
    refuse("reindex", "in-blocks", "a plain store or the condition", s, lambda: s.reindex(b, "A", "read"))


# ---- cache_index


def test_cache_index_scope(refuse: Refuse) -> None:
    s = Schedule(parse(OUTSIDE))
    b = s.get_block("C")
    refuse("cache_index", "scope", "unknown scope 'nowhere'", s, lambda: s.cache_index(b, "nowhere"))


def test_cache_index_has_index(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("cache_index", "has-index", "block C has no indirect index", s, lambda: s.cache_index(b, "global"))
    s = one_block('C[vi, vj] = T.lookup(T.cast("int64", I[0]), 8, lambda at: A[at, vj])')
    refuse("cache_index", "has-index", "block C has no indirect index", s, lambda: s.cache_index(s.get_block("C"), "global"))


def test_cache_index_own_indices(refuse: Refuse) -> None:
    s = one_block('for k in T.serial(2):\n    C[vi, vj] = T.lookup(T.cast("int64", I[vi + k]), 8, lambda at: A[at, vj])')
    b = s.get_block("C")
    refuse("cache_index", "own-indices", "an index that depends on k", s, lambda: s.cache_index(b, "global"))


def test_cache_index_made_before(refuse: Refuse) -> None:
    s = one_block('I[vi] = T.lookup(T.cast("int64", I[vj]), 8, lambda at: T.cast("int32", A[at, vj]))')
    b = s.get_block("C")
    refuse("cache_index", "made-before", "I is written by C in the nest of block C", s, lambda: s.cache_index(b, "global"))


def test_cache_index_in_blocks(refuse: Refuse) -> None:
    s = Schedule(parse(OUTSIDE))
    b = s.get_block("C")
    refuse("cache_index", "in-blocks", "accesses I, which block C accesses too", s, lambda: s.cache_index(b, "global"))
