"""Store the results of a study in a run folder, and read them back with validation.

RUN/config.toml            configuration of the study
RUN/manifest.jsonl         machine, time and software of each part of the run
RUN/index.json             all cells with their state, sizes of the spaces
RUN/cells/ID/log.jsonl     every measurement of a cell
RUN/cells/ID/result.json   result of a cell, with its curve
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from rich.console import Group, RenderableType

from tunesmith.display.noise import clean_share
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import microseconds, plain_table, printable
from tunesmith.measure.records.run_manifest import read_manifest
from tunesmith.search.tuner import PHASES
from tunesmith.support import atomic_file
from tunesmith.support.errors import RecordError
from tunesmith.support.strict_fields import MISSING, StrictFields

VERSION = 1
MANIFEST = "manifest.jsonl"
"""See `measure.records.run_manifest`."""
STATES = ("done", "interrupted", "failed", "waiting")
"""States of a cell; cells that are done are not run again."""
MAX_BYTES = 256 << 20
"""Maximum size of a file in a run folder."""
_LONGEST = 1e15
_DIGITS = 200
"""Limits of seconds and of integer digits in a file: sufficient for the sizes of spaces, and representable as floats."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A compared method: a sampler, its model (empty for samplers without one), and a variant."""

    sampler: str
    model: str
    variant: str

    @property
    def name(self) -> str:
        """Name in tables; the default variant is omitted."""
        name = f"{self.sampler} + {self.model}" if self.model else self.sampler
        return name if self.variant == "default" else f"{name} ({self.variant})"


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One search: an arm on a workload with a seed."""

    workload: str
    arm: Arm
    seed: int

    @property
    def id(self) -> str:
        """Unique folder name of the cell, readable and safe."""
        parts = [self.workload, self.arm.sampler, self.arm.model, self.arm.variant]
        digest = blake2b(json.dumps([*parts, self.seed]).encode(), digest_size=4).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9]+", "-", " ".join(parts)).strip("-")
        return f"{readable[:80]}-s{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class CellResult:
    """Result of a cell so far.

    Attributes:
        cell: the cell.
        state: one of `STATES`.
        digest: digest of the workload.
        trials: measured candidates.
        timed_trials: trials with known search time; a killed process loses its times, but no record.
        errors: failed candidates by class.
        best_s: seconds of the best verified program, or None.
        flops: operations of one call; 0 if not counted.
        sketch: sketch of the best program.
        drafted, scored: candidates scored by the analytic and by the learned model.
        seconds: seconds of `timed_trials`: total and per phase.
        curve: best seconds after each trial, by the final records of the log; None before the first correct program.
        failure: reason of the failure; otherwise empty.
        measured, noisy: measurements in the log with a time, and how many of them other processes disturbed; 0 in results of earlier
            versions.
    """

    cell: Cell
    state: str = "waiting"
    digest: str = ""
    trials: int = 0
    timed_trials: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    best_s: float | None = None
    flops: int = 0
    sketch: str = ""
    drafted: int = 0
    scored: int = 0
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(("total", *PHASES), 0.0))
    curve: Sequence[float | None] = ()
    failure: str = ""
    measured: int = 0
    noisy: int = 0

    @property
    def gflops(self) -> float | None:
        """Rate of the best program; None without one, or if operations are not counted."""
        return self.flops / self.best_s / 1e9 if self.best_s is not None and self.flops else None

    def summary(self) -> dict[str, object]:
        """The entry of the index: all fields but the curve."""
        data = asdict(self)
        cell = data.pop("cell")
        del data["curve"]
        return {"id": self.cell.id, "workload": cell["workload"], **cell["arm"], "seed": cell["seed"], **data, "gflops": self.gflops}

    def to_json(self) -> dict[str, object]:
        """The contents of `result.json`."""
        return {"v": VERSION, **self.summary(), "curve": list(self.curve)}

    @classmethod
    def from_json(cls, data: object, where: str) -> CellResult:
        """Read a `result.json`.  Raises RecordError if it is malformed; `where` names it in messages."""
        get = JsonObject(where, data)
        cell = Cell(get.text("workload"), Arm(get.text("sampler"), get.text("model"), get.text("variant")), get.integer("seed", None))
        curve = get.checked("curve", "a list of seconds", lambda x: isinstance(x, list) and all(y is None or _positive(y) for y in x))
        errors = get.checked("errors", "counts by class", lambda x: isinstance(x, dict) and all(_counted(n) for n in x.values()))
        seconds = get.checked("seconds", "seconds by phase", lambda x: isinstance(x, dict) and all(_finite(y) for y in x.values()))
        if set(seconds) != {"total", *PHASES}:
            get.refuse("seconds", f"seconds of total, {', '.join(PHASES)}", seconds)
        best = get.checked("best_s", "seconds or null", lambda x: x is None or _positive(x))
        if best is not None and not curve:
            get.refuse("curve", "a list with the trial that found the best program", curve)
        return cls(
            cell,
            str(get.checked("state", f"one of {', '.join(STATES)}", lambda x: isinstance(x, str) and x in STATES)),
            get.text("digest"),
            get.integer("trials"),
            get.integer("timed_trials"),
            errors,
            best,
            get.integer("flops"),
            get.text("sketch"),
            get.integer("drafted"),
            get.integer("scored"),
            seconds,
            tuple(curve),
            get.text("failure"),
            measured := get.integer("measured", 0, 0),
            get.checked("noisy", f"a number up to {measured}", lambda x: type(x) is int and 0 <= x <= measured, 0),
        )


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """Size of the search space of a workload.

    Attributes:
        workload: name of the workload.
        imperfect_tiles: the space includes tiles that do not divide.
        sketches: number of sketches.
        rows: configurations in the product of the tables; an upper bound if constraints join tables.
        admissible: admissible configurations, estimated by sampling.
        failure: why there is no space; otherwise empty.
    """

    workload: str
    imperfect_tiles: bool
    sketches: int = 0
    rows: int = 0
    admissible: int = 0
    failure: str = ""

    @classmethod
    def from_json(cls, data: object, where: str) -> SpaceSize:
        """Read an entry of the index.  Raises RecordError if it is malformed."""
        get = JsonObject(where, data)
        flag = get.flag("imperfect_tiles")
        return cls(get.text("workload"), flag, get.integer("sketches"), get.integer("rows"), get.integer("admissible"), get.text("failure"))


@dataclass(frozen=True, slots=True)
class RunIndex(Rendered):
    """The contents of a run folder.

    Attributes:
        name, question: name and question of the study.
        settings: settings shared by all cells, see `ExperimentConfig.settings`.
        variants: components enabled in each variant, by name; also those of earlier parts of the run, whose cells are in its folder.
        results: results of all cells, in execution order.
        spaces: sizes of the spaces.
        interrupted: Ctrl-C ended the last run.
        base: base folder of relative paths in the configuration.
    """

    name: str
    question: str
    settings: Json
    variants: Json
    results: tuple[CellResult, ...]
    spaces: tuple[SpaceSize, ...] = ()
    interrupted: bool = False
    base: str = ""

    @property
    def ok(self) -> bool:
        """Whether every cell is done."""
        return all(r.state == "done" for r in self.results)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms, in the order of the configuration."""
        return tuple(dict.fromkeys(r.cell.arm for r in self.results))

    @property
    def workloads(self) -> tuple[str, ...]:
        """The workloads, in the order of the configuration."""
        return tuple(dict.fromkeys(r.cell.workload for r in self.results))

    def of(self, workload: str, arm: Arm) -> list[CellResult]:
        """The finished results with a best program, over seeds: those that are compared."""
        matching = (r for r in self.results if r.cell.workload == workload and r.cell.arm == arm)
        return [r for r in matching if r.state == "done" and r.best_s is not None]

    def with_result(self, result: CellResult) -> RunIndex:
        """The index with a newer result of one cell."""
        return replace(self, results=tuple([result if r.cell == result.cell else r for r in self.results]))

    def render(self) -> RenderableType:
        """A table for a terminal: one row per workload and arm, over seeds."""
        rows = []
        for workload in self.workloads:
            for arm in self.arms:
                every = [r for r in self.results if r.cell.workload == workload and r.cell.arm == arm]
                times = sorted(r.best_s for r in self.of(workload, arm) if r.best_s is not None)
                ends = [microseconds(times[0]), microseconds(median(times)), microseconds(times[-1])] if times else ["-", "-", "-"]
                measured = sum(r.measured for r in every)
                share = clean_share(measured - sum(r.noisy for r in every), measured)
                rows.append([workload, arm.name, f"{sum(r.state == 'done' for r in every)}/{len(every)}", share, *ends])
        table = plain_table(self.name, ["workload", "arm", "done", "clean", "best us", "median", "worst"], rows, left=["arm"])
        failures = [printable(f"! {r.cell.id}: {r.failure}") for r in self.results if r.failure]
        note = [printable("! interrupted; the same command resumes the run")] if self.interrupted else []
        return Group(table, *failures, *note)

    def to_json(self) -> dict[str, object]:
        """The contents of `index.json` and of `--json`."""
        return {
            "v": VERSION,
            "kind": "experiment",
            "name": self.name,
            "question": self.question,
            "settings": dict(self.settings),
            "variants": dict(self.variants),
            "interrupted": self.interrupted,
            "base": self.base,
            "done": sum(r.state == "done" for r in self.results),
            "cells": [r.summary() for r in self.results],
            "spaces": [asdict(s) for s in self.spaces],
        }


def load_run(folder: str | os.PathLike[str]) -> RunIndex:
    """Read a run folder.  Nothing in it is executed, and no path in it is followed.

    Raises:
        RecordError: the folder is not a run, or a file in it is malformed.
    """
    folder = Path(folder)
    path = folder / "index.json"
    get = JsonObject(str(path), read_json(path))
    get.checked("kind", "'experiment'", lambda x: x == "experiment")
    if (version := get.integer("v")) != VERSION:
        raise RecordError(f"{path} has version {version}, but this tunesmith reads version {VERSION}")
    cells = get.checked("cells", "a list of cells", lambda x: isinstance(x, list))
    spaces = get.checked("spaces", "a list of sizes", lambda x: isinstance(x, list))
    results = []
    for n, data in enumerate(cells):
        cell = JsonObject(f"{path}, cell {n}", data)
        arm = Arm(cell.text("sampler"), cell.text("model"), cell.text("variant"))
        results.append(load_result(folder, Cell(cell.text("workload"), arm, cell.integer("seed", None))))
    settings = get.mapping("settings")
    shared = JsonObject(f"{path}, settings", settings)
    for name, least in (("trials", 1), ("batch", 1), ("leaders", 0)):
        shared.integer(name, least)
    shared.checked("target", "a text or null", lambda x: x is None or isinstance(x, str))
    return RunIndex(
        get.text("name"),
        get.text("question"),
        settings,
        get.mapping("variants"),
        tuple(results),
        tuple([SpaceSize.from_json(s, f"{path}, space {n}") for n, s in enumerate(spaces)]),
        get.flag("interrupted"),
        get.text("base", ""),  # runs of earlier versions have none
    )


def load_manifest(folder: Path) -> list[dict[str, object]]:
    """Time, machine and software of each part of a run; empty without a manifest."""
    return read_manifest(folder / MANIFEST) if (folder / MANIFEST).exists() else []


def cell_folder(folder: Path, cell: Cell) -> Path:
    """The folder of a cell."""
    return folder / "cells" / cell.id


def load_result(folder: Path, cell: Cell) -> CellResult:
    """The result of a cell; `waiting` without a result file.  Raises RecordError if the file is malformed."""
    path = cell_folder(folder, cell) / "result.json"
    if not path.exists():
        return CellResult(cell)
    result = CellResult.from_json(read_json(path), str(path))
    if result.cell != cell:
        raise RecordError(f"{path} is the result of {result.cell}, not of {cell}: remove the file to run the cell again from its log")
    return result


def write_json(path: Path, data: object) -> None:
    """Write the file atomically.  Raises RecordError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}. Check the folder and its permissions") from error


def read_json(path: Path) -> object:
    """Read plain data with finite numbers.  Raises RecordError if the file is missing, too large, or invalid."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecordError(f"{path} has more than {MAX_BYTES >> 20} MB, more than any file of a run folder")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecordError(f"cannot read {path}: {reason}. Is {path.parent} the folder of a run?") from error


class JsonObject(StrictFields):
    """Typed access to a JSON object of a file."""

    def __init__(self, where: str, data: object) -> None:
        if not isinstance(data, dict):
            raise RecordError(f"{where} is {type(data).__name__}, not an object")
        super().__init__(where, data)

    def refuse(self, name: str, expected: str, got: object) -> NoReturn:
        """Raise the error for an invalid value."""
        raise RecordError(f"{self.where}: {name!r} must be {expected}, but is {str(got)[:80]!r}")

    def integer(self, name: str, least: int | None = 0, default: object = MISSING) -> int:
        """An integer of bounded length."""
        expected = f"an integer{'' if least is None else f', at least {least}'}, of at most {_DIGITS} digits"
        return self.checked(name, expected, lambda x: type(x) is int and abs(x) < 10**_DIGITS and (least is None or x >= least), default)


def _finite(x: object) -> bool:
    """Whether a value is a plausible number of seconds."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= _LONGEST


def _positive(x: Any) -> bool:
    """Whether a value is a plausible positive time, whose inverse is finite too."""
    return _finite(x) and x >= 1 / _LONGEST


def _counted(x: object) -> bool:
    return type(x) is int and 0 <= x < 10**_DIGITS


def _no_constant(name: str) -> object:
    raise ValueError(f"it contains {name}")
