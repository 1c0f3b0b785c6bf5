"""The learned cost models by name; importing this table imports none of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from tunesmith.support.registry import Registry

if TYPE_CHECKING:
    from tunesmith.costmodel.model import CostModel

COST_MODELS: Registry[type[CostModel]] = Registry(
    "cost model",
    {
        "random": "tunesmith.costmodel.random_model:RandomModel",
        "xgb": "tunesmith.costmodel.xgb_model:XGBModel",
    },
)
"""All models by name; other packages add theirs through the entry point group `tunesmith.cost_model`."""


def find_model(spec: str | Callable[..., CostModel]) -> Callable[..., CostModel]:
    """What makes the models that `spec` names; what is no name is returned.  UserError if there is no model of that name."""
    return COST_MODELS.get(spec) if isinstance(spec, str) else spec


def make_model(spec: str | Callable[..., CostModel], seed: int = 0) -> CostModel:
    """A fresh model.

    Args:
        spec: a registered name, or what makes a model; it is called with `seed=` if it takes that.
        seed: of the search.
    Raises:
        UserError: there is no model of that name.
    """
    make = find_model(spec)
    return make(seed=seed) if "seed" in inspect.signature(make).parameters else make()
