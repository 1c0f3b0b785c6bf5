"""Parse the methods of an arena: a sampler and a cost model with their settings, written as text.

`evolutionary(draft=1024,drafting=off)` is a registered sampler with two settings changed, `mine.py:Mine` a class of a file; models are
written alike.  The text identifies the method in worker processes, in the journal and in reports.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import find_model, model_class
from tunesmith.search.samplers.registry import find_sampler
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.task import Task
from tunesmith.support.code_digest import code_digests
from tunesmith.support.errors import UserError
from tunesmith.support.source_closure import source_closure

NO_MODEL = "none"
"""The name for no model; requires a sampler with the setting `learning`."""

_SPEC = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<settings>[^()]*)\))?")
_WORDS: dict[str, object] = {"on": True, "true": True, "off": False, "false": False, "none": None}


@dataclass(frozen=True, order=True)
class Method:
    """A sampler with a cost model.

    Attributes:
        sampler: a registered name or `path.py:Class`, optionally with settings in parentheses.
        model: likewise for a cost model, or the file of a saved one, or `none`; empty for a sampler without a model.
    """

    sampler: str
    model: str = ""

    def __getstate__(self) -> dict[str, str]:
        """Pickle only the texts: another process resolves the classes itself."""
        return {"sampler": self.sampler, "model": self.model}

    @property
    def label(self) -> str:
        """Name for tables and plots, without folders."""
        return " + ".join(re.sub(r"^[^()]*/", "", part) for part in (self.sampler, self.model) if part)

    def make(self, task: Task, seed: int) -> Sampler:
        """Create a sampler.

        Raises:
            UserError: unknown name, file, class or setting, or the sampler refuses a setting.
        """
        given: dict[str, Callable[[], object]] = {"task": lambda: task, "model": lambda: self._make_model(seed), "seed": lambda: seed}
        keywords = {name: make() for name, make in given.items() if name in self._parameters}
        changes = dict(self._sampler[1])
        if self.model == NO_MODEL:
            changes["learning"] = False
        return cast(Sampler, _call(self._sampler[0], changes, keywords, f"the sampler {self.sampler!r}"))

    @cached_property
    def code(self) -> str:
        """Digest of all code that the method runs: the files of its classes, the modules outside installed packages that they import,
        the versions of installed packages, and tunesmith's sources.  A changed digest invalidates journalled replays."""
        kinds, files = self._code
        sources = [inspect.getsourcefile(kind) for kind in kinds]
        return source_closure([*files, *[Path(s) for s in sources if s is not None]]).digest()

    @cached_property
    def files(self) -> dict[str, str]:
        """Digests of the user's files of the method, see `code_digests`."""
        kinds, files = self._code
        return code_digests([*kinds, *files])

    @cached_property
    def _code(self) -> tuple[list[type], list[Path]]:
        """The classes of the method, and the file of a saved model."""
        if self.model in ("", NO_MODEL):
            return [self._sampler[0]], []
        kind, saved = model_class(parse_spec(self.model)[0])
        return [self._sampler[0], kind], [] if saved is None else [Path(saved)]

    @property
    def takes_model(self) -> bool:
        """Whether the sampler takes a model."""
        return "model" in self._parameters

    def check(self) -> None:
        """Resolve all names and settings.  Raises UserError as `make` does, except for values refused by the classes themselves."""
        kind, changes = self._sampler
        _fields(kind, changes, f"the sampler {self.sampler!r}")
        if self.model == NO_MODEL:
            try:
                _fields(kind, {"learning": False}, "")
            except UserError:
                raise UserError(
                    f"the sampler {self.sampler!r} cannot run without a model: it has no setting `learning`. To compare it with one that "
                    "can, remove the model `none` and add that sampler as evolutionary(learning=off)"
                ) from None
        if self.model not in ("", NO_MODEL):
            _fields(*self._model, f"the model {self.model!r}")

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self._sampler[0]).parameters

    @cached_property
    def _sampler(self) -> tuple[type[Sampler], dict[str, object]]:
        name, settings = parse_spec(self.sampler)
        return find_sampler(name), settings

    @cached_property
    def _model(self) -> tuple[Callable[..., CostModel], dict[str, object]]:
        name, settings = parse_spec(self.model)
        return find_model(name), settings

    def _make_model(self, seed: int) -> CostModel:
        if self.model in ("", NO_MODEL):
            return find_model("random")(seed=seed)  # never queried
        make, changes = self._model
        keywords = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
        model = _call(make, changes, keywords, f"the model {self.model!r}")
        if not isinstance(model, CostModel):
            raise UserError(f"the model {self.model!r} is {model!r}, which does not derive from tunesmith.costmodel.models.model.CostModel")
        return model


def line_up(samplers: Sequence[str], models: Sequence[str]) -> list[Method]:
    """Every sampler with every model; a sampler without a model once, and one given with its model, `annealing+xgb`, with that one.

    Raises:
        UserError: no sampler, a sampler that needs a model without one, or an error of `Method.check`.
    """
    out: list[Method] = []
    for spec in samplers:
        sampler, model = _own_model(spec)
        if model:
            if not Method(sampler).takes_model:
                raise UserError(f"the sampler {sampler!r} takes no model, but {spec!r} names one: remove it")
            out += [e for e in (Method(sampler, model),) if e not in out]
            continue
        alone = Method(sampler)
        own = [Method(sampler, model) for model in models] if alone.takes_model else [alone]
        if not own:
            raise UserError(f"the sampler {sampler!r} needs a model, but none is given: name some, for example xgb,random")
        out += [e for e in own if e not in out]
    if not out:
        raise UserError("an arena needs a sampler: name some, for example random,evolutionary")
    for method in out:
        method.check()
    return out


def _own_model(spec: str) -> tuple[str, str]:
    """The sampler and the model of `sampler(...) + model(...)`; no model without a plus outside the parentheses."""
    found = re.fullmatch(r"([^()+]*(?:\([^()]*\))?)\s*\+\s*(.*)", spec)
    return (found[1].strip(), found[2].strip()) if found else (spec, "")


def split_specs(text: str) -> list[str]:
    """The specs of a comma-separated list; commas inside parentheses belong to a spec."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """`name(key=value,...)` as name and settings.  A value is a number, on, off, none, or text.

    Raises:
        UserError: the text does not have this form.
    """
    match = _SPEC.fullmatch(spec.strip())
    settings: dict[str, object] = {}
    for item in (match["settings"] or "").split(",") if match else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if item.strip() and not (equals and key.isidentifier() and value):
            match = None
            break
        if item.strip():
            settings[key] = _value(value)
    if match is None:
        raise UserError(f"{spec!r} is not of the form NAME or NAME(key=value,...), for example evolutionary(draft=1024,drafting=off)")
    return match["name"].strip(), settings


def _value(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _call(make: Callable[..., object], changes: Mapping[str, object], keywords: Mapping[str, object], what: str) -> object:
    """Call `make` with the keywords and the changed settings."""
    own, settings = _fields(make, changes, what)
    try:
        if settings is not None:
            own["settings"] = settings[0](**settings[1])
        return make(**keywords, **own)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} cannot be created: {error}") from error


def _fields(
    make: Callable[..., object], changes: Mapping[str, object], what: str
) -> tuple[dict[str, object], tuple[Callable[..., object], dict[str, object]] | None]:
    """Split the changes into keywords of `make` and fields of its `settings` dataclass."""
    parameters = inspect.signature(make).parameters
    own = {k: v for k, v in changes.items() if k in parameters and k not in ("task", "model", "seed", "settings")}
    rest = {k: v for k, v in changes.items() if k not in own}
    if not rest:
        return own, None
    kind = _settings_class(make) if "settings" in parameters else None
    known = [f.name for f in fields(kind)] if kind is not None else []
    unknown = sorted(rest.keys() - set(known))
    if unknown:
        every = [*(p for p in parameters if p not in ("task", "model", "seed", "settings")), *known]
        raise UserError(f"{what} has no setting {unknown[0]!r}. It has: {', '.join(every) or 'none'}")
    assert kind is not None
    return own, (kind, rest)


def _settings_class(make: Callable[..., object]) -> Any:
    """The dataclass in the annotation of `settings`, or None."""
    annotation = inspect.signature(make).parameters["settings"].annotation
    scope = getattr(getattr(make, "__init__") if isinstance(make, type) else make, "__globals__", {})  # noqa: B009
    if not isinstance(annotation, str):
        found: list[object] = [annotation, *getattr(annotation, "__args__", ())]
    else:
        found = [scope.get(name) for name in re.findall(r"\w+", annotation)]
    return next((c for c in found if isinstance(c, type) and is_dataclass(c)), None)
