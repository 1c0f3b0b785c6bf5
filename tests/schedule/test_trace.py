"""Test traces: JSON, Python source, decisions, replay, and refusals of malformed traces and of traces of other workloads."""

from __future__ import annotations

import json

import pytest

from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.schedule.trace import Instruction, Trace
from tunesmith.support.errors import RecordError, ScheduleError, ScriptError


@T.prim_func
def grid(A: T.Buffer((8, 6), "float32"), B: T.Buffer((8, 6), "float32")):
    for i, j in T.grid(8, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1.0


@T.prim_func
def row(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + 1.0


def tiled(parametric: bool = False) -> Schedule:
    s = Schedule(grid, parametric=parametric, decisions=[[2], [3, 2]])
    b = s.get_block("B")
    i, j = s.get_loops(b)
    i_0, i_1 = s.split(i, [None, *s.sample_tile(i, 2, "i")])
    j_0, *rest = s.split(j, [None, *s.sample_tile(j, 3, "j")])
    s.reorder([i_0, j_0, i_1, *rest])
    s.annotate(b, "pack_constant", "A")
    return s


def test_as_python_reads_like_the_schedule() -> None:
    assert tiled().trace.as_python().split("\n") == [
        "b0 = sch.get_block('B')",
        "l0, l1 = sch.get_loops(b0)",
        "v0, = sch.sample_tile(l0, n=2, name='i', decision=[2])",
        "l2, l3 = sch.split(l0, factors=[None, v0])",
        "v1, v2 = sch.sample_tile(l1, n=3, name='j', decision=[3, 2])",
        "l4, l5, l6 = sch.split(l1, factors=[None, v1, v2])",
        "sch.reorder([l2, l4, l3, l5, l6])",
        "sch.annotate(b0, key='pack_constant', value='A')",
    ]
    assert str(tiled().trace) == tiled().trace.as_python()


def test_json_is_plain_data() -> None:
    data = tiled().trace.to_json()
    assert json.loads(json.dumps(data)) == data
    assert data[3] == ["split", {"loop": {"rv": "l0"}, "factors": [None, {"rv": "v0"}]}, ["l2", "l3"]]
    assert data[2] == ["sample_tile", {"loop": {"rv": "l0"}, "n": 2, "name": "i"}, ["v0"], [2]]


def test_rows_of_a_symbolic_trace() -> None:
    symbolic = tiled(parametric=True).trace
    assert symbolic.decisions() == (None, None)
    with pytest.raises(RecordError, match="no decisions; use with_configuration"):
        symbolic.configuration()
    made = symbolic.with_configuration([2, 3, 2])
    assert made.configuration() == (2, 3, 2) and made == tiled().trace
    assert structural.equal(replay(made, grid).func, tiled().func)
    with pytest.raises(RecordError, match="has 2 values, and the trace samples more"):
        symbolic.with_configuration([1, 2])
    with pytest.raises(RecordError, match="1 values more than the trace samples"):
        symbolic.with_configuration([1, 2, 3, 4])


def test_replay_of_one_function_of_a_module() -> None:
    module = IRModule({"f": grid, "g": row})
    s = replay(tiled().trace, module, func_name="f")
    assert structural.equal(s.mod["f"], tiled().func) and s.mod["g"] is module["g"]
    with pytest.raises(ScriptError, match="the module has the functions f, g; select one with func_name="):
        replay(tiled().trace, module)


def test_a_replayed_schedule_can_be_continued() -> None:
    s = replay(tiled().trace, grid)
    s.parallel(s.get_loops(s.get_block("B"))[0])
    again = replay(Trace.from_json(s.trace.to_json()), grid)
    assert structural.equal(again.func, s.func)


def test_simplified_drops_unused_steps() -> None:
    s = Schedule(grid)
    b = s.get_block("B")
    i, _ = s.get_loops(b)
    s.get_consumers(b)
    s.get_block("B")
    s.get_output_blocks()
    s.split(i, [None, 2])
    assert [x.kind for x in s.trace.simplified().instructions] == ["get_block", "get_loops", "split"]


def test_a_simplified_trace_replays() -> None:
    s = Schedule(grid)
    b = s.get_block("B")
    s.get_loops(b)
    i, j = s.get_loops(b)
    i_0, i_1 = s.split(i, [None, 2])
    j_0, j_1 = s.split(j, [None, 3])
    s.reorder([i_0, j_0, i_1, j_1])
    assert structural.equal(replay(s.trace.simplified(), grid).func, s.func)


def test_a_refused_step_leaves_no_gap() -> None:
    s = Schedule(grid)
    i, j = s.get_loops(s.get_block("B"))
    with pytest.raises(ScheduleError, match="waste"):
        s.sample_tile(i, 2, waste=0.0, slack=0, decision=[7])
    (a,) = s.sample_tile(i, 2, decision=[2])
    (b,) = s.sample_tile(j, 2, decision=[3])
    s.split(i, [None, a])
    s.split(j, [None, b])
    assert structural.equal(replay(s.trace, grid).func, s.func)


# ---- invalid records


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"kind": "split"}, "a trace is a list of instructions, got dict"),
        ("split", "got str"),
        ([["split", {}]], "instruction 0 of the trace is not [kind, args, outputs(, decision)]"),
        ([["get_block", {"name": "B"}, ["b0"]], ["split", [], []]], "instruction 1"),
        ([["split", {}, [1]]], "instruction 0"),
        ([["sample_tile", {}, ["v0"], [1.5]]], "instruction 0"),
        ([["sample_tile", {}, ["v0"], 4]], "instruction 0"),
        ([[7, {}, []]], "instruction 0"),
    ],
)
def test_malformed_traces(data: object, what: str) -> None:
    with pytest.raises(RecordError) as caught:
        Trace.from_json(data)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ([["__import__", {"name": "os"}, []]], "the trace uses the primitive '__import__', which this version of tunesmith does not have"),
        ([["split", {"loop": {"rv": "l0"}}, []]], "the trace uses {'rv': 'l0'}, which no earlier step defined"),
        ([["get_block", {"block": "B"}, ["b0"]]], "get_block has no argument ['block']; arguments are name"),
        ([["get_block", {"name": "B"}, ["b0", "b1"]]], "get_block returned 1 results, the trace recorded 2"),
        ([["get_block", {"name": "B"}, ["b0"]], ["get_loops", {"block": {"rv": "b0"}}, ["l0"]]], "belongs to another workload"),
    ],
)
def test_traces_that_do_not_fit(steps: object, what: str) -> None:
    with pytest.raises(RecordError) as caught:
        replay(Trace.from_json(steps), grid)
    assert what in str(caught.value)


def test_a_trace_of_another_workload_is_refused_by_its_steps() -> None:
    with pytest.raises((RecordError, ScheduleError)):
        replay(tiled().trace, row)


# ---- the table of primitives


def test_every_primitive_is_a_method_and_names_are_stable() -> None:
    """Names are the wire format of traces: without a name, old logs are unreadable."""
    for name, p in PRIMITIVES.items():
        assert getattr(Schedule, name) is p and p.name == name
    once = """annotate cache_read cache_reduction cache_write compute_at compute_inline decompose_reduction fuse get_block
        get_child_blocks get_consumers get_loops get_output_blocks get_producers parallel reorder reverse_compute_at
        reverse_compute_inline rfactor sample_categorical sample_perfect_tile sample_tile set_scope split unannotate unroll vectorize"""
    assert set(once.split()) <= set(PRIMITIVES)


def test_instructions_without_their_defaults() -> None:
    s = Schedule(grid)
    loop = s.get_loops(s.get_block("B"))[0]
    s.sample_tile(loop, n=2, name="tile", waste=0.25, decision=[2])
    assert s.trace.instructions[-1] == Instruction("sample_tile", (("loop", {"rv": "l0"}), ("n", 2)), ("v0",), (2,))


def test_arguments_that_are_not_data_are_refused() -> None:
    s = Schedule(grid)
    with pytest.raises(ScheduleError, match="name is {'name': 'B'}; its type is str"):
        s.get_block({"name": "B"})  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the signature is get_block"):
        s.get_block()  # type: ignore[call-arg]
    assert not s.trace.instructions
    with pytest.raises(ScheduleError, match="value is {'at': 1}; an integer is needed"):
        s.annotate(s.get_block("B"), "prefetch", {"at": 1})  # type: ignore[arg-type]
