"""Compare a model before and after a search, choose the schedules that are fastest in it, and withdraw what made it slower.

A function that is measured alone finds its inputs in the caches and has the memory bandwidth to itself.  In a model another schedule may be
faster, which `choose_in_model` finds among the best ones.  Then the model with the records from before the search and the model with those
after it are timed in turn.  Only if it became slower, and other load did not disturb the samples, the calls are compared one by one: a
record whose function became slower in the model is withdrawn, by a line in the log that invalidates its earlier measurements
(`measure.records.status`).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tunesmith.display.model_check import ModelCheck, Withdrawn
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.driver.model_check.choose_in_model import SHARE, alternatives, fastest_calls, marked, seconds_by_function, selection
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.tuning.apply_records import Untuned
from tunesmith.ir.function import IRModule
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.example_inputs import example_inputs
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import ErrorInfo, Record
from tunesmith.measure.records.status import WITHDRAWN
from tunesmith.runtime.timing import TimingPolicy, interleaved

SLOWER = 1.02
"""A model is slower if its time exceeds that from before by this factor, in most pairs of samples."""
GAINED = 1.01
"""Schedules are chosen by their speed in the model if it gains this factor, in most pairs of samples."""
CALL_SLOWER = 1.05
"""A function is slower in a model if the sum of its calls exceeds that from before by this factor."""
_POLICY = TimingPolicy(repeats=9, min_repeat_ms=5.0, limit_s=5.0)
_LONG = TimingPolicy(repeats=25, min_repeat_ms=10.0, limit_s=10.0)
"""For a choice among schedules of nearly the same speed."""
_RUNS = 7


def can_check(mod: IRModule) -> bool:
    """Whether a module is a model whose inputs have constant shapes."""
    main = mod.get("main")
    return isinstance(main, GraphFunc) and all(p.type.is_static for p in main.params)


def check_model(
    mod: IRModule,
    target: Target,
    before: Database,
    after: Database,
    untuned: Untuned,
    error_growth: float,
    log: Callable[[Record], None],
    search_s: float,
    say: Callable[[str], None],
) -> ModelCheck | None:
    """Compare a model compiled with two databases; None if they give the same schedules.

    Args:
        mod: the model.
        target: this machine.
        before: records from before the search.
        after: records after it; receives the choices and withdrawals.
        untuned: schedules functions without a record.
        error_growth: limit of rounding errors.
        log: stores a record, which prefers a schedule in the model or invalidates the earlier records of its candidate.
        search_s: seconds that the search took, of which a share may be spent on the choice in the model.
        say: shows what happens next.
    Raises:
        BuildError: the model cannot be compiled.
        RunError: it cannot be run.
    """
    compiled = partial(_compiled, mod, target, untuned=untuned, error_growth=error_growth)
    say("compiling the model as a whole, with the records before and after the search")
    old = compiled(before)
    begun = time.perf_counter()
    new = compiled(after)
    took = time.perf_counter() - begun
    if not _changed(old, new):
        return None
    inputs = example_inputs(old.executor.inputs)
    marks: set[str] = set()
    if took < SHARE * search_s:
        say(f"choosing schedules in the model, for at most {SHARE * search_s:.3g} s")
        new, marks = _chosen_in_model(new, after, compiled, target, inputs, log, SHARE * search_s)
    say("timing the model before and after the search")
    old_s, new_s, slower, clean = _race(old, new, inputs)
    found: list[Withdrawn] = []
    if slower and clean:  # on a busy machine a model may look several times slower than it is
        found = _slower_calls(old, new, inputs, _changed(old, new))
    for w in found:
        record = next(r for r in after.records() if r.identity == w.record)
        line = _withdrawal(record, w)
        log(line)
        after.add(line)
    if found:
        new = compiled(after)
        old_s, new_s, _, clean = _race(old, new, inputs)
    changed = _changed(old, new)
    return ModelCheck(old_s, new_s, clean, len(changed), tuple(found), len(marks & set(changed.values())))


def _chosen_in_model(
    new: CompiledModel,
    after: Database,
    compiled: Callable[[Database], CompiledModel],
    target: Target,
    inputs: Sequence[np.ndarray],
    log: Callable[[Record], None],
    limit_s: float,
) -> tuple[CompiledModel, set[str]]:
    """The model with the schedules that are fastest in it, and the identities of the records that mark those that are not the fastest
    alone; `new` if it is not slower, or if other load disturbed the comparison."""
    ranked = alternatives(new, after, target)
    picked = fastest_calls(new, lambda records: compiled(selection(records, after)), ranked, inputs, limit_s)
    if not picked:
        return new, set()
    made = {digest: [marked(ranked[digest][n])] for digest, n in picked.items()}
    other = compiled(selection({**ranked, **made}, after))
    if not _is_faster(other, new, inputs):
        return new, set()
    for (record,) in made.values():
        log(record)
        after.add(record)
    return other, {record.identity for (record,) in made.values()}


def _compiled(mod: IRModule, target: Target, database: Database, untuned: Untuned, error_growth: float) -> CompiledModel:
    """The model with the records of a database, which may be those of other models."""
    with warnings.catch_warnings(action="ignore", category=UnusedLogWarning):
        return compile_model(mod, target, database, untuned=untuned, error_growth=error_growth)


def _changed(old: CompiledModel, new: CompiledModel) -> dict[str, str]:
    """The functions with another record, and its identity."""
    before = {c.function: c.record for c in old.coverage if c.status == "used"}
    return {c.function: c.record for c in new.coverage if c.status == "used" and before.get(c.function) != c.record}


def _race(old: CompiledModel, new: CompiledModel, inputs: Sequence[np.ndarray]) -> tuple[float, float, bool, bool]:
    """Median seconds of both, timed in turn; whether the new one is slower, and whether no other load disturbed the samples."""
    pairs, clean = _paired(old, new, inputs, _POLICY)
    ratios = [b / a for a, b in pairs]
    slower = statistics.median(ratios) > SLOWER and sum(r > 1 for r in ratios) * 4 >= len(ratios) * 3
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), slower, clean


def _is_faster(other: CompiledModel, new: CompiledModel, inputs: Sequence[np.ndarray]) -> bool:
    """Whether the first model is faster than the second, by the median and in two of three pairs of samples that nothing disturbed."""
    pairs, clean = _paired(other, new, inputs, _LONG)
    ratios = [b / a for a, b in pairs]
    return clean and statistics.median(ratios) > GAINED and sum(r > 1 for r in ratios) * 3 >= len(ratios) * 2


def _paired(
    old: CompiledModel, new: CompiledModel, inputs: Sequence[np.ndarray], policy: TimingPolicy
) -> tuple[list[tuple[float, float]], bool]:
    """Seconds of both, timed in turn, and whether no other load disturbed the samples."""
    for model in (old, new):
        for n, x in enumerate(inputs):
            model.set_input(n, x)
    timed = interleaved({"old": old.run, "new": new.run}, policy)
    pairs = list(zip(timed["old"].seconds, timed["new"].seconds, strict=True))
    return pairs, timed["old"].clean and timed["new"].clean


def _slower_calls(old: CompiledModel, new: CompiledModel, inputs: Sequence[np.ndarray], changed: dict[str, str]) -> list[Withdrawn]:
    """The changed functions whose calls take longer in the model than before.

    A function that the old model does not call computes what several functions did (`graph.tuning.choose_parts`): those that the new model
    does not call.
    """
    was, now = [seconds_by_function(model, inputs, _RUNS) for model in (old, new)]
    replaced = sum(seconds for name, seconds in was.items() if name not in now)
    out = []
    for name, record in changed.items():
        before, after = was.get(name, replaced), now.get(name, 0.0)
        if after > before * CALL_SLOWER:
            out.append(Withdrawn(name, record, before, after))
    return out


def _withdrawal(record: Record, w: Withdrawn) -> Record:
    """The line that invalidates a record."""
    message = f"in a model the calls of {w.function} take {w.after * 1e6:.4g} us, and took {w.before * 1e6:.4g} us before"
    return dataclasses.replace(
        record, samples=(), clean=True, error=ErrorInfo(WITHDRAWN, message), verified=False, timestamp=time.time(), extra={}
    )
