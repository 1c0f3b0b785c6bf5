"""Compare the code that two backends generate for a random program: equal bits, and no access outside the arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tunesmith.codegen.build import build
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import UserError
from tunesmith.testing.program_fuzz import evaluate
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.render import render
from tunesmith.testing.program_fuzz.steps import Replay
from tunesmith.testing.program_fuzz.variants import with_choices, with_names
from tunesmith.testing.program_fuzz.worker import Trial, trial_of

Array = np.ndarray[Any, Any]


class Disagreement(Exception):
    """The backends compute different values, or only one of them builds the program; the argument says where."""


def compare_backends(seed: int, schedule: int, kind: str, other: str = "llvm") -> int:
    """Build and run a variant of a random program with two backends; see `variants`.

    Args:
        seed: of the program.
        schedule: number of its schedule; 0 is empty.
        kind: kind of the target of one backend.
        other: kind of the other.
    Returns:
        The number of arrays that were compared; 0 if the program cannot be built.
    Raises:
        Disagreement: the results differ.
    """
    trial = trial_of(seed, schedule)
    if trial is None:
        return 0
    choices = Choices(seed, "variants", schedule)
    trial = replace(trial, program=with_choices(trial.program, choices))
    func = _scheduled(trial, with_names(render(trial.program), trial.program, choices))
    if func is None:
        return 0
    found: list[Any] = []
    for name in (kind, other):
        target = Target(trial.target.replace("llvm", name, 1))
        try:
            found.append(build(func, target))
        except UserError as error:
            found.append(error)
    refused = [isinstance(a, UserError) for a in found]
    if any(refused):
        if not all(refused):
            raise Disagreement(f"one backend refuses the program: {found[refused.index(True)]}")
        return 0
    results = [_results(trial, artifact) for artifact in found]
    for (where, a), (_, b) in zip(*results, strict=True):
        same = np.array_equal(a, b) if a.dtype.kind not in "fV" else _equal_bits(a, b)
        if not same:
            raise Disagreement(f"{trial.target}: {where} differs: {a.reshape(-1)[:8]} and {b.reshape(-1)[:8]}")
    return len(results[0])


def _scheduled(trial: Trial, text: str) -> Any:
    replay = Replay(Schedule(parse(text), seed=trial.seed), Target(trial.target))
    for step in trial.steps:
        try:
            replay.apply(step)
        except UserError:
            continue
    return replay.func


def _results(trial: Trial, artifact: Any) -> list[tuple[str, Array]]:
    """Names and values of the arguments after a call, for each binding of the sizes."""
    function = Module.from_object(artifact.data)[artifact.functions[0]]
    out = []
    for binding in trial.program.bindings:
        start = evaluate.start(trial.program, binding, trial.seed)
        arrays = []
        for b in trial.program.params:
            values = start.memory[b.name].array()
            a = GuardedArray(b.dtype, values.shape)
            a.store(values)
            arrays.append(a)
        arguments = [a.argument() for a in arrays]
        for a, b in zip(arrays, trial.program.params, strict=True):
            if b.role == "input":
                a.seal()
        function(*arguments, *binding)
        for a, b in zip(arrays, trial.program.params, strict=True):
            if a.damaged():
                raise Disagreement(f"{trial.target}: writes outside the argument {b.name}{binding or ''}")
            out.append((f"{b.name}{binding or ''}", a.load().copy()))
    return out


def _equal_bits(a: Array, b: Array) -> bool:
    """Whether floats are equal in all bits, except those of NaN."""
    bits = f"u{a.dtype.itemsize}"
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool((same | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))).all())
