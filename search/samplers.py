"""Samplers by name, by class, or from a file: how a search is told what proposes its candidates."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith.search.sampler import Sampler
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry

if TYPE_CHECKING:
    from tunesmith.costmodel.model import CostModel

SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    {
        "evolutionary": "tunesmith.search.evolutionary_sampler:EvolutionarySampler",
        "random": "tunesmith.search.random_sampler:RandomSampler",
    },
)
"""All samplers by name; other packages add theirs through the entry point group `tunesmith.sampler`."""


def find_sampler(spec: str | type[Sampler]) -> type[Sampler]:
    """The class that `spec` names: a registered name, `path.py:Class`, or the class itself.

    Raises:
        UserError: there is no such name, file or class, or it is no `Sampler`.
    """
    if isinstance(spec, str) and ".py:" in spec:
        found: object = load_from_file(spec)
    else:
        found = SAMPLERS.get(spec) if isinstance(spec, str) else spec
    if not (isinstance(found, type) and issubclass(found, Sampler)):
        raise UserError(f"the sampler {spec!r} is {found!r}, not a class that derives from tunesmith.search.sampler.Sampler")
    return found


def make_sampler(spec: str | type[Sampler], task: Task, model: Callable[[], CostModel], seed: int) -> Sampler:
    """A sampler of one task.

    The class is called with those of the keywords `task`, `model` and `seed` that its constructor has.

    Args:
        spec: see `find_sampler`.
        task: what it samples.
        model: makes a fresh cost model; called only for a sampler that wants one.
        seed: of the search.
    """
    kind = find_sampler(spec)
    wanted = inspect.signature(kind).parameters
    make: dict[str, Callable[[], object]] = {"task": lambda: task, "model": model, "seed": lambda: seed}
    sampler = kind(**{name: value() for name, value in make.items() if name in wanted})
    return sampler


def load_from_file(spec: str) -> object:
    """What `path.py:name` names: the file is run as Python, as if it were imported.

    Raises:
        UserError: there is no such file, it fails, or it holds no such name.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise UserError(f"{spec!r}: there is no file {path}. Spell it path.py:name")
    module_spec = importlib.util.spec_from_file_location(file.stem, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{spec!r}: running {path} failed with {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(f"{spec!r}: {path} holds no {name!r}")
    return getattr(module, name)
