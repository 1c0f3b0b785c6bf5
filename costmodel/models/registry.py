"""Look up cost models by registered name, class or file; importing this module imports no model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike, fspath

from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.saved_model import SUFFIXES, is_model_file, model_of_file
from tunesmith.support.errors import UserError
from tunesmith.support.load_from_file import find_named, load_from_file, names_a_file
from tunesmith.support.registry import Registry, derived_from
from tunesmith.support.user_code import check_class, check_complete, construct, path_of, shown

COST_MODELS: Registry[type[CostModel]] = Registry(
    "cost model",
    {
        "analytic": "tunesmith.costmodel.models.analytic_score:AnalyticScore",
        "mlp": "tunesmith.costmodel.models.torch_mlp_model:TorchMLPModel",
        "random": "tunesmith.costmodel.models.random_model:RandomModel",
        "xgb": "tunesmith.costmodel.models.xgb_model:XGBModel",
    },
    contract=derived_from(CostModel),
)
"""All models by name; other packages add theirs through the entry point group `tunesmith.cost_model`."""


def find_model(spec: str | Callable[..., CostModel]) -> Callable[..., CostModel]:
    """The factory of the models that `spec` names.

    Args:
        spec: a registered name; `path.py:Class`; a saved model (a path that ends with .json or .safetensors), which is loaded for each
            model; `path.py:Class@FILE`, the same for a file written by this class; or a factory, which is returned.
    Raises:
        UserError: there is no such name, file or class, it is not a `CostModel`, or it lacks required methods.
        RecordError: the file does not contain a model.
    """
    if not isinstance(spec, str):
        if not callable(spec):
            raise UserError(f"model={spec!r:.200}: pass a cost model as text (a name, path.py:Class, a file) or as a factory")
        check_complete(spec, "the cost model")
        return spec
    kind, file = model_class(spec)
    if file is None:
        return kind
    kind.load(file)  # report an error in the file now, not when the first task needs its model
    return partial(kind.load, file)


def load_model(path: str | PathLike[str]) -> CostModel:
    """The pretrained model in a file, which contains the registered name of its class.

    Raises:
        RecordError: the file does not exist, was modified, has another version, or does not contain a model.
        UserError: the model is not registered here, or needs a package that is not installed.
    """
    return _class_of_file(path).load(path)


def model_class(spec: str) -> tuple[type[CostModel], str | None]:
    """The class that a text names, see `find_model`, and the file to load, if it names one.

    Raises:
        UserError: see `find_model`.
        RecordError: the file does not contain the name of its model.
    """
    if names_a_file(spec):
        path, _, rest = spec.rpartition(".py:")
        name, at, file = rest.partition("@")
        named = f"{path}.py:{name}"
        if at and not is_model_file(file):
            raise UserError(f"the model {spec!r}: {file!r} is not a saved model: its name must end with one of {', '.join(SUFFIXES)}")
        found = check_class(load_from_file(named), CostModel, "the cost model", named)  # type: ignore[type-abstract]
        return found, file if at else None
    if is_model_file(spec):
        return _class_of_file(spec), spec
    return check_class(find_named(COST_MODELS, spec), CostModel, "the cost model", spec), None  # type: ignore[type-abstract]


def _class_of_file(path: str | PathLike[str]) -> type[CostModel]:
    """The registered class that a file names.  A model's file cannot name a class in a Python file, so loading it runs no other code."""
    name = model_of_file(path)
    try:
        return COST_MODELS.get(name)
    except UserError as error:
        if name in COST_MODELS:
            raise
        raise UserError(f"{fspath(path)}: {error} If a class of your own wrote it, name both: path.py:Class@{fspath(path)}") from None


def make_model(spec: str | Callable[..., CostModel], seed: int = 0) -> CostModel:
    """A new model.

    Args:
        spec: see `find_model`; the factory is called with `seed=` if it has that parameter.
        seed: seed of the search.
    Raises:
        UserError: see `find_model`; or the factory requires other arguments, raises an exception, or returns no CostModel.
        RecordError: see `find_model`.
    """
    make = find_model(spec)
    made = construct(make, "cost model", {"seed": lambda: seed})
    if not isinstance(made, CostModel):
        name = getattr(make, "__qualname__", repr(make))
        raise UserError(f"the factory {name} of cost models returned {shown(made)}: it must return an instance of {path_of(CostModel)}")
    return made
