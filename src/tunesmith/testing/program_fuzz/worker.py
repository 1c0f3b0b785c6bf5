"""Define the jobs of fuzzing workers: check one program with several schedules, or repeat one failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import UserError
from tunesmith.testing.program_fuzz import evaluate
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.check import Case, Finding, Refused, Report, check_schedule, prepare, raised_finding
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.finishing_steps import finishing_steps
from tunesmith.testing.program_fuzz.generate import generate
from tunesmith.testing.program_fuzz.generate_steps import random_step
from tunesmith.testing.program_fuzz.numbers import Undecided
from tunesmith.testing.program_fuzz.render import render
from tunesmith.testing.program_fuzz.steps import DEFAULT, Replay, Step, rule_step

MAX_STEPS = 9
MARK = "@fuzz"
ATTRIBUTE = "attribute: "
"""Prefix of the phase that attributes a failure to a step; the failure kind follows, in case this phase crashes."""
_WITHOUT_INTERPRETER = ("build", "crash in build", "crash in run", "hang in build", "hang in run")


@dataclass(frozen=True, slots=True)
class Trial:
    """A program, schedule and target: sufficient to reproduce a failure."""

    program: p.Program
    seed: int
    steps: tuple[Step, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding with its trial."""

    seed: int
    schedule: int
    finding: Finding
    trial: Trial


@dataclass(slots=True)
class Outcome:
    """Results for the program of a seed.

    Attributes:
        sequences: number of schedules compiled and run.
        applied: applied steps by primitive.
        refused: refused steps by primitive and label, and refused programs and builds.
        discarded: discarded attempts of the generator by reason.
        seconds: seconds by phase.
    """

    seed: int
    sequences: int = 0
    applied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def factory() -> Callable[[tuple[object, ...]], object]:
    """The job function of a worker process."""
    Target.detect()
    jobs: dict[str, Callable[..., object]] = {"program": check_program, "trial": check_trial, "steps": trial_of}
    return lambda payload: jobs[str(payload[0])](*payload[1:])


class _Clock:
    """Print the start of each phase and accumulate its duration."""

    def __init__(self, seconds: dict[str, float], schedule: int) -> None:
        self.seconds, self.schedule, self.phase, self.since = seconds, schedule, "", time.perf_counter()

    def __call__(self, phase: str) -> None:
        now = time.perf_counter()
        if self.phase:
            name = self.phase.partition(":")[0]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.phase, self.since = phase, now
        print(f"{MARK} {self.schedule} {phase}", flush=True)


def targets() -> list[str]:
    """Target CPUs: vectors of 128, 256 and, if this machine supports them, 512 bits."""
    here = Target.detect()
    wide = f"llvm -mcpu={here.to_json()['mcpu']}"
    return ["llvm -mcpu=x86-64-v3 -vector-bits=128", "llvm -mcpu=x86-64-v3", wide]


def check_program(seed: int, schedules: int, first: int) -> Outcome:
    """Generate the program of a seed and check it with schedules `first` to `schedules` - 1; schedule 0 is empty."""
    out = Outcome(seed)
    clock = _Clock(out.seconds, first - 1)
    clock("generate")
    made = generate(seed)
    if made is None:
        out.refused["generator: no program"] += 1
        return out
    out.discarded = made.discarded
    try:
        case = prepare(made.program, seed, made.states, clock)
    except Refused as e:
        out.refused[str(e)] += 1
        return out
    if first == 0:
        out.failures += [Failure(seed, -1, f, Trial(made.program, seed, (), targets()[0])) for f in case.findings]
    for k in range(first, schedules):
        clock.schedule = k
        c = Choices(seed, "schedule", k)
        target = f"{c.one(targets())} -num-cores={c.integer(1, 3)}"
        _check_one(case, out, k, c, target, clock)
        if k == 0 and out.failures and "original" in out.failures[-1].finding.kind:
            break  # all schedules would fail in the same way
    clock("end")
    return out


def _check_one(case: Case, out: Outcome, k: int, c: Choices, target: str, clock: _Clock) -> None:
    clock("schedule")
    steps: list[Step] = []
    replay = Replay(Schedule(case.func, seed=out.seed), Target(target))
    if k and (raised := walk(c, k, replay, steps, out)):
        out.failures.append(Failure(out.seed, k, raised, Trial(case.program, case.seed, tuple(steps), target)))
        return
    try:
        found = check(case, replay, clock)
        out.sequences += 1
    except Refused as e:
        out.refused[str(e)] += 1
        return
    trial = Trial(case.program, case.seed, tuple(steps), target)
    out.failures += [Failure(out.seed, k, attributed(case, trial, f, clock), trial) for f in found]


def check(case: Case, replay: Replay, report: Report) -> list[Finding]:
    """Check the current state of a schedule."""
    return check_schedule(case, replay.func, replay.schedule.trace if replay.has_trace else None, replay.target, report)


def attributed(case: Case, trial: Trial, finding: Finding, report: Report) -> Finding:
    """The finding with its kind extended by the first primitive that causes it."""
    report(f"{ATTRIBUTE}{finding.kind}")
    for n in range(len(trial.steps)):
        replay = Replay(Schedule(case.func, seed=trial.seed), Target(trial.target))
        for step in trial.steps[:n]:
            replay.apply(step)
        try:
            found = check(case, replay, lambda _: None)
        except Refused:
            continue
        if found and found[0].kind.replace("original", "scheduled") == finding.kind:
            return found[0] if n == 0 else replace(finding, kind=f"{finding.kind} after {trial.steps[n - 1].primitive}")
    return replace(finding, kind=f"{finding.kind} after {trial.steps[-1].primitive}") if trial.steps else finding


def walk(c: Choices, number: int, replay: Replay, steps: list[Step], out: Outcome) -> Finding | None:
    """Apply random steps to a schedule; returns a finding if a step raises anything but a refusal.

    Schedule 1 is the default schedule, schedule 2 is with probability 1/2 a structure of the search rules.
    """
    if number == 1:
        return take(replay, DEFAULT, steps, out)
    if number == 2 and c.chance(0.5):
        return take(replay, rule_step(c.integer(0, 99)), steps, out)
    count = c.integer(1, MAX_STEPS)
    tries = 0
    while len(steps) < count and tries < 3 * count:
        tries += 1
        if raised := take(replay, random_step(c, replay.schedule, len(replay.sampled)), steps, out):
            return raised
    if c.chance(0.5):
        for step in finishing_steps(c, replay.schedule):
            if raised := take(replay, step, steps, out):
                return raised
    return None


def take(replay: Replay, step: Step, steps: list[Step], out: Outcome) -> Finding | None:
    """Apply a step and record it; a refused step is omitted."""
    try:
        replay.apply(step)
    except UserError as e:
        out.refused[f"{step.primitive}: {getattr(e, 'requirement', type(e).__name__)}"] += 1
        return None
    except Exception as e:
        steps.append(step)
        return raised_finding(f"schedule {step.primitive}", e)
    out.applied[step.primitive] += 1
    steps.append(step)
    return None


def trial_of(seed: int, schedule: int) -> Trial | None:
    """The trial of one schedule: its steps are applied, nothing is built."""
    made = generate(seed)
    if made is None:
        return None
    c = Choices(seed, "schedule", schedule)
    target = f"{c.one(targets())} -num-cores={c.integer(1, 3)}"
    steps: list[Step] = []
    if schedule > 0:
        walk(c, schedule, Replay(Schedule(parse(render(made.program)), seed=seed), Target(target)), steps, Outcome(seed))
    return Trial(made.program, seed, tuple(steps), target)


def check_trial(trial: Trial, kind: str = "") -> Finding | None:
    """The first failure of a trial; refused steps are omitted.

    The interpreter is skipped if the expected `kind` belongs to a phase that does not need it.
    """
    out = Outcome(trial.seed)
    clock = _Clock(out.seconds, 0)
    clock("evaluate")
    try:
        states = [evaluate.run(trial.program, b, trial.seed) for b in trial.program.bindings]
        case = prepare(trial.program, trial.seed, states, clock, not kind.startswith(_WITHOUT_INTERPRETER))
    except (Refused, Undecided):
        return None
    clock("schedule")
    replay = Replay(Schedule(case.func, seed=trial.seed), Target(trial.target))
    taken: list[Step] = []
    for step in trial.steps:
        if raised := take(replay, step, taken, out):
            return raised
    if not taken and case.findings:
        return case.findings[0]
    try:
        found = check(case, replay, clock)
    except Refused:
        return None
    return attributed(case, replace(trial, steps=tuple(taken)), found[0], clock) if found else None
