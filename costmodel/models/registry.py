"""The learned cost models by name; importing this table imports none of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from os import PathLike, fspath

from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.saved_model import SUFFIXES, is_model_file, model_of_file
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import load_from_file, names_a_file
from tunesmith.support.registry import Registry
from tunesmith.support.user_code import check_complete

COST_MODELS: Registry[type[CostModel]] = Registry(
    "cost model",
    {
        "analytic": "tunesmith.costmodel.models.analytic_score:AnalyticScore",
        "mlp": "tunesmith.costmodel.models.torch_mlp_model:TorchMLPModel",
        "random": "tunesmith.costmodel.models.random_model:RandomModel",
        "xgb": "tunesmith.costmodel.models.xgb_model:XGBModel",
    },
)
"""All models by name; other packages add theirs through the entry point group `tunesmith.cost_model`."""


def find_model(spec: str | Callable[..., CostModel]) -> Callable[..., CostModel]:
    """What makes the models that `spec` names.

    Args:
        spec: a registered name; `path.py:Class`; a file of a saved model (a text that ends with .json or .safetensors), from which
            each model is loaded afresh; `path.py:Class@FILE`, the same for a file that this class wrote; or what makes a model, which
            is returned.
    Raises:
        UserError: there is no model of that name, or no such file or class in it, or it is no `CostModel`, or lacks methods of one.
        RecordError: the file holds no model.
    """
    if not isinstance(spec, str):
        if not callable(spec):
            raise UserError(f"model={spec!r:.200}: a cost model is given by a text (a name, path.py:Class, a file) or by what makes one")
        check_complete(spec, "the cost model")
        return spec
    kind, file = model_class(spec)
    if file is None:
        return kind
    kind.load(file)  # an error in the file is raised now, not when the first task needs its model
    return partial(kind.load, file)


def load_model(path: str | PathLike[str]) -> CostModel:
    """The model that a file holds, pretrained with what it had learned; the file says which of the registered ones wrote it.

    Raises:
        RecordError: the file is not there, was changed, is of another version, or holds no model.
        UserError: it holds one that is not registered here, or that needs a package which is not installed.
    """
    return _class_of_file(path).load(path)


def model_class(spec: str) -> tuple[type[CostModel], str | None]:
    """The class that a text names, see `find_model`, and the file to load it from, if it names one.

    Raises:
        UserError: see `find_model`.
        RecordError: the file does not say which model it holds.
    """
    if names_a_file(spec):
        path, _, rest = spec.rpartition(".py:")
        name, at, file = rest.partition("@")
        named = f"{path}.py:{name}"
        if at and not is_model_file(file):
            raise UserError(f"the model {spec!r}: {file!r} is no file of a saved model: its name ends with none of {', '.join(SUFFIXES)}")
        found = load_from_file(named)
        if not (isinstance(found, type) and issubclass(found, CostModel)):
            raise UserError(f"the model {named!r} is {found!r}, not a class that derives from tunesmith.costmodel.models.model.CostModel")
        check_complete(found, "the cost model")
        return found, file if at else None
    if is_model_file(spec):
        return _class_of_file(spec), spec
    return COST_MODELS.get(spec), None


def _class_of_file(path: str | PathLike[str]) -> type[CostModel]:
    """The registered class whose name a file holds.  A class of a Python file is never run because a model's file names it."""
    name = model_of_file(path)
    try:
        return COST_MODELS.get(name)
    except UserError as error:
        if name in COST_MODELS:
            raise
        raise UserError(
            f"{fspath(path)}: {error} If a class in a file of your own wrote it, name both: path.py:Class@{fspath(path)}"
        ) from None


def make_model(spec: str | Callable[..., CostModel], seed: int = 0) -> CostModel:
    """A fresh model.

    Args:
        spec: see `find_model`; what makes the model is called with `seed=` if it takes that.
        seed: of the search.
    Raises:
        UserError, RecordError: see `find_model`.
    """
    make = find_model(spec)
    return make(seed=seed) if "seed" in inspect.signature(make).parameters else make()
