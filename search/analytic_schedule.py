"""Choose a schedule without measurements: the candidate with the lowest analytic cost.

Functions without a record are compiled with it.  The draw has a fixed seed, so equal functions and targets give equal programs on
every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from tunesmith.codegen.backends.backend import Backend, backend_of
from tunesmith.codegen.build import build
from tunesmith.graph.tuning.apply_records import Scheduled
from tunesmith.ir import structural
from tunesmith.ir.analysis.work import worth_threads
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.script.printer import script
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.code_size import UNROLLED, code_size
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pass_context import PassContext, unobserved
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.schedule.state import ERROR_GROWTH
from tunesmith.search.samplers.proposal_generator import Population
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.rules_table import Named, schedules_in_order
from tunesmith.search.space.sketch import Sketch, collect
from tunesmith.search.structure_search import Drawn, draw
from tunesmith.search.task import Task
from tunesmith.support.collect_once import collected_once
from tunesmith.support.errors import BuildError, UserError

DRAWN = 4096
"""Number of candidates drawn and ranked."""
TRIED = 8
"""Number of candidates tried, best first, to find one that lowers to small enough code or, on a GPU, one that spills no registers."""

_MOST_REMEMBERED = 512
_REMEMBERED: dict[tuple[object, ...], tuple[Backend, Scheduled]] = {}
"""Text of a function, target and parameters of the draw -> the backend, whose rules the choice depends on, and the choice."""


def analytic_schedule(func: PrimFunc, target: Target, error_growth: float = ERROR_GROWTH) -> PrimFunc:
    """The function with the best of about `DRAWN` candidates by analytic cost applied; the default schedule if it has no search space.

    Only a part of the sketches is generated (`search.structure_search`).  Functions with dynamic shapes, and functions whose loops are
    marked or annotated already, have none.  If no candidate that is tried can be lowered, the best of them is returned, and its build says
    why.

    Args:
        func: the function without a schedule.
        target: the target.
        error_growth: largest growth of rounding errors, relative to direct sums.
    """
    return analytic_choice(func, target, error_growth).func


def analytic_choice(func: PrimFunc, target: Target, error_growth: float = ERROR_GROWTH) -> Scheduled:
    """As `analytic_schedule`, with the name of the sketch and the growth of its errors."""
    if any(isinstance(p, Var) for p in func.params):
        return Scheduled(default_schedule(func, target))
    with suppress(UserError), collected_once():
        for named in schedules_in_order(func, target):

            def make(i: int, named: Sequence[Named] = named) -> Sketch | None:
                found = collect([named[i]], func)
                return found[0] if found and found[0].error_growth <= error_growth else None

            chosen = _chosen([name for name, _ in named], make, func, target)
            if chosen is not None:
                return chosen
    return Scheduled(default_schedule(func, target))


def untuned_choice(func: PrimFunc, target: Target, error_growth: float = ERROR_GROWTH) -> Scheduled:
    """As `analytic_choice`, remembered: equal functions of this process get equal choices.

    Choices are not remembered while a `PassContext` changes the passes, or for a function with dynamic sizes, whose variables are its own.
    """
    backend = backend_of(target)
    if PassContext.current().changes((GPU if backend.needs_threads else CPU).passes) or sizes_of(func):
        return analytic_choice(func, target, error_growth)
    key = (script(func), json.dumps(target.to_json(facts=True)), error_growth, DRAWN, TRIED)
    found = _REMEMBERED.get(key)
    if found is None or found[0] is not backend:
        found = backend, analytic_choice(func, target, error_growth)
        if len(_REMEMBERED) >= _MOST_REMEMBERED:
            _REMEMBERED.clear()
        _REMEMBERED[key] = found
    return found[1]


def schedule_by_cost(task: Task) -> PrimFunc:
    """As `analytic_schedule`, for a task, whose space may have been generated before."""
    with suppress(UserError), collected_once():
        sketches = task.space.sketches
        chosen = _chosen([s.name for s in sketches], lambda i: sketches[i], task.func, task.target)
        if chosen is not None:
            return chosen.func
    return default_schedule(task.func, task.target)


def _chosen(names: Sequence[str], make: Callable[[int], Sketch | None], func: PrimFunc, target: Target) -> Scheduled | None:
    """The best candidate of the named sketches that lowers to small enough code; None if there is no candidate."""
    drawn = draw(names, make, target, structural.digest(func), DRAWN)
    best = drawn.population.best(TRIED)
    if target.is_cpu:
        best = [*_on_one_thread(drawn, target), *best]
    programs = (_scheduled(drawn.sketches[c.sketch], c) for _, c in best)
    if best and backend_of(target).may_spill:
        return _without_spills(programs, target)
    refused: list[Scheduled] = []
    for program in programs:
        if code_size(program.func.body, target.vector_lanes("float32")) > UNROLLED:
            continue
        if _lowers(program.func, target):
            return program
        refused.append(program)
    return refused[0] if refused else Scheduled(default_schedule(func, target)) if best else None


def _scheduled(sketch: Sketch, c: Candidate) -> Scheduled:
    return Scheduled(sketch.concretize(c.row), sketch.name, sketch.error_growth)


def _on_one_thread(drawn: Drawn, target: Target) -> list[tuple[float, Candidate]]:
    """The best candidates without a parallel loop, if their predicted time is too short to pay for waking threads or waiting for cores."""
    rows, values = drawn.population.rows, drawn.population.values
    serial = [k for k in rows if not any(type(n) is For and n.kind == "parallel" for n in walk(drawn.sketches[k].func.body))]
    best = Population({k: rows[k] for k in serial}, {k: values[k] for k in serial}).best(TRIED)
    return [x for x in best if not worth_threads(x[0], target)]


def _lowers(program: PrimFunc, target: Target) -> bool:
    try:
        with unobserved():
            (GPU if target.is_gpu else CPU)(program, target)
    except BuildError:
        return False
    return True


def _without_spills(programs: Iterable[Scheduled], target: Target) -> Scheduled:
    """The first program without register spills, else the one that spills least.  Only programs that may spill are built."""
    found: list[tuple[float, Scheduled]] = []
    may_spill = backend_of(target).part("may_spill")
    for program in programs:
        with unobserved():
            if not may_spill(program.func, target):
                return program
            spilled = build(program.func, target).facts["spill_bytes"]
        if not spilled:
            return program
        found.append((spilled, program))
    return min(found, key=lambda x: x[0])[1]
