"""Check a search rule: its schedules must be distinct, repeatable, and keep what the function computes.

    def test_whole_rows():
        check_rule(sketches, workload("relu(shape=6x40)").func, Target("llvm"))

Programs are run by the interpreter, those of GPUs after the passes of their backend, so functions are small.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.codegen.params import param_specs
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.space.sketch import Sketch, make_sketch
from tunesmith.support.errors import ScheduleError, TunesmithError
from tunesmith.support.seeds import stream
from tunesmith.testing.array_agreement import check_arrays


def check_rule(rule: Rule, func: PrimFunc, target: Target, rtol: float = 1e-4, atol: float = 1e-5) -> list[Sketch]:
    """Check the schedules of a rule that applies to a function; returns the sketches with admissible rows.

    Schedules that a primitive refuses, or without admissible rows, are left out, as in a search.

    Args:
        rule: the rule.
        func: an unscheduled function with static sizes.
        target: the target.
        rtol: relative tolerance of the results of one random row of each sketch.
        atol: absolute tolerance.
    Raises:
        AssertionError: a requirement is broken; the message names the sketch.
    """
    before = script(func)
    named = _named(rule(func, target))
    names = [name for name, _ in named]
    assert names, f"the rule gives no schedule for {func.name}"
    repeated = sorted({name for name in names if names.count(name) > 1})
    assert not repeated, f"several schedules have the name {', '.join(repeated)}: names are keys of records"
    again = [name for name, _ in _named(rule(func, target))]
    assert again == names, f"the rule gives the schedules {names} for {func.name}, and {again} when it is called again"
    sketches = [sketch for name, schedule in named if (sketch := _sketch(name, func, schedule)) is not None]
    assert script(func) == before, f"the rule, or one of its schedules, modified the function {func.name}"
    assert sketches, f"every schedule of the rule is refused for {func.name}, or has no admissible row"
    steps: dict[str, str] = {}
    for sketch in sketches:
        other = steps.setdefault(sketch.trace.as_python(), sketch.name)
        assert other == sketch.name, f"the sketches {other!r} and {sketch.name!r} have the same steps: a search measures candidates twice"
        _check_program(sketch, func, target, rtol, atol)
    return sketches


def _named(found: object) -> list[tuple[str, Callable[[Schedule], None]]]:
    assert isinstance(found, list), f"a rule returns a list of pairs, got a {type(found).__name__}"
    for pair in found:
        good = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and callable(pair[1])
        assert good, f"a rule returns pairs of a name and a function of the schedule, got {pair!r}"
    return found


def _sketch(name: str, func: PrimFunc, schedule: Callable[[Schedule], None]) -> Sketch | None:
    """The sketch of a schedule, which is run twice; None if it is refused, or has no admissible row."""
    made: list[Sketch | None] = []
    for _ in range(2):
        try:
            sketch = make_sketch(name, func, schedule)
            sketch.space  # noqa: B018  raises if no row is admissible
            made.append(sketch)
        except ScheduleError:
            made.append(None)
    first, second = made
    steps = [None if s is None else s.trace.as_python() for s in made]
    assert steps[0] == steps[1], f"the schedule {name!r} takes other steps when it is run again: {steps[1]}, before {steps[0]}"
    return first and second


def _check_program(sketch: Sketch, func: PrimFunc, target: Target, rtol: float, atol: float) -> None:
    """Check that a random row gives a valid program, which computes what the function computes."""
    row = tuple([int(x) for x in sketch.space.sample(1, stream(0, "rule conformance"))[0]])
    what = f"the sketch {sketch.name!r} with the row {list(row)}"
    try:
        program = sketch.concretize(row)
        verify(program)
        if target.is_gpu:  # threads are interpreted only with the barriers that passes insert
            program = backend_of(target).pipeline(program, target)
    except TunesmithError as error:
        raise AssertionError(f"{what} gives no valid program: {error}") from error
    inputs = make_inputs(param_specs(func))
    count = len(inputs)
    expected = run(func, inputs)[count:]
    flat = [spec.shape for spec in param_specs(program)]  # buffers are flat after the passes
    given = [a.reshape(shape) for a, shape in zip(inputs, flat, strict=False)]
    results = (run_threads if target.is_gpu else run)(program, given)[count:]
    check_arrays([r.reshape(e.shape) for r, e in zip(results, expected, strict=True)], expected, what, rtol, atol)
