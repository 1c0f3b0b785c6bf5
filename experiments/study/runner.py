"""Run a study: every cell is a `tune` with its own log, so that an interrupted run can be resumed.

Within a seed, cells alternate over workloads and arms: a run that is stopped early has compared all of them on fewer seeds, and drifts
of the machine affect all arms.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path

from tunesmith.costmodel.models.registry import find_model, model_class
from tunesmith.display.report import Report, TaskReport
from tunesmith.display.tables import microseconds
from tunesmith.driver.tune import tune
from tunesmith.driver.tune_options import Search
from tunesmith.driver.workloads import Subject, find_subjects
from tunesmith.experiments.study.ablations import divisors_only, without_draft_model, without_racing
from tunesmith.experiments.study.config import ExperimentConfig, Variant
from tunesmith.experiments.study.results import (
    MANIFEST,
    Arm,
    Cell,
    CellResult,
    RunIndex,
    SpaceSize,
    cell_folder,
    load_manifest,
    load_result,
    load_run,
    write_json,
)
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.run_manifest import recorded_run
from tunesmith.search.samplers.proposals import asked_once
from tunesmith.search.samplers.registry import find_sampler
from tunesmith.search.tuner import PHASES
from tunesmith.support import atomic_file
from tunesmith.support.code_digest import changed_files, code_digests
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.support.load_from_file import names_a_file
from tunesmith.support.seeds import stream

UNUSED = "random"
"""The model passed to a sampler that uses none."""

NAMED = 3
"""Number of removed cells that a note names."""

Say = Callable[[str], None]


def run_experiment(
    config: ExperimentConfig,
    folder: str | PathLike[str],
    *,
    target: Target | None = None,
    run_code: bool = False,
    say: Say = lambda text: None,
    progress: bool = False,
) -> RunIndex:
    """Run the unfinished part of a study.

    Args:
        config: the study.
        folder: folder of the run; created if missing.  Finished cells in it are not repeated, others resume from their logs.
        target: replaces the configuration's target; used without calibration.
        run_code: run the Python files that the configuration names; otherwise they are refused.
        say: called with each line of progress.
        progress: show each search on standard error.
    Returns:
        The index, as written to the run folder.  Ctrl-C ends the run early and is not an error; a failed cell is listed in the index and
        stops no other.
    Raises:
        UserError: the configuration is invalid, or the folder has a run of another study or with other settings; raised before any
            measurement.
        RecordError: the folder cannot be read or written.
    """
    if config.code and not run_code:
        raise UserError(
            f"the study {config.name!r} names Python files, which would be executed: {', '.join(map(config.located, config.code))}. "
            "Read them first, then allow it with --run-code"
        )
    study = _Study(config, Path(folder), target, say, progress)
    return study.run()


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells of a study in execution order, and their programs by name."""

    cells: tuple[Cell, ...]
    subjects: Mapping[str, Subject]


def plan(config: ExperimentConfig) -> Plan:
    """Enumerate the cells of a study.

    Raises:
        UserError: a workload, a sampler or a model is unknown.
    """
    located = {config.located(text): text for text in config.workloads}
    subjects = {name: replace(s, name=name) for s in find_subjects(list(located)) for name in [_as_named(s.name, located)]}
    arms: list[Arm] = []
    for sampler in config.samplers:
        uses_model = "model" in inspect.signature(find_sampler(config.located(sampler))).parameters
        for model in config.models:
            find_model(config.located(model))
            arms += [Arm(sampler, model if uses_model else "", v.name) for v in config.variants]
    arms = list(dict.fromkeys(arms))
    return Plan(tuple([Cell(w, a, s) for s in config.seeds for w in subjects for a in arms]), subjects)


def _as_named(name: str, located: Mapping[str, str]) -> str:
    """The name of a subject as in the configuration, so that cells keep their names when a run is resumed from another folder."""
    place = next((p for p in located if name == p or name.startswith(f"{p}/")), "")
    return located[place] + name[len(place) :] if place else name


def _components(variant: Variant) -> dict[str, bool]:
    """The components of a variant, by name: whether they are enabled."""
    return {name: enabled for name, enabled in asdict(variant).items() if name != "name"}


def _disabled(components: object) -> str:
    """The disabled components of a variant in an index, as text."""
    return " and ".join(name for name, enabled in components.items() if not enabled) or "nothing" if isinstance(components, dict) else "?"


class _Study:
    """State of one call of `run_experiment`."""

    def __init__(self, config: ExperimentConfig, folder: Path, target: Target | None, say: Say, progress: bool) -> None:
        self.config, self.folder, self.say, self.progress = config, folder, say, progress
        self.plan = plan(config)
        self.variants = {v.name: v for v in config.variants}
        self.target = target
        self.known = known = load_run(folder) if (folder / "index.json").exists() else None
        self.settings = {**config.settings(), "target": config.target if target is None else str(target)}
        if known is not None:
            self._check(known)
        results = tuple([load_result(folder, c) for c in self.plan.cells])
        now = {name: _components(v) for name, v in self.variants.items()}
        # Cells of a variant that was removed stay in the folder: its name keeps its meaning, for a later configuration that has it again.
        ablations = now if known is None else {**now, **{name: x for name, x in known.variants.items() if name not in now}}
        spaces = () if known is None else known.spaces
        base = config.base or str(Path.cwd())
        self.index = RunIndex(config.name, config.question, self.settings, ablations, results, spaces, base=base)

    def _check(self, known: RunIndex) -> None:
        """Refuse a folder of another study, or whose cells were run with other settings or variants."""
        if known.name != self.config.name:
            raise UserError(
                f"{self.folder} has a run of the study {known.name!r}, and this study is {self.config.name!r}: name another folder, or, to "
                f'change the cells of that run, write name = "{known.name}" in the configuration'
            )
        changed = [
            f"{k}: {known.settings.get(k)!r} in the folder, {v!r} now" for k, v in self.settings.items() if known.settings.get(k) != v
        ]
        for name, ablations in known.variants.items():
            now = self.variants.get(name)
            if now is not None and _components(now) != ablations:
                changed.append(f"the variant {name!r}: {_disabled(ablations)} disabled in the folder, {_disabled(_components(now))} now")
        if changed:
            raise UserError(f"{self.folder} has a run with other settings ({'; '.join(changed)}): name another folder")

    def _say_removed(self) -> None:
        """Name the cells of the folder that the configuration no longer has."""
        removed = [r.cell for r in self.known.results if r.cell not in self.plan.cells] if self.known is not None else []
        if removed:
            some = "; ".join(f"{c.workload}: {c.arm.name}, seed {c.seed}" for c in removed[:NAMED])
            more = f"; and {len(removed) - NAMED} more" if len(removed) > NAMED else ""
            self.say(
                f"{self.config.name}: {len(removed)} cells of this run are not in the configuration any more, and reports leave them out: "
                f"{some}{more}. Their files stay, and count again with the old configuration"
            )

    def run(self) -> RunIndex:
        self._say_removed()
        self._write()
        atomic_file.write_text(self.folder / "config.toml", self.config.text)
        code = self._code()
        left = [r.cell for r in self.index.results if r.state != "done"]
        if not left:
            self.say(f"{self.config.name}: all {len(self.index.results)} cells are done")
            return self.index
        if self.config.batch >= self.config.trials:
            self.say(f"{self.config.name}: {asked_once(self.config.batch, self.config.trials)}")
        target = self.target or calibrated(None if self.config.target is None else Target(self.config.target))
        facts = {"study": self.config.name, "target": target, "settings": self.settings, "cells": len(left), "code": code}
        with recorded_run(self.folder / MANIFEST, **facts) as manifest:
            self._run_cells(left, target)
            manifest["outcome"] = "interrupted" if self.index.interrupted else "done"
        return self.index

    def _code(self) -> dict[str, str]:
        """Digests of the user's code of the study; says which files differ from those of the last part of the run."""
        c = self.config
        samplers = [find_sampler(c.located(x)) for x in c.samplers]
        models = [part for x in c.models for part in model_class(c.located(x)) if part is not None]
        workloads = [c.located(x).rpartition(":")[0] for x in c.workloads if names_a_file(x)]
        now = code_digests([*samplers, *models, *workloads], c.base or None)
        before = next((code for x in reversed(load_manifest(self.folder)) if isinstance(code := x.get("code"), dict)), {})
        if changed := changed_files(before, now):
            self.say(
                f"{c.name}: {', '.join(changed)} changed since the last part of this run, whose finished cells are not repeated. "
                "Name another folder to compare cells of equal code"
            )
        return now

    def _run_cells(self, left: Sequence[Cell], target: Target) -> None:
        """Run the cells in order, until Ctrl-C."""
        try:
            self._measure_spaces(target)
            for n, cell in enumerate(left, 1):
                self.say(f"[{n}/{len(left)}] {cell.workload}: {cell.arm.name}, seed {cell.seed}")
                result = self._run_cell(cell, target)
                write_json(cell_folder(self.folder, cell) / "result.json", result.to_json())
                self.index = replace(self.index.with_result(result), interrupted=result.state == "interrupted")
                self._write()
                self.say(_line(result))
                if self.index.interrupted:
                    break
        except KeyboardInterrupt:
            self.index = replace(self.index, interrupted=True)
            self._write()

    def _write(self) -> None:
        write_json(self.folder / "index.json", self.index.to_json())

    def _measure_spaces(self, target: Target) -> None:
        """Compute the unknown sizes of the search spaces."""
        known = {(s.workload, s.imperfect_tiles) for s in self.index.spaces}
        for name, subject in self.plan.subjects.items():
            for imperfect in dict.fromkeys(v.imperfect_tiles for v in self.config.variants):
                if (name, imperfect) not in known:
                    size = space_size(subject, target, imperfect)
                    self.index = replace(self.index, spaces=(*self.index.spaces, size))
        self._write()

    def _run_cell(self, cell: Cell, target: Target) -> CellResult:
        before = load_result(self.folder, cell)
        folder = cell_folder(self.folder, cell)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            report = self._search(cell, target, folder / "log.jsonl")
        except TunesmithError as error:
            return replace(before, state="failed", failure=str(error))
        except (Exception, SystemExit) as error:  # a user's sampler may raise anything, which must not end a long run
            atomic_file.write_text(folder / "traceback.txt", traceback.format_exc())
            return replace(before, state="failed", failure=f"{type(error).__name__}: {error}; see traceback.txt in the cell's folder")
        (task,) = report.tasks
        curve = final_curve(Database.from_log(folder / "log.jsonl"), task.digest, target) if task.trials else ()
        return _result(before, task, "interrupted" if report.interrupted else "failed" if task.failure else "done", curve)

    def _search(self, cell: Cell, target: Target, log: Path) -> Report:
        c, v = self.config, self.variants[cell.arm.variant]
        kind = find_sampler(c.located(cell.arm.sampler))
        return tune(
            c.located(cell.workload),
            target,
            log,
            budget=c.trials,
            search=Search(
                sampler=kind if v.draft_model else without_draft_model(kind),
                model=c.located(cell.arm.model) if cell.arm.model else UNUSED,
                seed=cell.seed,
                batch=c.batch,
                rules=None if v.imperfect_tiles else divisors_only(),
                leaders=c.leaders,
            ),
            workers=c.workers,
            policy=c.policy if v.racing else without_racing(c.policy),
            progress=self.progress,
        )


def space_size(subject: Subject, target: Target, imperfect_tiles: bool = True, draws: int = 4096) -> SpaceSize:
    """Count the candidates of a workload.

    Args:
        subject: the workload.
        target: target of the programs.
        imperfect_tiles: see `Variant`.
        draws: samples per sketch for estimating the effect of joint constraints.
    """
    try:
        space = subject.task(target, None if imperfect_tiles else divisors_only()).space
    except UserError as error:
        return SpaceSize(subject.name, imperfect_tiles, failure=str(error))
    rng = stream(0, "space size", subject.name)
    admissible = sum(round(s.space.size() * s.space.acceptance(rng, draws)) for s in space.sketches)
    return SpaceSize(subject.name, imperfect_tiles, len(space.sketches), space.size(), admissible)


def final_curve(database: Database, workload: str, target: Target) -> tuple[float | None, ...]:
    """Best seconds after each trial, by the final records of the log: None before the first correct program.

    A search uses first measurements, some of which are too fast or disturbed; its leaders are measured again at the end.  With final
    times, a curve shows when a program was found, and ends at the reported time of the search.
    """
    key = target.to_json()
    order = list(dict.fromkeys(r.candidate for r in database.records(workload, key)))
    seconds = {r.candidate: r.seconds for r in database.top(workload, key, len(order))}
    out: list[float | None] = []
    best: float | None = None
    for candidate in order:
        time = seconds.get(candidate)
        best = time if best is None or (time is not None and time < best) else best
        out.append(best)
    return tuple(out)


def _result(before: CellResult, task: TaskReport, state: str, curve: tuple[float | None, ...]) -> CellResult:
    """The result of a search, including the time of its earlier parts."""
    return CellResult(
        before.cell,
        state,
        task.digest,
        task.trials,
        before.timed_trials + task.trials - task.resumed,
        dict(sorted(task.errors.items())),
        None if task.best is None else task.best.seconds,
        task.flops,
        "" if task.best is None else task.best.sketch,
        before.drafted + task.drafted,
        before.scored + task.scored,
        {name: round(before.seconds[name] + task.seconds[name], 6) for name in ("total", *PHASES)},
        curve,
        task.failure if state == "failed" else "",
        task.measured,
        task.noisy,
    )


def _line(r: CellResult) -> str:
    text = f"  {r.state}: {r.trials} trials, best {microseconds(r.best_s)} us" if not r.failure else f"  {r.state}: {r.failure}"
    return f"{text}, {r.seconds['total']:.0f} s" if r.seconds["total"] else text
