"""Test that blocks and accesses agree with a walk over all nodes, and are cached per block."""

from __future__ import annotations

import gc
import weakref

import pytest

from tunesmith.ir.analysis import access_regions
from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.visit import blocks_under, path_to_block, walk
from tunesmith.ops.workload import workload
from tunesmith.schedule.schedule import Schedule


@T.prim_func
def branches(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32")):
    for i in range(4):
        if i < 2:
            for j in range(4):
                with T.block("first"):
                    v, w = T.axis.remap("SS", [i, j])
                    B[v, w] = A[v, w] + 1.0
        else:
            for j in range(4):
                with T.block("second"):
                    v, w = T.axis.remap("SS", [i, j])
                    B[v, w] = B[v, w] * A[w, v]


FUNCTIONS = {"branches": branches, **{n: workload(n).func for n in ("softmax(m=4,n=8)", "conv2d(n=1,h=4,w=4,ci=2,co=8,kh=3,kw=3,pad=1)")}}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_blocks_and_accesses_are_those_of_a_walk(name: str) -> None:
    body = FUNCTIONS[name].body
    blocks = blocks_under(body)
    assert blocks == [n for n in walk(body) if type(n) is Block] != []
    for b in blocks:
        path = path_to_block(body, b.name)
        assert path is not None and path[0] is body and path[-1] is b
        found = [
            (n.buffer, n.indices)
            for part in (b.init, b.body)
            if part is not None
            for n in walk(part)
            if type(n) in (BufferLoad, BufferStore)
        ]
        assert [(a.buffer, a.indices) for a in accesses(b)] == found
        assert writes(b) == [a for a in accesses(b) if a.is_write]
        assert set(reads(b)) <= set(accesses(b)) - set(writes(b))
        accesses(b).clear()
        writes(b).clear()
        assert len(accesses(b)) == len(found) and writes(b)
    assert path_to_block(body, "none") is None


def test_cached_accesses_are_dropped_with_their_block() -> None:
    s = Schedule(workload("relu(shape=8)").func)
    block = s.block(s.get_block(s.blocks()[0].name))
    copy = block.with_(name="copy")
    assert accesses(copy) == accesses(block)
    gone = weakref.ref(copy)
    del copy
    gc.collect()
    assert gone() is None and block in access_regions._KNOWN


def test_the_blocks_of_a_schedule_follow_its_steps() -> None:
    s = Schedule(workload("conv2d(n=1,h=4,w=4,ci=2,co=8,kh=3,kw=3,pad=1)").func)
    before = s.blocks()
    s.blocks().clear()
    assert s.blocks() == before
    s.compute_inline(s.get_block("Pad"))
    assert [b.name for b in s.blocks()] == [b.name for b in before if b.name != "Pad"] == [b.name for b in blocks_under(s.func.body)]
