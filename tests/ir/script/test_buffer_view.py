"""Views: the indices of the buffer that an index of a view means."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import binary
from tunesmith.ir.poly import poly
from tunesmith.ir.script.buffer_view import BufferView, held


def combine(op: str, a: Any, b: Any) -> Any:
    return binary(op, poly(a), poly(b))


def test_regions_and_shapes() -> None:
    b = Buffer("B", (8, 16))
    region = BufferView(b, (poly(4),), (poly(2), poly(3)))
    assert region.place([poly(1)], combine) == [2, 4]
    flat = BufferView(b, (poly(128),), None)
    assert flat.place([poly(35)], combine) == [2, 3]
    square = BufferView(flat, (poly(4), poly(32)), None)
    assert square.place([poly(1), poly(3)], combine) == [2, 3]
    inner = BufferView(region, (poly(2),), (poly(1),))
    assert inner.place([poly(1)], combine) == [2, 5]
    assert held(inner) is held(b) is inner.buffer is b and inner.dtype == "float32"
    assert BufferView(Buffer("x", ()), (), ()).place([], combine) == []
