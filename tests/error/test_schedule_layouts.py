"""Test refusals of transform_layout, transform_block_layout, storage_align and unsafe_set_dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]

VECTORS = """
@T.prim_func
def vectors(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(2):
        with T.block("B"):
            vi = T.axis.spatial(2, i)
            B.vstore([vi * 4], A.vload([vi * 4], 4))
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]
"""


# ---- transform_layout


def test_transform_layout_accesses_it(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("D")
    refuse("transform_layout", "accesses-it", "it accesses D, C, bias", s, lambda: s.transform_layout(b, "W", [0, 1]))


def test_transform_layout_intermediate(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("transform_layout", "intermediate", "W is a parameter", s, lambda: s.transform_layout(b, "W", [1, 0]))


def test_buffers_of_the_body(refuse: Refuse) -> None:
    """Their allocations are part of a nest."""
    s = Schedule(parse(VECTORS.replace("T.alloc_buffer", "T.allocate").replace("(8,), ", "(8, 2), ").replace("[vi", "[0, vi")))
    b = s.get_block("B")
    what = "B is allocated inside the body; use T.alloc_buffer"
    refuse("transform_layout", "intermediate", what, s, lambda: s.transform_layout(b, "B", [1, 0]))
    refuse("storage_align", "intermediate", what, s, lambda: s.storage_align(b, "B", 0, 8))


UNUSED = """
@T.prim_func
def unused(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.allocate((8,), "float32")
    D = T.allocate((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + D[vi]
"""


def test_copies_outside_of_the_body_of_an_allocation(refuse: Refuse) -> None:
    s = Schedule(parse(UNUSED))
    b = s.get_block("B")
    for name, step in (
        ("cache_write", lambda: s.cache_write(b, "global")),
        ("reindex", lambda: s.reindex(b, "B", "write")),
    ):
        refuse(name, "read-after", "B is allocated in the nest of block B; use T.alloc_buffer", s, step)
    for name, step in (
        ("cache_read", lambda: s.cache_read(b, "D", "global")),
        ("reindex", lambda: s.reindex(b, "D", "read")),
    ):
        refuse(name, "made-before", "D is allocated in the nest of block B; use T.alloc_buffer", s, step)


@pytest.mark.parametrize(
    ("index_map", "why"),
    [
        ([0], "dimension 1 of C must occur in the layout once"),
        ([0, [1, "/", 2], [1, "%", 3]], "dimension 1 of C must occur in the layout once, or as '/' and '%' with one factor"),
        ([[1, "/", 2], [1, "%", 2], 1, 0], "dimension 1 of C must occur"),
        ([0, 1, 2], "the layout names dimension 2, but C has 2 dimensions, counted from 0"),
        ([0, [1, "/", 0], [1, "%", 0]], "a dimension is split by a factor of at least 1; found 0"),
        (7, "the layout is 7; it must be a list"),
    ],
)
def test_transform_layout_layout(on: On, refuse: Refuse, index_map: Any, why: str) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("transform_layout", "layout", why, s, lambda: s.transform_layout(b, "C", index_map))


def test_transform_layout_scalar(refuse: Refuse) -> None:
    s = Schedule(parse(VECTORS))
    b = s.get_block("C")
    refuse("transform_layout", "scalar", "vectors of 4 elements", s, lambda: s.transform_layout(b, "B", [[0, "/", 2], [0, "%", 2]]))


@pytest.mark.parametrize(("dtype", "value"), [("int8", 200), ("int8", 0.5), ("uint8", -1), ("bool", 2)])
def test_transform_layout_pad_value(refuse: Refuse, dtype: str, value: float) -> None:
    s = Schedule(parse(VECTORS.replace("float32", dtype).replace("B.vstore([vi * 4], A.vload([vi * 4], 4))", "B[vi] = A[vi]")))
    b = s.get_block("B")
    message = f"the padding of B is {value}, which is not a value of {dtype}"
    refuse("transform_layout", "pad-value", message, s, lambda: s.transform_layout(b, "B", [[0, "/", 3], [0, "%", 3]], value))


# ---- transform_block_layout


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


def test_transform_block_layout_trivial(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("D")
    s.split(loops(s, "D")[0], [None, 2])
    message = "iteration variable vi of block D is not a loop of its own with the extent 8"
    refuse("transform_block_layout", "trivial", message, s, lambda: s.transform_block_layout(b, [0, 1]))


def test_transform_block_layout_layout(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    message = "dimension 2 of the iterations of block C must occur in the layout once"
    refuse("transform_block_layout", "layout", message, s, lambda: s.transform_block_layout(b, [0, 1]))


def test_transform_block_layout_serial(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("D")
    s.vectorize(loops(s, "D")[1])
    message = "loop j is vectorized or annotated"
    refuse("transform_block_layout", "serial", message, s, lambda: s.transform_block_layout(b, [0, [1, "/", 2], [1, "%", 2]]))


def test_transform_block_layout_bounded(on: On, refuse: Refuse) -> None:
    s = on("row")
    b = s.get_block("C")
    message = "a factor must be at most 2147483647"
    refuse("transform_block_layout", "bounded", message, s, lambda: s.transform_block_layout(b, [[0, "/", 2**31], [0, "%", 2**31]]))


def test_transform_block_layout_nest(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.merge(loops(s, "B")[0], loops(s, "C")[0])
    b = s.get_block("B")
    refuse("transform_block_layout", "nest", "the loops are not one perfect nest", s, lambda: s.transform_block_layout(b, [1, 0]))


def test_transform_block_layout_nest_2(refuse: Refuse) -> None:
    s = Schedule(parse(SCAN.replace("    for i, j", "    if A[0, 0] < 0.0:\n     for i, j").replace("        with", "         with")))
    b = s.get_block("C")
    refuse("transform_block_layout", "nest", "block C is inside an `if`", s, lambda: s.transform_block_layout(b, [1, 0]))


def test_transform_block_layout_single_block(on: On, refuse: Refuse) -> None:
    s = on("chain")
    first = s.merge(loops(s, "B")[0], loops(s, "C")[0])
    s.merge(loops(s, "B")[1], loops(s, "C")[1])
    assert first.name
    b = s.get_block("B")
    message = "the nest contains more than one block"
    refuse("transform_block_layout", "single-block", message, s, lambda: s.transform_block_layout(b, [1, 0]))


TRIANGLE = """
@T.prim_func
def triangle(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    for i in T.serial(4):
        for j in T.serial(i + 1):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(i + 1, j)
                C[vi, vj] = A[vi, vj]
"""


def test_transform_block_layout_independent(refuse: Refuse) -> None:
    s = Schedule(parse(TRIANGLE))
    b = s.get_block("C")
    message = "the extent of loop j depends on another loop of the nest"
    refuse("transform_block_layout", "independent", message, s, lambda: s.transform_block_layout(b, [1, 0]))


SCAN = """
@T.prim_func
def scan(A: T.Buffer((6, 5), "float32"), C: T.Buffer((6, 5), "float32")):
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vi > 0, C[vi - 1, vj + vi % 2], 0.0) + A[vi, vj]
"""


def test_transform_block_layout_dependences(refuse: Refuse) -> None:
    s = Schedule(parse(SCAN))
    b = s.get_block("C")
    message = "instances of block C depend on each other"
    refuse("transform_block_layout", "dependences", message, s, lambda: s.transform_block_layout(b, [[0, "%", 2], 1, [0, "/", 2]]))


# ---- storage_align


def test_storage_align_accesses_it(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("D")
    refuse("storage_align", "accesses-it", "it accesses D, C, bias", s, lambda: s.storage_align(b, "W", 0, 8))


def test_storage_align_intermediate(on: On, refuse: Refuse) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("storage_align", "intermediate", "A is a parameter", s, lambda: s.storage_align(b, "A", 0, 8))


@pytest.mark.parametrize("axis", [1, 2, -1, -3])
def test_storage_align_axis(on: On, refuse: Refuse, axis: int) -> None:
    s = on("dense")
    b = s.get_block("C")
    message = f"axis is {axis}; C has 2 dimensions"
    refuse("storage_align", "axis", message, s, lambda: s.storage_align(b, "C", axis, 8))


@pytest.mark.parametrize(("factor", "message"), [(0, "at least 1; found 0"), (4097, "at most 4096 elements; found 4097")])
def test_storage_align_factor(on: On, refuse: Refuse, factor: int, message: str) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("storage_align", "factor", message, s, lambda: s.storage_align(b, "C", 0, factor))


@pytest.mark.parametrize(("offset", "message"), [(-1, "at least 0; found -1"), (8, "less than the factor 8; found 8")])
def test_storage_align_offset(on: On, refuse: Refuse, offset: int, message: str) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("storage_align", "offset", message, s, lambda: s.storage_align(b, "C", 0, 8, offset))


# ---- unsafe_set_dtype


@pytest.mark.parametrize("dtype", ["bool", "float32x4", "float8", ""])
def test_unsafe_set_dtype_dtype(on: On, refuse: Refuse, dtype: str) -> None:
    s = on("dense")
    b = s.get_block("C")
    refuse("unsafe_set_dtype", "dtype", f"the type is {dtype!r}; number types are int8", s, lambda: s.unsafe_set_dtype(b, dtype))


def test_unsafe_set_dtype_dtype_2(refuse: Refuse) -> None:
    s = Schedule(parse(VECTORS.replace("float32", "bool").replace("B.vstore([vi * 4], A.vload([vi * 4], 4))", "B[vi] = A[vi]")))
    b = s.get_block("B")
    refuse("unsafe_set_dtype", "dtype", "B holds bool, which is no number type", s, lambda: s.unsafe_set_dtype(b, "int8"))


@pytest.mark.parametrize("name", ["two", "in_place"])
def test_unsafe_set_dtype_intermediate(on: On, refuse: Refuse, name: str) -> None:
    s = on("odd")
    b = s.get_block(name)
    message = f"block {name} does not write a single intermediate buffer"
    refuse("unsafe_set_dtype", "intermediate", message, s, lambda: s.unsafe_set_dtype(b, "float16"))
