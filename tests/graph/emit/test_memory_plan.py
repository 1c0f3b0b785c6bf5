"""Test memory planning: offsets, sharing of memory, lower bounds, and random lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.emit.memory_plan import Lifetime, MemoryPlan, plan_buffers, plan_memory
from tunesmith.runtime.arrays import aligned
from tunesmith.support.seeds import stream


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The maximum number of live bytes at a step, including padding: a lower bound of every plan."""
    changes = sorted([(t.first, aligned(t.nbytes)) for t in lifetimes] + [(t.last + 1, -aligned(t.nbytes)) for t in lifetimes])
    most = alive = 0
    for _, change in changes:
        alive += change
        most = max(most, alive)
    return most


def pick(rng: np.random.Generator, things: Sequence[Any]) -> Any:
    """A random element."""
    return things[int(rng.integers(len(things)))]


def overlaps(lifetimes: list[Lifetime], plan: MemoryPlan) -> list[tuple[int, int]]:
    """Pairs of tensors that overlap in time and in memory."""
    found = []
    for i, a in enumerate(lifetimes):
        for j, b in enumerate(lifetimes[:i]):
            disjoint_in_time = a.last < b.first or b.last < a.first
            disjoint = plan.offsets[i] + a.nbytes <= plan.offsets[j] or plan.offsets[j] + b.nbytes <= plan.offsets[i]
            if not disjoint_in_time and not disjoint:
                found.append((i, j))
    return found


def test_empty_plan_and_one_tensor() -> None:
    assert plan_memory([]) == MemoryPlan((), 0)
    assert plan_memory([Lifetime(100, 0, 3)]) == MemoryPlan((0,), 128)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(256, k, k + 1) for k in range(6)]
    plan = plan_memory(chain)
    assert plan.nbytes == 512
    assert plan.offsets[::2] == (plan.offsets[0],) * 3 and plan.offsets[1::2] == (plan.offsets[1],) * 3


def test_a_tensor_with_the_longest_lifetime_shares_no_memory() -> None:
    lives = [Lifetime(64, 0, 9), Lifetime(640, 1, 2), Lifetime(640, 3, 4)]
    plan = plan_memory(lives)
    assert plan.nbytes == 704
    assert plan.offsets[1] == plan.offsets[2]
    assert not overlaps(lives, plan)


def test_lifetimes_include_both_ends() -> None:
    assert plan_memory([Lifetime(64, 0, 1), Lifetime(64, 1, 2)]).nbytes == 128
    assert plan_memory([Lifetime(64, 0, 1), Lifetime(64, 2, 2)]).nbytes == 64


def test_the_smallest_gap_is_taken() -> None:
    # At step 5 there are two gaps, of 192 and 64 bytes, between three tensors that are live at all steps.
    lives = [Lifetime(4096, 0, 9), Lifetime(192, 0, 2), Lifetime(2048, 0, 9), Lifetime(64, 0, 2), Lifetime(1024, 0, 9)]
    plan = plan_memory([*lives, Lifetime(64, 5, 6)])
    assert plan.nbytes == live_bytes(lives)


def test_empty_tensors_need_no_memory() -> None:
    assert plan_memory([Lifetime(0, 0, 5), Lifetime(64, 0, 5), Lifetime(0, 2, 3)]).nbytes == 64


def test_live_bytes() -> None:
    assert live_bytes([]) == 0
    assert live_bytes([Lifetime(64, 0, 1), Lifetime(1, 1, 2), Lifetime(64, 2, 2)]) == 128


@pytest.mark.parametrize("seed", range(20))
def test_fuzz(seed: int) -> None:
    """Random lifetimes: no overlaps, aligned offsets, and at most 1.25 times the maximum of live bytes."""
    rng = stream(seed, "memory_plan")
    steps = int(rng.integers(2, 60 + 1))
    lives = []
    for _ in range(int(rng.integers(1, 120 + 1))):
        first = int(rng.integers(steps))
        size = pick(rng, [1, 64, 100, 4096, int(rng.integers(1, 10**6 + 1))])
        lives.append(Lifetime(size, first, min(steps - 1, first + pick(rng, [0, 1, 1, 2, int(rng.integers(steps))]))))
    plan = plan_memory(lives)
    assert not overlaps(lives, plan)
    assert all(offset % 64 == 0 and offset + t.nbytes <= plan.nbytes for offset, t in zip(plan.offsets, lives, strict=True))
    assert live_bytes(lives) <= plan.nbytes <= 1.25 * live_bytes(lives)
    assert plan == plan_memory(list(lives))


def test_memory_is_shared_between_blocks_of_a_network() -> None:
    """Blocks with a skip connection need memory for two tensors and the skip, for any number of blocks."""
    lives = []
    for block in range(30):
        start = 4 * block
        lives += [Lifetime(1 << 20, start, start + 4), Lifetime(1 << 22, start + 1, start + 2), Lifetime(1 << 20, start + 2, start + 3)]
    plan = plan_memory(lives)
    assert plan.nbytes == live_bytes(lives) < sum(t.nbytes for t in lives) / 15


@pytest.mark.parametrize("seed", range(40))
def test_buffers_of_a_device_are_shared_by_tensors_with_disjoint_lifetimes(seed: int) -> None:
    rng = stream(seed, "buffers")
    starts = rng.integers(0, 20, 30).tolist()
    lives = [Lifetime(int(rng.integers(0, 1000)), s, s + int(rng.integers(0, 6))) for s in starts]
    plan = plan_buffers(lives)
    for i, a in enumerate(lives):
        assert plan.sizes[plan.buffers[i]] >= a.nbytes
        for j, b in enumerate(lives[:i]):
            assert plan.buffers[i] != plan.buffers[j] or a.last < b.first or b.last < a.first
    assert sum(plan.sizes) <= sum(-(-life.nbytes // 64) * 64 for life in lives)


def test_buffers_of_a_chain() -> None:
    assert plan_buffers([Lifetime(100, 0, 1), Lifetime(300, 1, 2), Lifetime(50, 2, 3), Lifetime(200, 3, 4)]) == ((1, 0, 1, 0), [320, 128])
    assert plan_buffers([]) == ((), [])
