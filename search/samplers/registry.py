"""Look up samplers by registered name, by class or by file, and construct them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file
from tunesmith.support.registry import Registry, derived_from
from tunesmith.support.user_code import check_complete

if TYPE_CHECKING:
    from tunesmith.costmodel.models.model import CostModel

SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    {
        "annealing": "tunesmith.search.samplers.annealing_sampler:AnnealingSampler",
        "evolutionary": "tunesmith.search.samplers.evolutionary_sampler:EvolutionarySampler",
        "gradient": "tunesmith.search.samplers.torch_gradient_sampler:GradientSampler",
        "optuna-cmaes": "tunesmith.search.samplers.optuna_sampler:OptunaCMAESSampler",
        "optuna-gp": "tunesmith.search.samplers.optuna_sampler:OptunaGPSampler",
        "optuna-qmc": "tunesmith.search.samplers.optuna_sampler:OptunaQMCSampler",
        "optuna-random": "tunesmith.search.samplers.optuna_sampler:OptunaRandomSampler",
        "optuna-tpe": "tunesmith.search.samplers.optuna_sampler:OptunaTPESampler",
        "random": "tunesmith.search.samplers.random_sampler:RandomSampler",
    },
    contract=derived_from(Sampler),
)
"""All samplers by name; other packages add theirs through the entry point group `tunesmith.sampler`."""


def find_sampler(spec: str | type[Sampler]) -> type[Sampler]:
    """The class that `spec` names: a registered name, `path.py:Class`, or the class itself.

    Raises:
        UserError: there is no such name, file or class, it is not a `Sampler`, or it lacks required methods.
    """
    if isinstance(spec, str) and names_a_file(spec):
        found: object = load_from_file(spec)
    else:
        found = SAMPLERS.get(spec) if isinstance(spec, str) else spec
    if not (isinstance(found, type) and issubclass(found, Sampler)):
        raise UserError(f"the sampler {spec!r} is {found!r}, not a class that derives from tunesmith.search.samplers.sampler.Sampler")
    check_complete(found, "the sampler")
    return found


def make_sampler(spec: str | type[Sampler], task: Task, model: Callable[[], CostModel], seed: int) -> Sampler:
    """Construct the sampler of a task.

    The class is called with those of the keywords `task`, `model` and `seed` that its constructor has.

    Args:
        spec: see `find_sampler`.
        task: the task to sample.
        model: makes a new cost model; called only if the constructor has the keyword `model`.
        seed: seed of the search.
    """
    kind = find_sampler(spec)
    wanted = inspect.signature(kind).parameters
    make: dict[str, Callable[[], object]] = {"task": lambda: task, "model": model, "seed": lambda: seed}
    sampler = kind(**{name: value() for name, value in make.items() if name in wanted})
    return sampler
