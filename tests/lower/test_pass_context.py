"""pass_context: levels, options, required and disabled passes; contexts nest, belong to a thread, and survive exceptions."""

from __future__ import annotations

import dataclasses
import gc
import threading
from contextvars import copy_context
from typing import Any

import pytest

from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.instrument import Instrument
from tunesmith.lower.pass_context import PassContext, exactly, unobserved
from tunesmith.lower.pass_infra import Pipeline, function_pass
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.ops.workload import workload
from tunesmith.support.errors import UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


class Names(Instrument):
    """Collects the names of passes."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def after(self, name: str, before: Any, after: Any, seconds: float) -> None:
        self.found.append(name)


def ran(pipeline: Pipeline = CPU, **context: Any) -> list[str]:
    """The passes that run in a context."""
    names = Names()
    with PassContext(**context, instruments=[names]):
        pipeline(workload("matmul(m=9,n=8,k=7)").func, TARGET)
    return names.found


def test_levels_leave_out_passes() -> None:
    assert ran() == ran(level=2) == ran(level=3) == list(CPU.names)
    needed = [p.name for p in CPU if p.needed_by]
    assert ran(level=0) == needed and "lower_blocks" in needed and "vectorize_loops" in needed
    first = ran(level=1)
    assert first.count("simplify") == 3 and "version_loops" not in first and set(needed) < set(first)
    assert set(ran(level=0, required=["version_loops"])) == {*needed, "version_loops"}


def test_a_pass_of_level_3_runs_on_request() -> None:
    seen: list[int] = []

    @function_pass(requires="SCHEDULED", level=3)
    def only_on_request(func: PrimFunc, target: Target, *, number: int = 1) -> PrimFunc:
        seen.append(number)
        return func

    pipeline = only_on_request + CPU
    ran(pipeline)
    assert not seen
    ran(pipeline, level=3)
    ran(pipeline, required=["only_on_request"], options={"only_on_request": {"number": 5}})
    assert seen == [1, 5]


def test_disabled_passes_are_left_out_everywhere() -> None:
    assert ran(disabled=["simplify"]) == [n for n in CPU.names if n != "simplify"]
    assert ran(Pipeline(lower_blocks), disabled=["simplify"]) == ["lower_blocks"]


def test_options_replace_those_of_the_pipeline() -> None:
    seen: list[tuple[int, bool]] = []

    @function_pass(requires="SCHEDULED")
    def numbered(func: PrimFunc, target: Target, *, number: int = 1, exact: bool = False) -> PrimFunc:
        seen.append((number, exact))
        return func

    pipeline = Pipeline(numbered, numbered.with_options(number=2, exact=True))
    ran(pipeline, options={"numbered": {"number": 3}})
    assert seen == [(3, False), (3, True)]


def test_contexts_nest() -> None:
    outer, inner = Names(), Names()
    a = PassContext(
        level=1, options={"version_loops": {"most": 2, "rests": 3}}, disabled=["simplify"], required=["unswitch_loops"], instruments=[outer]
    )
    b = PassContext(
        options={"version_loops": {"most": 4}, "forward_stores": {"most": 1}},
        required=["simplify"],
        disabled=["unswitch_loops"],
        instruments=[inner, outer],
    )
    with a:
        with b as found:
            assert PassContext.current() is found
            assert found.level == 1 and found.options == {"forward_stores": {"most": 1}, "version_loops": {"most": 4, "rests": 3}}
            assert found.required == {"simplify"} and found.disabled == {"unswitch_loops"}
            assert found.instruments == (outer, inner)
            with PassContext(level=2), a:  # an object may be entered again
                assert PassContext.current().level == 1 and PassContext.current().disabled == {"simplify"}
        assert PassContext.current().options == {"version_loops": {"most": 2, "rests": 3}}
    assert PassContext.current() == PassContext(level=2)


def test_a_context_is_a_value() -> None:
    a, b = [PassContext(level=1, options={"version_loops": {"most": 2}}, disabled=["simplify"]) for _ in range(2)]
    assert a == b and hash(a) == hash(b)
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.level = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        a.options["version_loops"]["most"] = 3  # type: ignore[index]
    given = {"version_loops": {"most": 2}}
    c = PassContext(options=given)
    given["version_loops"]["most"] = 9
    assert c.options == {"version_loops": {"most": 2}}


def test_new_threads_start_without_a_context() -> None:
    found: list[int | None] = []

    def look() -> None:
        found.append(PassContext.current().level)
        with PassContext(level=0):
            found.append(PassContext.current().level)

    with PassContext(level=1):
        for thread in (threading.Thread(target=look), threading.Thread(target=copy_context().run, args=(look,))):
            thread.start()
            thread.join()
        assert PassContext.current().level == 1
    assert found == [2, 0, 1, 0]


def test_a_context_that_ends_elsewhere_is_refused() -> None:
    context = PassContext(level=1)
    errors: list[str] = []

    def leave() -> None:
        try:
            context.__exit__(None, None, None)
        except UserError as error:
            errors.append(str(error))

    with context:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "ends in another thread or task than it was entered in" in errors[0]


def test_an_exception_inside_a_pass_leaves_the_context() -> None:
    @function_pass(requires="SCHEDULED")
    def fails(func: PrimFunc, target: Target) -> PrimFunc:
        with PassContext(level=0):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ran(fails + CPU, level=1)
    assert PassContext.current().level == 2
    assert ran() == list(CPU.names)


def test_contexts_in_place_of_others() -> None:
    names = Names()
    func = workload("relu(shape=8)").func
    with PassContext(level=1, instruments=[names]):
        with unobserved():
            CPU(func, TARGET)
            assert PassContext.current().level == 1
        with exactly(PassContext(level=0)):
            assert PassContext.current().level == 0
        assert not names.found and PassContext.current().level == 1


# ---- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": 4}, "level=4: the level of a PassContext is an integer from 0 to 3"),
        ({"level": True}, "level=True: the level of a PassContext"),
        ({"disabled": ["simplfy"]}, "there is no pass 'simplfy'. Did you mean 'simplify'"),
        ({"required": ["lower.clip_loops"]}, "'lower.clip_loops'. Since version 0.2 it is 'tighten_loop_bounds'"),
        ({"disabled": ["convert_layouts"]}, "there is no pass 'convert_layouts'. Did you mean 'convert_layout'"),
        ({"disabled": "simplify"}, r"disabled='simplify': give a list of names of passes, such as \['simplify'\]"),
        ({"required": 3}, "required=3: give a list of names of passes"),
        ({"required": [None]}, "there is no pass None. `tunesmith opt --list` lists the passes"),
        ({"disabled": [lower_blocks]}, "disabled has the pass 'lower_blocks' itself: give its name"),
        ({"disabled": ["simplify"], "required": ["simplify"]}, "the pass 'simplify' is both required and disabled: name it once"),
        ({"disabled": ["flatten_buffers"]}, "'flatten_buffers' cannot be disabled: without it these do not work: .* that need stage FLAT"),
        (
            {"disabled": ["legalise"]},
            "'legalise' cannot be disabled: without it these do not work: executors, which call compiled functions",
        ),
        ({"disabled": ["insert_barriers"]}, "'insert_barriers' cannot be disabled: .* kernels whose threads share memory"),
        ({"options": {"version_loops": {"mst": 1}}}, "has no option 'mst'; it has most, rests. Did you mean 'most'"),
        ({"options": {"version_loops": {"most": "x"}}}, "the option 'most' of the pass 'version_loops' is of type int, got 'x'"),
        ({"options": {"simplify": {"most": 1}}}, "the pass 'simplify' has no option 'most'; it has none"),
        ({"options": {"simplfy": {}}}, "there is no pass 'simplfy'"),
        ({"options": {"simplify": {1: 2}}}, "the name of an option is a text, not 1"),
        ({"options": ["simplify"]}, "options=.*: give a mapping such as"),
        ({"options": {"version_loops": 3}}, "options of the pass 'version_loops': give a mapping from options to values, got 3"),
        ({"instruments": [3]}, "3 is no instrument: derive its class from tunesmith.instruments.Instrument"),
        ({"instruments": [Names]}, r"Names is the class of an instrument: pass an object, Names\(...\)"),
        ({"instruments": "time"}, "instruments='time': give a list of instruments"),
        ({"instruments": Names()}, "instruments=.*: give a list of instruments"),
    ],
)
def test_refusals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PassContext(**fields)


def test_a_pass_that_one_pipeline_needs_is_refused_there() -> None:
    func = workload("relu(shape=8)").func
    with PassContext(disabled=["compact_local_buffers"]):
        CPU(func, TARGET)
        with pytest.raises(
            UserError, match="'compact_local_buffers' cannot be disabled: without it these do not work: verify_thread_access"
        ):
            GPU(func, Target("cuda -arch=sm_90"))


def test_names_of_own_passes_are_known_while_they_exist() -> None:
    def plain(func: PrimFunc, target: Target, *, share: float = 0.5) -> PrimFunc:
        return func

    own = [function_pass(requires="SCHEDULED")(plain), function_pass(requires="FLAT", needed_by="the test")(plain)]
    assert PassContext(disabled=["plain"], options={"plain": {"share": 1}}).options == {"plain": {"share": 1.0}}
    del own[0]
    gc.collect()
    with pytest.raises(UserError, match="the pass 'plain' cannot be disabled: without it these do not work: the test"):
        PassContext(disabled=["plain"])
    own.clear()
    gc.collect()
    with pytest.raises(UserError, match="there is no pass 'plain'"):
        PassContext(disabled=["plain"])


# ---- changes as data -----------------------------------------------------------------------------------------------------


def test_changes_are_those_of_the_pipeline() -> None:
    assert PassContext.current().changes(CPU) == {} == PassContext(disabled=["convert_layout"]).changes(CPU)
    context = PassContext(level=1, disabled=["simplify"], options={"version_loops": {"most": 8}, "fuse_operators": {"most": 1}})
    changes = context.changes(CPU)
    assert changes["without"] == sorted({p.name for p in CPU if not p.needed_by and (p.level > 1 or p.name == "simplify")})
    assert context.changes(GRAPH)["without"][0] == "channels_into_width" and "options" not in changes  # version_loops does not run
    own = dict(CPU.passes[CPU.names.index("version_loops")].defaults)
    assert PassContext(options={"version_loops": own}).changes(CPU) == {}
    assert PassContext(options={"version_loops": {"most": 8}}).changes(CPU) == {"options": {"version_loops": {"most": 8}}}


@pytest.mark.parametrize(
    "fields", [{}, {"level": 0}, {"level": 1, "options": {"forward_stores": {"most": 2}}, "required": ["forward_stores"]}]
)
def test_changes_restore_the_context(fields: dict[str, Any]) -> None:
    context = PassContext(**fields)
    with exactly(context):
        changes = PassContext.current().changes(CPU)
    restored = PassContext.of_changes(changes)
    assert restored.changes(CPU) == changes
    func = workload("matmul(m=9,n=8,k=7)").func
    with exactly(context):
        expected = str(CPU(func, TARGET))
    with exactly(restored):
        assert str(CPU(func, TARGET)) == expected
