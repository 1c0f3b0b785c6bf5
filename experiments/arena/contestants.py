"""Who takes part in an arena: a sampler with its settings and a cost model with its own, written as text.

`evolutionary(draft=1024,drafting=off)` is a registered sampler with two settings changed, `mine.py:Mine` a class of a file; so are
models.  The text is the entrant: it can be sent to another process, written into a journal, and read by people.
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
from tunesmith.support.errors import UserError
from tunesmith.support.source_closure import source_closure

NO_MODEL = "none"
"""The model that is none: the sampler searches without, for which it has a setting `learning`."""

_SPEC = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<settings>[^()]*)\))?")
_WORDS: dict[str, object] = {"on": True, "true": True, "off": False, "false": False, "none": None}


@dataclass(frozen=True, order=True)
class Method:
    """A sampler with a model.

    Attributes:
        sampler: a registered name or `path.py:Class`, perhaps with settings in parentheses.
        model: the same of a cost model, a file of a saved one, or `none`; empty for a sampler that takes no model.
    """

    sampler: str
    model: str = ""

    def __getstate__(self) -> dict[str, str]:
        """The texts alone: another process finds the classes itself."""
        return {"sampler": self.sampler, "model": self.model}

    @property
    def label(self) -> str:
        """For tables and plots: without folders."""
        return " + ".join(re.sub(r"^[^()]*/", "", part) for part in (self.sampler, self.model) if part)

    def make(self, task: Task, seed: int) -> Sampler:
        """A fresh sampler.

        Raises:
            UserError: a name, file, class or setting is not there, or the sampler refuses a setting.
        """
        given: dict[str, Callable[[], object]] = {"task": lambda: task, "model": lambda: self._make_model(seed), "seed": lambda: seed}
        keywords = {name: make() for name, make in given.items() if name in self._parameters}
        changes = dict(self._sampler[1])
        if self.model == NO_MODEL:
            changes["learning"] = False
        return cast(Sampler, _call(self._sampler[0], changes, keywords, f"the sampler {self.sampler!r}"))

    @cached_property
    def code(self) -> str:
        """Digest of all that the classes run: their files, the modules outside of installed packages that these import, the versions of
        installed packages, and tunesmith's own sources.  Results of code that was changed since are no longer its results."""
        kinds: list[type] = [self._sampler[0]]
        files: list[Path] = []
        if self.model not in ("", NO_MODEL):
            kind, saved = model_class(parse_spec(self.model)[0])
            kinds.append(kind)
            files += [] if saved is None else [Path(saved)]
        sources = [inspect.getsourcefile(kind) for kind in kinds]
        return source_closure([*files, *[Path(s) for s in sources if s is not None]]).digest()

    @property
    def takes_model(self) -> bool:
        """Whether the sampler is made with a model."""
        return "model" in self._parameters

    def check(self) -> None:
        """Find everything that the texts name.  UserError as for `make`, except for what the classes themselves refuse."""
        kind, changes = self._sampler
        _fields(kind, changes, f"the sampler {self.sampler!r}")
        if self.model == NO_MODEL:
            try:
                _fields(kind, {"learning": False}, "")
            except UserError:
                raise UserError(
                    f"the sampler {self.sampler!r} cannot do without a model: it has no setting `learning`. To compare it with one that "
                    "can, leave the model `none` out and name the other as evolutionary(learning=off)"
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
            return find_model("random")(seed=seed)  # never asked
        make, changes = self._model
        keywords = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
        model = _call(make, changes, keywords, f"the model {self.model!r}")
        if not isinstance(model, CostModel):
            raise UserError(f"the model {self.model!r} is {model!r}, which does not derive from tunesmith.costmodel.models.model.CostModel")
        return model


def line_up(samplers: Sequence[str], models: Sequence[str]) -> list[Method]:
    """Every sampler with every model; a sampler that takes none once, and one that is named with its model, `annealing+xgb`, with that.

    Raises:
        UserError: there is no sampler, or one wants a model and there is none; what `Entrant.check` finds.
    """
    out: list[Method] = []
    for spec in samplers:
        sampler, model = _own_model(spec)
        if model:
            if not Method(sampler).takes_model:
                raise UserError(f"the sampler {sampler!r} takes no model, and {spec!r} names one: leave it out")
            out += [e for e in (Method(sampler, model),) if e not in out]
            continue
        alone = Method(sampler)
        mine = [Method(sampler, model) for model in models] if alone.takes_model else [alone]
        if not mine:
            raise UserError(f"the sampler {sampler!r} takes a model, and none is named: name some, for example xgb,random")
        out += [e for e in mine if e not in out]
    if not out:
        raise UserError("an arena needs a sampler: name some, for example random,evolutionary")
    for entrant in out:
        entrant.check()
    return out


def _own_model(spec: str) -> tuple[str, str]:
    """The sampler and the model of `sampler(...) + model(...)`; no model where there is no plus outside of the parentheses."""
    found = re.fullmatch(r"([^()+]*(?:\([^()]*\))?)\s*\+\s*(.*)", spec)
    return (found[1].strip(), found[2].strip()) if found else (spec, "")


def split_specs(text: str) -> list[str]:
    """The specs in a list with commas between them; commas within parentheses belong to a spec."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """`name(key=value,...)` as name and settings.  A value is a number, on, off, none, or text.

    Raises:
        UserError: the text is not of that form.
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
    """`make` with the keywords and the changed settings."""
    own, settings = _fields(make, changes, what)
    try:
        if settings is not None:
            own["settings"] = settings[0](**settings[1])
        return make(**keywords, **own)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} cannot be made: {error}") from error


def _fields(
    make: Callable[..., object], changes: Mapping[str, object], what: str
) -> tuple[dict[str, object], tuple[Callable[..., object], dict[str, object]] | None]:
    """Which changes are keywords of `make`, and which are fields of the dataclass that it takes as `settings`."""
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
    """The dataclass in the annotation of `settings`; None if it is none."""
    annotation = inspect.signature(make).parameters["settings"].annotation
    scope = getattr(getattr(make, "__init__") if isinstance(make, type) else make, "__globals__", {})  # noqa: B009  mypy has doubts
    if not isinstance(annotation, str):
        found: list[object] = [annotation, *getattr(annotation, "__args__", ())]
    else:
        found = [scope.get(name) for name in re.findall(r"\w+", annotation)]
    return next((c for c in found if isinstance(c, type) and is_dataclass(c)), None)
