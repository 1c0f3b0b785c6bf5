"""Test queries (get_block, get_loops, get_producers, ...), handles and annotations."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable

import pytest

from tunesmith.ir.poly import poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import annotation
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.support.errors import ScheduleError, UserError

Apply = Callable[..., Schedule]


@T.prim_func
def two(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32"), D: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
    for i in T.serial(4):
        for j in T.serial(4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        for j in T.serial(4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(4, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                D[vi] = 0.0
            D[vi] = D[vi] + B[vi, vj]


def names(handles: list[object]) -> list[str]:
    return [h.block for h in handles]  # type: ignore[attr-defined]


def test_queries(apply: Apply) -> None:
    found = {}

    def steps(s: Schedule) -> None:
        b = s.get_block("B")
        loops = s.get_loops(b)
        found["loops"] = [x.var.name for x in loops]
        found["in i"] = names(s.get_child_blocks(loops[0]))
        found["in j"] = names(s.get_child_blocks(loops[1]))
        found["producers"] = names(s.get_producers(s.get_block("D")))
        found["first"] = names(s.get_producers(b))
        found["consumers"] = names(s.get_consumers(b))
        found["last"] = names(s.get_consumers(s.get_block("D")))
        found["outputs"] = names(s.get_output_blocks())

    s = apply(two, steps)
    assert found == {
        "loops": ["i", "j"],
        "in i": ["B", "C"],
        "in j": ["B"],
        "producers": ["B"],
        "first": [],
        "consumers": ["C", "D"],
        "last": [],
        "outputs": ["C", "D"],
    }
    assert s.func is two


def test_a_handle_stays_valid_after_other_steps(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("D")
        i, j = s.get_loops(b)
        s.cache_write(b, "workspace")
        s.compute_inline(s.get_block("B"))
        s.reorder([j, i])
        s.split(i, [None, 2])
        s.unroll(j)

    apply(two, steps)


@pytest.mark.parametrize(("key", "value"), [("pack_constant", "W"), ("prefetch", 64), ("prefetch_operand", "W"), ("prefetch_ahead", 1)])
def test_annotations_of_blocks_and_loops(apply: Apply, key: str, value: int | str) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("D")
        s.annotate(b, key, value)
        s.annotate(s.get_loops(b)[0], key, value)

    s = apply(two, steps)
    wanted = value if isinstance(value, str) else poly(value)
    assert annotation(s.block("D"), key) == wanted
    assert annotation(s.loops_of("D")[0], key) == wanted

    def and_back(s: Schedule) -> None:
        steps(s)
        b = s.get_block("D")
        s.unannotate(b, key)
        s.unannotate(s.get_loops(b)[0], key)

    s = apply(two, and_back)
    assert not s.block("D").annotations and not s.loops_of("D")[0].annotations


def test_an_annotation_may_be_sampled(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        s.annotate(s.get_block("D"), "prefetch", s.sample_categorical([4, 16], "distance"))

    assert annotation(apply(two, steps, [[16]]).block("D"), "prefetch") == poly(16)


def test_a_handle_of_another_kind_is_named() -> None:
    s = Schedule(two)
    block = s.get_block("B")
    loop = s.get_loops(block)[0]
    with pytest.raises(ScheduleError, match=r"a block handle is needed, got the loop handle l0"):
        s.get_loops(loop)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"a loop handle is needed, got the block handle b0"):
        s.get_child_blocks(block)  # type: ignore[arg-type]


def test_handles_of_another_schedule_are_refused() -> None:
    """Two schedules of one function share its loop variables, but each has its own trace and handle names."""
    other, s = Schedule(two), Schedule(two)
    block = other.get_block("D")
    loops = other.get_loops(block)
    own = s.get_loops(s.get_block("D"))
    factor = other.sample_categorical([2, 4], "factor")
    for step in (
        lambda: s.parallel(loops[0]),
        lambda: s.get_loops(block),
        lambda: s.reorder([own[1], loops[0]]),
        lambda: s.split(own[0], [None, factor]),
        lambda: s.limit([loops[0]], 8, "small"),
    ):
        with pytest.raises(ScheduleError, match=r"is a handle of another schedule; .* of its own schedule"):
            step()
    assert [i.kind for i in s.trace.instructions] == ["get_block", "get_loops"]
    assert s.func is two or s.func.body is two.body
    again = replay(other.trace, two)
    again.parallel(again.get_loops(again.get_block("D"))[0])
    with pytest.raises(ScheduleError, match="another schedule"):
        again.parallel(loops[0])


def test_the_error_names_an_unknown_keyword() -> None:
    s = Schedule(two)
    loop = s.get_loops(s.get_block("B"))[0]
    with pytest.raises(ScheduleError) as caught:
        s.split(loop, factor=16)  # type: ignore[call-arg]
    shown = str(caught.value)
    assert "there is no argument 'factor'; did you mean 'factors'?" in shown
    assert "the signature is split(loop: LoopRV, factors: Sequence[IntRV | int | None])" in shown and "ScheduleState" not in shown
    with pytest.raises(ScheduleError, match=r"no argument 'zzz'; the signature is vectorize\(loop: LoopRV, max_lanes: int = 512\)"):
        s.vectorize(loop, zzz=1)  # type: ignore[call-arg]
    with pytest.raises(ScheduleError, match=r"missing a required argument: 'factors'; the signature is split\(loop: LoopRV"):
        s.split(loop)  # type: ignore[call-arg]


def test_refusals_of_vectorize_suggest_a_step() -> None:
    s = Schedule(two)
    i, j = s.get_loops(s.get_block("D"))
    with pytest.raises(ScheduleError, match="initialises and reduces over loop j; use decompose_reduction first"):
        s.vectorize(j)
    s.bind(j, "threadIdx.x")
    with pytest.raises(ScheduleError, match="loop i must contain blocks in its serial loops, and contains loop j, .*: use reorder"):
        s.vectorize(i)
    with pytest.raises(ScheduleError, match="and contains several statements"):
        s.vectorize(s.get_loops(s.get_block("B"))[0])


def test_a_sampled_value_has_no_number_while_sizes_are_open() -> None:
    for parametric in (False, True):
        s = Schedule(two, parametric=parametric)
        (v,) = s.sample_tile(s.get_loops(s.get_block("B"))[0], 2, "tile", [(2, 4)])
        if parametric:
            with pytest.raises(UserError, match=r"the sampled value v\d has no number while sizes are open"):
                int(v)
        else:
            assert int(v) in (2, 4)


def test_the_help_of_a_method_is_that_of_the_primitive() -> None:
    s = Schedule(two)
    assert list(inspect.signature(s.split).parameters) == ["loop", "factors"]
    assert list(inspect.signature(Schedule.split).parameters) == ["s", "loop", "factors"]
    assert inspect.ismethod(s.split) and s.split.__name__ == "split" and s.split.__self__ is s
    shown = pydoc.render_doc(s.split, renderer=pydoc.plaintext)
    assert "\nsplit(loop: 'LoopRV', factors:" in shown and "Split `loop` into nested loops" in shown
    assert "partial" not in shown and "Primitive" not in shown
