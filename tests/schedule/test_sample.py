"""Test sample_categorical, sample_tile and sample_perfect_tile: draws, decisions, Params and constraints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.poly import Param, evaluate
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.primitives.sample import TILE_DOMAIN
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.support.errors import UserError

Apply = Callable[..., Schedule]


@T.prim_func
def row(A: T.Buffer((24,), "float32"), B: T.Buffer((24,), "float32")):
    for i in T.serial(24):
        with T.block("B"):
            vi = T.axis.spatial(24, i)
            B[vi] = A[vi] * 2.0


def tile(s: Schedule, perfect: bool = False, n: int = 3) -> list[int]:
    (loop,) = s.get_loops(s.get_block("B"))
    factors = s.sample_perfect_tile(loop, n) if perfect else s.sample_tile(loop, n)
    s.split(loop, [None, *factors])
    return [] if s.parametric else [int(f) for f in factors]


def test_the_seed_decides_the_draw() -> None:
    draws = [tile(Schedule(row, seed=seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert draws[0] == draws[1]
    assert len({tuple(d) for d in draws}) > 2


def test_draws_keep_the_waste_bound() -> None:
    for seed in range(40):
        a, b = tile(Schedule(row, seed=seed))
        assert -(-24 // (a * b)) * a * b <= 1.25 * 24 + 4
        assert a in TILE_DOMAIN and b in TILE_DOMAIN


def test_perfect_draws_divide() -> None:
    for seed in range(40):
        a, b = tile(Schedule(row, seed=seed), perfect=True)
        assert 24 % (a * b) == 0 and b <= 16


def test_decisions_are_recorded_and_replayed(apply: Apply) -> None:
    s = apply(row, lambda s: tile(s, perfect=True), [[3, 4]])
    assert s.trace.configuration() == (3, 4)
    s = apply(row, tile, [[5, 3]])
    assert s.trace.decisions() == ((5, 3),)


def test_a_decision_outside_the_domain_is_valid(apply: Apply) -> None:
    apply(row, lambda s: tile(s, n=2), [[17]])
    apply(row, lambda s: tile(s, perfect=True, n=2), [[24]])


def test_a_choice(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        chosen = s.sample_categorical([2, 8, 5], "width")
        s.split(s.get_loops(s.get_block("B"))[0], [None, chosen])

    s = apply(row, steps, [[8]])
    assert s.trace.configuration() == (8,)
    seen = set()
    for seed in range(20):
        s = Schedule(row, seed=seed)
        steps(s)
        seen |= set(s.trace.configuration())
    assert seen == {2, 5, 8}


def test_params_have_the_domains_and_the_constraints() -> None:
    s = Schedule(row, parametric=True)
    tile(s, perfect=True)
    assert [p.name for p in s.params] == ["tile1", "tile2"]
    assert s.params[0].domain == (1, 2, 3, 4, 6, 8, 12, 24)
    assert s.params[1].domain == (1, 2, 3, 4, 6, 8, 12)
    divides = [c for c in s.constraints if c.label == "divides"]
    assert [c.kind for c in divides] == ["eq0"]
    for a, b in [(2, 3), (5, 2), (24, 1), (1, 7)]:
        value = evaluate(divides[0].expr, dict(zip(s.params, (a, b), strict=True)))
        assert (value == 0) == (24 % (a * b) == 0)
    assert s.trace.decisions() == (None,)


def test_two_draws_of_one_number_are_two_handles() -> None:
    s = Schedule(row, decisions=[[4], [4]])
    a, b = s.sample_categorical([4]), s.sample_categorical([4])
    assert a is not b and a.name != b.name and int(a) == int(b) == 4


def test_params_of_one_name_are_two(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        (a,) = s.sample_tile(loop, 2, "t", [range(1, 30)])
        outer, _ = s.split(loop, [None, a])
        (b,) = s.sample_tile(outer, 2, "t", [range(1, 30)])
        s.split(outer, [None, b])

    apply(row, steps, [[4], [6]])
    s = Schedule(row, parametric=True)
    steps(s)
    assert isinstance(s.params[0], Param) and s.params[0] is not s.params[1]
    assert [p.name for p in s.params] == ["t1", "t1_2"], "a row as a dictionary has all values"


def test_concrete_and_symbolic_handles_say_what_they_are() -> None:
    s = Schedule(row, decisions=[np.array([2, 3]).tolist()])
    (loop,) = s.get_loops(s.get_block("B"))
    a, _ = s.sample_tile(loop, 3)
    assert repr(a) == "v0" and int(a) == 2


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16, np.array, np.longlong])
def test_integers_of_numpy_are_integers(apply: Apply, kind: Any) -> None:
    """Decisions, factors, configurations and domains of numpy integers give the same trace as ints."""

    def steps(number: Any) -> Callable[[Schedule], None]:
        def run(s: Schedule) -> None:
            (loop,) = s.get_loops(s.get_block("B"))
            (a,) = s.sample_tile(loop, number(2), "t", [[number(3), number(5)]], slack=number(4))
            outer, inner = s.split(loop, [None, a])
            s.split(outer, [number(4), number(2)])
            s.annotate(s.get_block("B"), "prefetch", number(7))
            s.unroll(inner, number(8))

        return run

    s = apply(row, steps(kind), [[kind(5)]])
    plain = apply(row, steps(int), [[5]])
    assert s.trace == plain.trace and structural.equal(s.func, plain.func)
    assert all(type(x) is int for x in s.trace.configuration())
    given = Schedule(row)
    given.sample_tile(given.get_loops(given.get_block("B"))[0], 2, decision=[kind(5)])
    assert given.trace.configuration() == (5,) and type(given.trace.configuration()[0]) is int


def test_arrays_are_lists_of_integers(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        chosen = s.sample_categorical(np.array([2, 3]))  # type: ignore[arg-type]
        _, inner = s.split(loop, [None, chosen])
        s.split(inner, np.array([2, 2]))  # type: ignore[arg-type]

    s = apply(row, steps, [np.array([3])])  # type: ignore[list-item]
    assert s.trace.instructions[-1].args[1] == ("factors", [2, 2])
    symbolic = Schedule(row, parametric=True)
    steps(symbolic)
    values = np.array([3], np.int32)
    assert structural.equal(concretize(symbolic.func, dict(zip(symbolic.params, values, strict=True))), s.func)
    assert symbolic.trace.with_configuration(values) == s.trace  # type: ignore[arg-type]
    json.dumps(symbolic.trace.with_configuration(values).to_json())  # type: ignore[arg-type]


def test_sampled_values_are_compared_by_number_and_not_while_a_space_is_derived() -> None:
    s = Schedule(row)
    a, b = (s.sample_categorical([4]) for _ in range(2))
    assert a > 3 and a >= 4 and a <= b and not a < b and 3 < a and not 5 <= a
    s = Schedule(row, parametric=True)
    v = s.sample_categorical([4, 8])
    for compare in (lambda: v > 4, lambda: v < 4, lambda: v >= 4, lambda: v <= 4, lambda: 4 < v):
        with pytest.raises(UserError, match=r"v0 cannot be compared with `[<>]=?` while a space is derived.*s.limit\(\[v0\], "):
            compare()
