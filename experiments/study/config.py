"""Read the configuration of a study from a TOML file, strictly: unknown keys are errors, not silent defaults.

Workloads x samplers x models x variants x seeds are the cells of the study; all other settings are shared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, NoReturn

from tunesmith.experiments.study.results import read_json
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import names_a_file
from tunesmith.support.seeds import recorded_seed
from tunesmith.support.strict_fields import StrictFields

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
        The default name is that of the folder; in a run folder, that of the run.

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
        run = _run(file.parent)
        return replace(
            cls.from_text(text, str(file), run.get("name") or file.resolve().parent.name), base=run.get("base") or str(Path.cwd())
        )

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
            "policy": {**self.policy.to_json(), **{name: getattr(self.policy, name) for name in ("law_every", "overlap", "retake")}},
        }


def _run(folder: Path) -> dict[str, str]:
    """The texts in the index of a run folder, such as its name and the base folder of its relative paths; empty for other folders."""
    index = folder / "index.json"
    data = read_json(index) if index.is_file() else None
    return {key: x for key, x in data.items() if isinstance(x, str)} if isinstance(data, dict) else {}


class _TomlTable(StrictFields):
    """A table of the file, read with type checks; keys that are not read are refused.

    By hand: the errors of msgspec and pydantic name an unknown key, but neither the nearest known one nor the allowed values in words.
    """

    ERROR = UserError
    NOUNS: ClassVar = {**StrictFields.NOUNS, dict: "a table"}

    def refuse(self, name: str, expected: str, got: object) -> NoReturn:
        raise UserError(f"{self.where}: {name} is {expected}, got {got!r}")

    def number(self, key: str, default: float) -> float:
        return float(self.checked(key, "a number", lambda x: type(x) in (int, float), default))

    def listed(self, key: str, default: Sequence[object], kind: type, items: str) -> tuple[object, ...]:
        """A non-empty list of distinct values."""
        expected = f"a list of {items}, at least one"
        value = self.checked(
            key, expected, lambda x: isinstance(x, list) and len(x) > 0 and all(type(y) is kind and y != "" for y in x), list(default)
        )
        if repeated := sorted({str(x) for x in value if value.count(x) > 1}):
            raise UserError(f"{self.where}: {key} names {', '.join(repeated)} twice")
        return tuple(value)

    def table(self, key: str) -> _TomlTable:
        return _TomlTable(f"{self.where}, [{key}]", self.mapping(key, {}))

    def tables(self, key: str) -> list[_TomlTable]:
        expected = f"tables, each under [[{key}]]"
        value = self.checked(key, expected, lambda x: isinstance(x, list) and all(isinstance(y, dict) for y in x), [])
        return [_TomlTable(f"{self.where}, [[{key}]] {n}", x) for n, x in enumerate(value, 1)]


def _config(t: _TomlTable, name: str, text: str) -> ExperimentConfig:
    name = t.text("name", name)
    if not NAME.fullmatch(name):
        t.refuse("name", "letters, digits, '_', '.' and '-', because it names a folder", name)
    config = ExperimentConfig(
        name=name,
        workloads=_texts(t, "workloads", ()),
        question=t.text("question", ""),
        samplers=_texts(t, "samplers", ("evolutionary",)),
        models=_texts(t, "models", ("xgb",)),
        seeds=tuple([recorded_seed(int(str(s))) for s in t.listed("seeds", (0,), int, "integers")]),
        variants=_variants(t),
        trials=t.integer("trials", 1, 128),
        batch=t.integer("batch", 1, 32),
        leaders=t.integer("leaders", 0, 4),
        workers=t.checked("workers", "a number of processes, 0 for none", lambda x: x is None or (type(x) is int and x >= 0), None),
        target=t.checked("target", "a text such as 'llvm -mcpu=native'", lambda x: x is None or isinstance(x, str), None),
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
    given = {name: t.integer(name, -(2**63), value) if isinstance(value, int) else t.number(name, value) for name, value in timing.items()}
    others = {
        "verify": t.text("verify", usual.verify),
        "law_every": t.integer("law_every", 1, usual.law_every),
        "overlap": t.flag("overlap", usual.overlap),
        "data_seed": t.integer("data_seed", 0, usual.data_seed),
        "retake": t.number("retake", usual.retake),
    }
    t.done()
    try:
        return MeasurePolicy(RacePolicy(**given), **others)  # type: ignore[arg-type]  # checked against the types of the defaults
    except UserError as error:
        raise UserError(f"{t.where}: {error}") from error
