"""Look up samplers by registered name, by class or by file, and construct them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.task import Task
from tunesmith.support.load_from_file import find_named
from tunesmith.support.registry import Registry, derived_from
from tunesmith.support.user_code import check_class, construct

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
    found = find_named(SAMPLERS, spec) if isinstance(spec, str) else spec
    return check_class(found, Sampler, "the sampler", spec)  # type: ignore[type-abstract]


def make_sampler(spec: str | type[Sampler], task: Task, model: Callable[[], CostModel], seed: int) -> Sampler:
    """Construct the sampler of a task.

    The class is called with those of the keywords `task`, `model` and `seed` that its constructor has.

    Args:
        spec: see `find_sampler`.
        task: the task to sample.
        model: makes a new cost model; called only if the constructor has the keyword `model`.
        seed: seed of the search.
    Raises:
        UserError: as `find_sampler`; or the constructor requires other arguments, or raises an exception.
    """
    return construct(find_sampler(spec), "sampler", {"task": lambda: task, "model": model, "seed": lambda: seed})
