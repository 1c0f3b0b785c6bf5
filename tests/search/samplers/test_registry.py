"""Test the lookup of samplers and models by name, class and file, their arguments, and error messages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith.costmodel.models.model import CostModel
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
    with pytest.raises(UserError, match="not a class that derives from"):
        find_sampler(f"{tmp_path / 'mine.py'}:Other")
    with pytest.raises(UserError, match="holds no 'Absent'"):
        find_sampler(f"{tmp_path / 'mine.py'}:Absent")
    with pytest.raises(UserError, match="there is no file"):
        find_sampler("absent.py:X")
    with pytest.raises(UserError, match="derives from"):
        find_sampler(int)  # type: ignore[arg-type]


def test_models_by_name_or_factory() -> None:
    seen: list[int] = []

    def make(seed: int) -> Any:
        seen.append(seed)
        return "model"

    assert make_model(make, 3) == "model" and seen == [3]
    assert make_model(lambda: "plain") == "plain"  # type: ignore[arg-type,return-value]
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
    with pytest.raises(UserError, match="the model .*mine.py:make' is <function make .*not a class that derives from tunesmith.costmodel"):
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
    with pytest.raises(UserError, match=r"the cost model Bad has no load, score, update: .* tunesmith.costmodel.models.model.CostModel"):
        find_model(Bad)


def test_an_incomplete_class_in_a_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("from tunesmith.costmodel.models.model import CostModel\nclass Bad(CostModel): pass\n")
    with pytest.raises(UserError, match="the cost model Bad has no load, save, score, update"):
        find_model(f"{file}:Bad")
