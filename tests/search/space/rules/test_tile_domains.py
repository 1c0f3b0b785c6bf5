"""Numbers of columns of register tiles."""

from __future__ import annotations

import pytest

from tunesmith.ir.visit import blocks_under
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules.block_classes import is_contraction, vector_axis
from tunesmith.search.space.rules.tile_domains import vector_widths


def widths(text: str) -> tuple[int, ...]:
    main = next(b for b in blocks_under(workload(text).func.body) if is_contraction(b))
    axis = vector_axis(main)
    assert axis is not None
    return vector_widths(main, axis, 16, 32)


@pytest.mark.parametrize(
    ("groups", "each", "expected"),
    [
        (1, 40, (16, 32, 48, 64, 80, 96)),
        (2, 64, (16, 32, 64)),
        (2, 16, (16,)),
        (2, 40, (8, 10, 20, 40)),
        (3, 10, (10,)),
        (2, 17, (17,)),
        (2, 97, (16, 32, 48, 64, 80, 96)),
        (8, 4, (16, 32, 48, 64, 80, 96)),
    ],
)
def test_tiles_read_the_channels_of_one_group(groups: int, each: int, expected: tuple[int, ...]) -> None:
    assert widths(f"conv2d(n=1,h=8,w=8,ci={8 * groups},co={groups * each},kh=3,kw=3,groups={groups})") == expected
