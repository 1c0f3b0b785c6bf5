"""Test the lookup of samplers and models by name, class and file, their arguments, and error messages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.costmodel.models.registry import COST_MODELS, find_model, make_model
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.registry import SAMPLERS, find_sampler, make_sampler
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.support.errors import UserError

MINE = """
from tunesmith.search.samplers.sampler import Sampler

class Mine(Sampler):
    def __init__(self, seed):
        self.seed = seed
    def ask(self, n):
        return []
    def tell(self, results):
        pass

class Other:
    pass
"""


class Complete(Sampler):
    """A sampler with all supported constructor arguments."""

    def __init__(self, task: Any, model: Any, seed: int) -> None:
        self.given = (task, model, seed)

    def ask(self, n: int) -> list[Candidate]:
        return []

    def tell(self, results: object) -> None:
        assert isinstance(results, list) and all(isinstance(r, Result) for r in results)


def test_names() -> None:
    assert {"evolutionary", "random"} <= set(SAMPLERS)
    assert find_sampler("random") is RandomSampler
    assert find_sampler("evolutionary") is EvolutionarySampler
    assert find_sampler(RandomSampler) is RandomSampler


def test_a_sampler_gets_the_arguments_of_its_constructor(tmp_path: Path) -> None:
    task: Any = SimpleNamespace(digest="d")
    model: Any = object()
    made = make_sampler(Complete, task, lambda: model, 5)
    assert isinstance(made, Complete) and made.given == (task, model, 5)

    def no_model() -> Any:
        pytest.fail("a model was made for a sampler without a model")

    (tmp_path / "mine.py").write_text(MINE)
    mine: Any = make_sampler(f"{tmp_path / 'mine.py'}:Mine", task, no_model, 7)
    assert mine.seed == 7
    assert isinstance(make_sampler("random", task, no_model, 1), RandomSampler)


def test_unknown_samplers_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(UserError, match="unknown sampler 'evolutionry'. Did you mean 'evolutionary'"):
        find_sampler("evolutionry")
    with pytest.raises(UserError, match="^the sampler Other does not derive from tunesmith.search.samplers.sampler.Sampler$"):
        find_sampler(f"{tmp_path / 'mine.py'}:Other")
    with pytest.raises(UserError, match=r"holds no 'Min'\. Did you mean 'Mine'\?"):
        find_sampler(f"{tmp_path / 'mine.py'}:Min")
    with pytest.raises(UserError, match="mine.py' is a file and no sampler: name the object in it: .*mine.py:NAME, one of Mine, Other"):
        find_sampler(str(tmp_path / "mine.py"))
    with pytest.raises(UserError, match="name the object in it: absent.py:NAME$"):
        find_sampler("absent.py")
    with pytest.raises(UserError, match="there is no file"):
        find_sampler("absent.py:X")
    with pytest.raises(UserError, match="the sampler is 3, not a class that derives from"):
        find_sampler(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the sampler int does not derive from"):
        find_sampler(int)  # type: ignore[arg-type]


def test_a_sampler_whose_constructor_requires_another_argument_is_refused() -> None:
    class Bad(Complete):
        def __init__(self, space: object, seed: int) -> None: ...

    class Positional(Complete):
        def __init__(self, task: object, /) -> None: ...

    task: Any = SimpleNamespace(digest="d")
    needed = "a sampler is constructed with any of the keywords task, model, seed, and other parameters need defaults"
    with pytest.raises(UserError, match=f"Bad requires 'space': {needed}"):
        make_sampler(Bad, task, lambda: None, 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match=f"Positional requires 'task': {needed}"):
        make_sampler(Positional, task, lambda: None, 0)  # type: ignore[arg-type,return-value]


def test_a_method_with_other_parameters_is_refused() -> None:
    class Bad(Complete):
        def ask(self) -> list[Candidate]:  # type: ignore[override]
            return []

    class Model(CostModel):
        def score(self, features: Any) -> Any: ...
        def update(self, features: Any) -> Any: ...  # type: ignore[override]

    with pytest.raises(UserError, match=r"the sampler Bad defines ask\(self\), and is called as ask\(self, n\): too many positional"):
        find_sampler(Bad)
    with pytest.raises(UserError, match=r"the cost model Model defines update\(self, features\), .* update\(self, features, seconds, "):
        find_model(Model)


def test_models_by_name_or_factory() -> None:
    seen: list[int] = []

    def make(seed: int) -> CostModel:
        seen.append(seed)
        return RandomModel(seed=seed)

    assert isinstance(make_model(make, 3), RandomModel) and seen == [3]
    assert isinstance(make_model(lambda: RandomModel()), RandomModel)
    with pytest.raises(UserError, match="factory dict of cost models returned a dict: it must return an instance of .*model.CostModel"):
        make_model(dict)
    with pytest.raises(UserError, match="<lambda> requires 'x': a cost model is constructed with any of the keywords seed"):
        make_model(lambda x: x)
    with pytest.raises(UserError, match="random.py' is a file and no cost model"):
        make_model("random.py")
    assert {"random", "xgb"} <= set(COST_MODELS)
    assert type(make_model("random", 1)).__name__ == "RandomModel"
    with pytest.raises(UserError, match="unknown cost model 'xbg'. Did you mean 'xgb'"):
        make_model("xbg")


MODEL = """
from tunesmith.costmodel.models.random_model import RandomModel

class Mine(RandomModel):
    pass

def make():
    return Mine()
"""


def test_models_from_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    mine: Any = make_model(f"{file}:Mine", 4)
    assert isinstance(mine, CostModel) and type(mine).__name__ == "Mine" and mine.seed == 4
    with pytest.raises(UserError, match="the cost model .*mine.py:make' is <function make .*not a class that derives from "):
        find_model(f"{file}:make")
    with pytest.raises(UserError, match="not a class that derives from tunesmith.costmodel.models.model.CostModel"):
        find_model(f"{file}:__name__")
    with pytest.raises(UserError, match="holds no 'Absent'"):
        find_model(f"{file}:Absent")
    with pytest.raises(UserError, match="there is no file"):
        find_model("absent.py:Mine")


def test_an_incomplete_class_is_rejected() -> None:
    class Half(Sampler):
        def ask(self, n: int) -> list[Candidate]:
            return []

    class Bad(CostModel):
        def save(self, path: object) -> None: ...

    with pytest.raises(UserError, match=r"the sampler Half has no tell: the contract is that of tunesmith.search.samplers.sampler.Sampler"):
        find_sampler(Half)
    with pytest.raises(UserError, match=r"the cost model Bad has no score, update: .* tunesmith.costmodel.models.model.CostModel"):
        find_model(Bad)


def test_an_incomplete_class_in_a_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("from tunesmith.costmodel.models.model import CostModel\nclass Bad(CostModel): pass\n")
    with pytest.raises(UserError, match="the cost model Bad has no score, update"):
        find_model(f"{file}:Bad")
