"""The run folder of a study, as data: results of cells, the index, and how both are read back without trust.

RUN/config.toml            what was asked for
RUN/manifest.jsonl         where, when and with what software it ran, a run after another
RUN/index.json             all cells with their state, sizes of the spaces
RUN/cells/ID/log.jsonl     every measurement of a cell
RUN/cells/ID/result.json   what the cell found, its curve included
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn

from tunesmith.measure.records.run_manifest import read_manifest
from tunesmith.search.tuner import PHASES
from tunesmith.support import atomic_file
from tunesmith.support.errors import RecordError

VERSION = 1
MANIFEST = "manifest.jsonl"
"""See `measure.records.run_manifest`."""
STATES = ("done", "interrupted", "failed", "waiting")
"""Of a cell: only a cell that is done is not run again."""
MAX_BYTES = 256 << 20
"""A larger file of a run folder is refused."""
_LONGEST = 1e15
_DIGITS = 200
"""Seconds, and digits of integers, that a file may hold: enough for the sizes of spaces, and a float still holds them."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """What is compared: a sampler, the model it uses (empty for one that uses none), a variant."""

    sampler: str
    model: str
    variant: str

    @property
    def name(self) -> str:
        """As tables show it; the usual variant is not named."""
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
        """Name of its folder: readable, safe, and its own."""
        parts = [self.workload, self.arm.sampler, self.arm.model, self.arm.variant]
        digest = blake2b(json.dumps([*parts, self.seed]).encode(), digest_size=4).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9]+", "-", " ".join(parts)).strip("-")
        return f"{readable[:80]}-s{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell has found so far.

    Attributes:
        cell: which.
        state: one of `STATES`.
        digest: of the workload.
        trials: measured candidates.
        timed_trials: of them, those whose search time is known; a killed process takes the clock with it, but no record.
        errors: failed candidates by class.
        best_s: seconds of the best verified program, None if there is none.
        flops: operations of one call, 0 if they are not counted.
        sketch: the structure of the best.
        drafted, scored: candidates that the analytic and the learned model judged.
        seconds: where the time of `timed_trials` went: total and each of the phases.
        curve: best seconds after each trial, as the log judges in the end; None before the first program that was right.
        failure: why it failed; empty otherwise.
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

    @property
    def gflops(self) -> float | None:
        """Rate of the best; None if there is none, or operations are not counted."""
        return self.flops / self.best_s / 1e9 if self.best_s is not None and self.flops else None

    def summary(self) -> dict[str, object]:
        """As the index holds it: all but the curve."""
        data = asdict(self)
        cell = data.pop("cell")
        del data["curve"]
        return {"id": self.cell.id, "workload": cell["workload"], **cell["arm"], "seed": cell["seed"], **data, "gflops": self.gflops}

    def to_json(self) -> dict[str, object]:
        """As `result.json` holds it."""
        return {"v": VERSION, **self.summary(), "curve": list(self.curve)}

    @classmethod
    def from_json(cls, data: object, where: str) -> CellResult:
        """Read a `result.json`.  RecordError if it is none; `where` is what the message calls it."""
        get = Fields(where, data)
        cell = Cell(get.text("workload"), Arm(get.text("sampler"), get.text("model"), get.text("variant")), get.integer("seed", None))
        curve = get.take("curve", "a list of seconds", lambda x: isinstance(x, list) and all(y is None or _positive(y) for y in x))
        errors = get.take("errors", "counts by class", lambda x: isinstance(x, dict) and all(_counted(n) for n in x.values()))
        seconds = get.take("seconds", "seconds by phase", lambda x: isinstance(x, dict) and all(_finite(y) for y in x.values()))
        if set(seconds) != {"total", *PHASES}:
            get.refuse("seconds", f"seconds of total, {', '.join(PHASES)}")
        best = get.take("best_s", "seconds or null", lambda x: x is None or _positive(x))
        if best is not None and not curve:
            get.refuse("curve", "a list with the trial that found the best program")
        return cls(
            cell,
            str(get.take("state", f"one of {', '.join(STATES)}", lambda x: isinstance(x, str) and x in STATES)),
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
        )


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """How large the space of a workload is.

    Attributes:
        workload: its name.
        imperfect_tiles: with tiles that need not divide.
        sketches: structures.
        rows: candidates in the product of the tables: an upper bound where constraints join tables.
        admissible: of them, estimated by drawing.
        failure: why there is no space; empty otherwise.
    """

    workload: str
    imperfect_tiles: bool
    sketches: int = 0
    rows: int = 0
    admissible: int = 0
    failure: str = ""

    @classmethod
    def from_json(cls, data: object, where: str) -> SpaceSize:
        """Read one of the index.  RecordError if it is none."""
        get = Fields(where, data)
        flag = get.take("imperfect_tiles", "true or false", lambda x: isinstance(x, bool))
        return cls(
            get.text("workload"), bool(flag), get.integer("sketches"), get.integer("rows"), get.integer("admissible"), get.text("failure")
        )


@dataclass(frozen=True, slots=True)
class RunIndex:
    """A run folder.

    Attributes:
        name, question: of the study.
        settings: what all cells share, see `ExperimentConfig.settings`.
        variants: what each switches, by name.
        results: of all cells, in the order they are run.
        spaces: sizes of the spaces.
        interrupted: Ctrl-C ended the last run.
        base: the folder that relative paths of the configuration start from.
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
        """In the order of the configuration."""
        return tuple(dict.fromkeys(r.cell.arm for r in self.results))

    @property
    def workloads(self) -> tuple[str, ...]:
        """In the order of the configuration."""
        return tuple(dict.fromkeys(r.cell.workload for r in self.results))

    def of(self, workload: str, arm: Arm) -> list[CellResult]:
        """The finished results, which have a best program, over seeds: what may be compared."""
        mine = (r for r in self.results if r.cell.workload == workload and r.cell.arm == arm)
        return [r for r in mine if r.state == "done" and r.best_s is not None]

    def with_result(self, result: CellResult) -> RunIndex:
        """The index with a newer result of one cell."""
        return replace(self, results=tuple([result if r.cell == result.cell else r for r in self.results]))

    def to_json(self) -> dict[str, object]:
        """As `index.json` and `--json` hold it."""
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
        RecordError: it is none, or a file of it is malformed.
    """
    folder = Path(folder)
    path = folder / "index.json"
    get = Fields(str(path), read_json(path))
    if get.take("kind", "'experiment'", lambda x: x == "experiment") and get.integer("v") != VERSION:
        raise RecordError(f"{path} is of version {get.integer('v')}, and this tunesmith reads version {VERSION}")
    cells = get.take("cells", "a list of cells", lambda x: isinstance(x, list))
    spaces = get.take("spaces", "a list of sizes", lambda x: isinstance(x, list))
    results = []
    for n, data in enumerate(cells):
        cell = Fields(f"{path}, cell {n}", data)
        arm = Arm(cell.text("sampler"), cell.text("model"), cell.text("variant"))
        results.append(load_result(folder, Cell(cell.text("workload"), arm, cell.integer("seed", None))))
    settings = Fields(f"{path}, settings", get.mapping("settings"))
    for name, least in (("trials", 1), ("batch", 1), ("leaders", 0)):
        settings.integer(name, least)
    settings.take("target", "a text or null", lambda x: x is None or isinstance(x, str))
    return RunIndex(
        get.text("name"),
        get.text("question"),
        get.mapping("settings"),
        get.mapping("variants"),
        tuple(results),
        tuple([SpaceSize.from_json(s, f"{path}, space {n}") for n, s in enumerate(spaces)]),
        bool(get.take("interrupted", "true or false", lambda x: isinstance(x, bool))),
        get.text("base") if get.has("base") else "",
    )


def load_manifest(folder: Path) -> list[dict[str, object]]:
    """When, where and with what software a run folder was filled, part by part; nothing where there is no manifest."""
    return read_manifest(folder / MANIFEST) if (folder / MANIFEST).exists() else []


def cell_folder(folder: Path, cell: Cell) -> Path:
    """Where a cell of a run keeps its files."""
    return folder / "cells" / cell.id


def load_result(folder: Path, cell: Cell) -> CellResult:
    """The result of a cell of a run folder; `waiting` if it has none yet.  RecordError if the file is malformed."""
    path = cell_folder(folder, cell) / "result.json"
    if not path.exists():
        return CellResult(cell)
    result = CellResult.from_json(read_json(path), str(path))
    if result.cell != cell:
        raise RecordError(f"{path} is the result of {result.cell}, not of {cell}: remove the file, and the cell runs again from its log")
    return result


def write_json(path: Path, data: object) -> None:
    """Write the file whole or not at all.  RecordError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror or error}. Check the folder and its permissions") from error


def read_json(path: Path) -> object:
    """Plain data with finite numbers.  RecordError if the file is not there, too large, or something else."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecordError(f"{path} has more than {MAX_BYTES >> 20} MB, which no file of a run folder has")
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecordError(f"cannot read {path}: {reason}. Is {path.parent} the folder of a run?") from error


class Fields:
    """Typed access to a JSON object that came from a file."""

    def __init__(self, where: str, data: object) -> None:
        self.where = where
        if not isinstance(data, dict):
            raise RecordError(f"{where} is {type(data).__name__}, not an object")
        self._data: dict[str, object] = data

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raise the error that `key` is not what is wanted."""
        raise RecordError(f"{self.where}: {key!r} must be {wanted}, and is {str(self._data.get(key, 'missing'))[:80]!r}")

    def has(self, key: str) -> bool:
        """Whether the object has it: files of earlier versions lack some."""
        return key in self._data

    def take(self, key: str, wanted: str, fits: Callable[[object], bool]) -> Any:
        """The value, if it fits."""
        if key not in self._data or not fits(self._data[key]):
            self.refuse(key, wanted)
        return self._data[key]

    def text(self, key: str) -> str:
        """A text."""
        return str(self.take(key, "a text", lambda x: isinstance(x, str)))

    def integer(self, key: str, least: int | None = 0) -> int:
        """An integer."""
        wanted = f"an integer{'' if least is None else f', at least {least}'}, of at most {_DIGITS} digits"
        value = self.take(key, wanted, lambda x: type(x) is int and abs(x) < 10**_DIGITS and (least is None or x >= least))
        return int(value)

    def mapping(self, key: str) -> Json:
        """An object."""
        return self.take(key, "an object", lambda x: isinstance(x, dict))


def _finite(x: object) -> bool:
    """A number of seconds that a search can take."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= _LONGEST


def _positive(x: Any) -> bool:
    """A time of a program: with it and its inverse one can calculate."""
    return _finite(x) and x >= 1 / _LONGEST


def _counted(x: object) -> bool:
    return type(x) is int and 0 <= x < 10**_DIGITS


def _no_constant(name: str) -> object:
    raise ValueError(f"it holds {name}")
