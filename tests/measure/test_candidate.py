from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.measure import candidate as module
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.candidate import BuildRequest, MeasureTask, NamedTrace, ParametricProgram, SketchCache, parse_function
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import BuildError, InternalError, RecordError, ScheduleError, ScriptError, UserError

TARGET = json.dumps(Target("llvm").to_json(facts=True))


def test_program_of_a_row_is_the_replay_of_its_trace(add_task: MeasureTask) -> None:
    cache = SketchCache()
    for index, sketch in enumerate(add_task.sketches):
        for tile in (4, 8, 16, 20):
            request = add_task.request((index, [tile]), TARGET)
            program = cache.program(request)
            replayed = replay(sketch.trace.with_configuration([tile]), add_task.func).func
            assert structural.difference(program, replayed) is None
            assert cache.broken_law(request, program) == ""


def test_law_violation_report_shows_position_program_and_trace(add_task: MeasureTask) -> None:
    cache = SketchCache()
    request = add_task.request((0, [8]), TARGET)
    other = cache.program(replace(request, row=(4,)))
    text = cache.broken_law(request, other)
    assert "instantiated with the row [8] differs from its trace" in text
    assert "i_0.extent: 15 != 8" in text and "def add(" in text and "decision=[8]" in text


def test_texts_are_parsed_once(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(module, "parse_function", lambda text: parsed.append(text) or parse_function(text))
    cache = SketchCache()
    for index, tile in ((0, 4), (0, 8), (1, 4), (1, 8)):
        # As received from another process: equal texts, distinct objects.
        cache.program(BuildRequest(**json.loads(json.dumps(request_fields(add_task, index, tile)))))
    assert len(parsed) == 1
    assert len(cache._sketches) == 2


def request_fields(task: MeasureTask, index: int, tile: int) -> dict[str, object]:
    request = task.request((index, [tile]), TARGET)
    return {"workload": request.workload, "trace": request.trace, "row": request.row, "target": request.target}


def test_least_recently_used_entry_is_evicted(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED", 2)
    cache = SketchCache()
    requests = [add_task.request((0, [4]), TARGET), add_task.request((1, [4]), TARGET)]
    requests.append(replace(requests[0], trace="[]", row=()))
    for i in (0, 1, 0, 2):
        cache.program(requests[i])
    assert [trace for _, trace in cache._sketches] == [requests[0].trace, "[]"]


@pytest.mark.parametrize("row", [(), (4, 4)])
def test_row_of_wrong_length_is_rejected(add_task: MeasureTask, row: tuple[int, ...]) -> None:
    request = replace(add_task.request((0, [4]), TARGET), row=row)
    with pytest.raises(BuildError, match=f"has {len(row)} values, but the sketch samples 1"):
        SketchCache().program(request)


def test_row_that_violates_a_constraint_is_rejected(add_task: MeasureTask) -> None:
    with pytest.raises(BuildError, match=r"the row \[5000\] violates the constraint \[waste\] of its sketch: .* is \d+, not <= 0"):
        SketchCache().program(add_task.request((0, [5000]), TARGET))


def test_invalid_sketch_texts(add_task: MeasureTask) -> None:
    good = add_task.request((0, [4]), TARGET)
    with pytest.raises(ScriptError):
        SketchCache().program(replace(good, workload="def f(: pass"))
    with pytest.raises(ScriptError, match="a workload must be a single function"):
        SketchCache().program(
            replace(good, workload="@T.ir_module\nclass Module:\n" + "\n".join("    " + x for x in good.workload.split("\n")))
        )
    with pytest.raises(RecordError, match="the trace of a candidate is not JSON"):
        SketchCache().program(replace(good, trace="[["))
    with pytest.raises(RecordError, match="'no_such', which this version of tunesmith does not have"):
        SketchCache().program(replace(good, trace='[["no_such", {}, []]]'))
    with pytest.raises(ScheduleError, match="there is no block 'D'"):
        SketchCache().program(replace(good, trace=good.trace.replace('"C"', '"D"')))


def test_task_texts(add_task: MeasureTask) -> None:
    assert structural.equal(parse_function(add_task.script), add_task.func)
    assert add_task.digest == structural.digest(add_task.func)
    assert [(p.name, p.written) for p in add_task.params] == [("A", False), ("B", False), ("C", True)]
    assert replace(add_task, tolerance=0.5).relative_tolerance == 0.5


def test_script_that_parses_to_another_program_is_an_internal_error(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "script", lambda func: add_task.script.replace("60", "64"))
    with pytest.raises(InternalError, match="the script of add reads back as another program, at "):
        replace(add_task).request((0, [4]), TARGET)


def test_sketch_names_are_unique(add_task: MeasureTask) -> None:
    sketch = add_task.sketches[0]
    with pytest.raises(UserError, match="tiled occurs twice"):
        replace(add_task, sketches=[sketch, NamedTrace("tiled", sketch.trace)])


@pytest.mark.parametrize("index", [-1, 2])
def test_unknown_sketch_index_is_rejected(add_task: MeasureTask, index: int) -> None:
    with pytest.raises(UserError, match=rf"refers to sketch {index}, but the task add\(60\) has 2"):
        add_task.request((index, [4]), TARGET)


# ---- parametric programs in requests ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FullSketch:
    """A sketch with its parametric program, as a search has it."""

    name: str
    trace: Trace
    program: ParametricProgram


def full(task: MeasureTask, tiles: Sequence[int] = (4, 8, 16, 20)) -> FullSketch:
    """The sketch `tiled` of `add_task`."""
    s = Schedule(task.func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    _, inner = s.split(i, [None, *s.sample_tile(i, 2, "i", domains=[tuple(tiles)])])
    s.vectorize(inner)
    return FullSketch("tiled", s.trace, ParametricProgram(s.func, tuple(s.params), tuple(s.constraints)))


def test_a_parametric_program_saves_the_replay_of_the_trace(add_task: MeasureTask, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = [SketchCache().program(add_task.request((0, [tile]), TARGET)) for tile in (4, 16)]
    task = replace(add_task, sketches=[full(add_task)])
    requests = [task.request((0, [tile]), TARGET) for tile in (4, 16)]
    assert requests[0].sketch and requests[0].trace == add_task.request((0, [4]), TARGET).trace
    cache = SketchCache()
    assert [cache.broken_law(r, cache.program(r)) for r in requests] == ["", ""]
    monkeypatch.setattr(module, "apply_instruction", lambda *_: pytest.fail("the trace is replayed"))
    cache = SketchCache()
    for request, expected in zip(requests, replayed, strict=True):
        assert structural.difference(cache.program(request), expected) is None


def test_a_parametric_program_is_pickled_once_and_only_where_there_is_one(add_task: MeasureTask) -> None:
    task = replace(add_task, sketches=[full(add_task), add_task.sketches[1]])
    first, second, trace_only = (task.request(c, TARGET) for c in ((0, [4]), (0, [8]), (1, [4])))
    assert first.sketch is second.sketch and trace_only.sketch == b""
    assert "sketch" not in repr(first)


def test_constraints_of_a_pickled_program_are_checked(add_task: MeasureTask) -> None:
    task = replace(add_task, sketches=[full(add_task)])
    with pytest.raises(BuildError, match=r"the row \[5000\] violates the constraint \[waste\] of its sketch"):
        SketchCache().program(task.request((0, [5000]), TARGET))
    with pytest.raises(BuildError, match="has 2 values, but the sketch samples 1"):
        SketchCache().program(task.request((0, [4, 4]), TARGET))


def test_a_parametric_program_of_another_trace_breaks_the_law(add_task: MeasureTask) -> None:
    """The program of a sketch with a parallel loop, sent with the trace of one without."""
    s = Schedule(add_task.func, parametric=True)
    (i,) = s.get_loops(s.get_block("C"))
    outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", domains=[(4, 8)])])
    s.parallel(outer)
    wrong = ParametricProgram(s.func, tuple(s.params), tuple(s.constraints))
    task = replace(add_task, sketches=[replace(full(add_task), program=wrong)])
    request, cache = task.request((0, [8]), TARGET), SketchCache()
    assert "instantiated with the row [8] differs from its trace" in cache.broken_law(request, cache.program(request))
    (found,) = InProcessBuilder().build([replace(request, check_law=True)])
    assert "differs from its trace" in found.broken_law


def test_a_version_is_replayed_from_its_trace(add_task: MeasureTask) -> None:
    """Its sizes are dynamic, those of the parametric program are not."""
    request = replace(add_task, sketches=[full(add_task)]).request((0, [4]), TARGET)
    version = replace(request, version=request.workload.replace("add", "version")).of_version()
    assert version.sketch == b"" and version.trace == request.trace and SketchCache().program(version).name == "version"
