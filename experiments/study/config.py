"""Read the configuration of a study from a TOML file, strictly: unknown keys are errors, not silent defaults.

Workloads x samplers x models x variants x seeds are the cells of the study; all other settings are shared.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import NoReturn

from tunesmith.experiments.study.results import read_json
from tunesmith.measure.measurer import MeasurePolicy
from tunesmith.measure.timing_policy import RacePolicy
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import names_a_file
from tunesmith.support.seeds import recorded_seed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names of studies and variants, restricted because they are used in folder names."""
_MODEL_FILES = (".json", ".safetensors")


@dataclass(frozen=True, slots=True)
class Variant:
    """An ablation: components disabled in part of the cells.

    Attributes:
        name: name in tables.
        racing: stop timing clearly slower candidates early; otherwise all are timed completely.
        draft_model: rank drafts by the analytic model; otherwise randomly.
        imperfect_tiles: allow tiles that do not divide their extent; otherwise the space excludes them.
    """

    name: str = "default"
    racing: bool = True
    draft_model: bool = True
    imperfect_tiles: bool = True


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """Configuration of a study.

    Attributes:
        name: name of the study, and by default of its run folder.
        question: research question, shown in the report.
        workloads: texts, `suite:NAME`, `path.py:function`.
        samplers, models: names, or `path.py:Class`; models may be files of saved ones.  A sampler without a model is run once, not once
            per model.
        seeds: seeds of the searches.
        variants: ablations.
        trials, batch, leaders, workers, target: as in `tunesmith.tune`.
        policy: how candidates are measured.
        text: text of the file.
        base: base folder of relative paths; empty for the current one.
    """

    name: str
    workloads: tuple[str, ...]
    question: str = ""
    samplers: tuple[str, ...] = ("evolutionary",)
    models: tuple[str, ...] = ("xgb",)
    seeds: tuple[int, ...] = (0,)
    variants: tuple[Variant, ...] = (Variant(),)
    trials: int = 128
    batch: int = 32
    leaders: int = 4
    workers: int | None = None
    target: str | None = None
    policy: MeasurePolicy = field(default_factory=MeasurePolicy)
    text: str = field(default="", repr=False, compare=False)
    base: str = field(default="", repr=False, compare=False)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ExperimentConfig:
        """Read a file, or the `config.toml` of a folder.

        Relative paths in it are relative to the current folder; in the copy in a run folder, to the folder where the run was started.

        Raises:
            UserError: the file cannot be read, is not TOML, or has an invalid value; the message names the place and the reason.
        """
        file = Path(path)
        file = file / "config.toml" if file.is_dir() else file
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"cannot read {file}: {reason}. Name a configuration, or a folder that holds a config.toml") from error
        return replace(cls.from_text(text, str(file), file.resolve().parent.name), base=_base(file.parent))

    @classmethod
    def from_text(cls, text: str, where: str = "the configuration", name: str = "experiment") -> ExperimentConfig:
        """Read the text of a file.

        Args:
            text: TOML.
            where: name of the file in messages.
            name: default name of the study.
        Raises:
            UserError: as `load`.
        """
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{where} is not TOML: {error}") from error
        return _config(_TomlTable(where, data), name, text)

    @property
    def code(self) -> tuple[str, ...]:
        """Entries that name Python files, which running the study would execute."""
        return tuple([x for x in (*self.workloads, *self.samplers, *self.models) if names_a_file(x)])

    def located(self, spec: str) -> str:
        """A workload, sampler or model with its path relative to the current folder, or absolute."""
        if not self.base or Path(self.base) == Path.cwd() or not (names_a_file(spec) or spec.endswith(_MODEL_FILES)):
            return spec
        code, at, file = spec.partition("@") if names_a_file(spec) else (spec, "", "")
        first, second = (str(Path(self.base) / part) if part else "" for part in (code, file))  # an absolute path stays as it is
        return f"{first}{at}{second}"

    def settings(self) -> dict[str, object]:
        """The settings shared by all cells, as plain JSON: all cells of a run folder agree in them."""
        return {
            "trials": self.trials,
            "batch": self.batch,
            "leaders": self.leaders,
            "target": self.target,
            "policy": {**self.policy.to_json(), "law_every": self.policy.law_every, "overlap": self.policy.overlap},
        }


def _base(folder: Path) -> str:
    """Base folder of the relative paths of a configuration in this folder."""
    index = folder / "index.json"
    data = read_json(index) if index.is_file() else None
    base = data.get("base") if isinstance(data, dict) else None
    return base if isinstance(base, str) and base else str(Path.cwd())


class _TomlTable:
    """A table of the file, read with type checks; keys that are not read are refused.

    By hand: the errors of msgspec and pydantic name an unknown key, but neither the nearest known one nor the allowed values in words.
    """

    def __init__(self, where: str, data: Mapping[str, object]) -> None:
        self.where = where
        self._data = dict(data)
        self._known: list[str] = []

    def refuse(self, key: str, expected: str, got: object) -> NoReturn:
        raise UserError(f"{self.where}: {key} is {expected}, got {got!r}")

    def take(self, key: str, default: object) -> object:
        self._known.append(key)
        return self._data.pop(key, default)

    def text(self, key: str, default: str) -> str:
        value = self.take(key, default)
        return value if isinstance(value, str) else self.refuse(key, "a text", value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        return value if isinstance(value, bool) else self.refuse(key, "true or false", value)

    def integer(self, key: str, default: int, least: int) -> int:
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, f"an integer, at least {least}", value)
        return value

    def number(self, key: str, default: float) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(key, "a number", value)
        return float(value)

    def listed(self, key: str, default: Sequence[object], kind: type, expected: str) -> tuple[object, ...]:
        """A non-empty list of distinct values."""
        value = self.take(key, list(default))
        if not isinstance(value, list) or not value or any(type(x) is not kind or x == "" for x in value):
            self.refuse(key, f"a list of {expected}, at least one", value)
        if repeated := sorted({str(x) for x in value if value.count(x) > 1}):
            raise UserError(f"{self.where}: {key} names {', '.join(repeated)} twice")
        return tuple(value)

    def table(self, key: str) -> _TomlTable:
        value = self.take(key, {})
        return _TomlTable(f"{self.where}, [{key}]", value) if isinstance(value, dict) else self.refuse(key, "a table", value)

    def tables(self, key: str) -> list[_TomlTable]:
        value = self.take(key, [])
        if not isinstance(value, list) or any(not isinstance(x, dict) for x in value):
            self.refuse(key, f"tables, each under [[{key}]]", value)
        return [_TomlTable(f"{self.where}, [[{key}]] {n}", x) for n, x in enumerate(value, 1)]

    def done(self) -> None:
        """Refuse keys that were not read."""
        for key in self._data:
            near = difflib.get_close_matches(key, self._known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{self.where}: unknown key {key!r}.{hint} Known: {', '.join(sorted(self._known))}.")


def _config(t: _TomlTable, name: str, text: str) -> ExperimentConfig:
    name = t.text("name", name)
    if not NAME.fullmatch(name):
        t.refuse("name", "letters, digits, '_', '.' and '-', because it names a folder", name)
    workers = t.take("workers", None)
    if workers is not None and (type(workers) is not int or workers < 0):
        t.refuse("workers", "a number of processes, 0 for none", workers)
    target = t.take("target", None)
    if target is not None and not isinstance(target, str):
        t.refuse("target", "a text such as 'llvm -mcpu=native'", target)
    config = ExperimentConfig(
        name=name,
        workloads=_texts(t, "workloads", ()),
        question=t.text("question", ""),
        samplers=_texts(t, "samplers", ("evolutionary",)),
        models=_texts(t, "models", ("xgb",)),
        seeds=tuple([recorded_seed(int(str(s))) for s in t.listed("seeds", (0,), int, "integers")]),
        variants=_variants(t),
        trials=t.integer("trials", 128, 1),
        batch=t.integer("batch", 32, 1),
        leaders=t.integer("leaders", 4, 0),
        workers=workers,
        target=target,
        policy=_policy(t.table("policy")),
        text=text,
    )
    t.done()
    return config


def _texts(t: _TomlTable, key: str, default: Sequence[str]) -> tuple[str, ...]:
    return tuple([str(x) for x in t.listed(key, default, str, "texts")])


def _variants(t: _TomlTable) -> tuple[Variant, ...]:
    found = []
    for part in t.tables("variants"):
        name = part.text("name", "")
        if not NAME.fullmatch(name):
            part.refuse("name", "letters, digits, '_', '.' and '-'", name)
        found.append(Variant(name, **{f.name: part.flag(f.name, True) for f in fields(Variant) if f.name != "name"}))
        part.done()
    for n, v in enumerate(found):
        for other in found[:n]:
            if v.name == other.name:
                raise UserError(f"{t.where}: two variants are named {v.name!r}")
            if (v.racing, v.draft_model, v.imperfect_tiles) == (other.racing, other.draft_model, other.imperfect_tiles):
                raise UserError(f"{t.where}: the variants {other.name!r} and {v.name!r} are the same: disable a component in one of them")
    return tuple(found) or (Variant(),)


def _policy(t: _TomlTable) -> MeasurePolicy:
    """Read the table `[policy]` with the fields of `RacePolicy` and `MeasurePolicy`."""
    usual, race = MeasurePolicy(), RacePolicy()
    timing = {f.name: getattr(race, f.name) for f in fields(RacePolicy)}
    given = {name: t.integer(name, value, -(2**63)) if isinstance(value, int) else t.number(name, value) for name, value in timing.items()}
    others = {
        "verify": t.text("verify", usual.verify),
        "law_every": t.integer("law_every", usual.law_every, 1),
        "overlap": t.flag("overlap", usual.overlap),
        "data_seed": t.integer("data_seed", usual.data_seed, 0),
    }
    t.done()
    try:
        return MeasurePolicy(RacePolicy(**given), **others)  # type: ignore[arg-type]  # checked against the types of the defaults
    except UserError as error:
        raise UserError(f"{t.where}: {error}") from error
