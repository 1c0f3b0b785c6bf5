"""Configurations of studies: values, defaults and refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunesmith.experiments.study.config import ExperimentConfig, Variant
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.support.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
LEAST = 'workloads = ["relu(shape=8)"]\n'


def test_only_workloads_are_required_and_defaults_are_those_of_tune(tmp_path: Path) -> None:
    folder = tmp_path / "my_study"
    folder.mkdir()
    (folder / "config.toml").write_text(LEAST)
    config = ExperimentConfig.load(folder)
    assert config == ExperimentConfig("my_study", ("relu(shape=8)",)) == ExperimentConfig.load(folder / "config.toml")
    assert (config.samplers, config.models, config.seeds, config.trials, config.batch, config.leaders) == (
        ("evolutionary",),
        ("xgb",),
        (0,),
        128,
        32,
        4,
    )
    assert config.policy == MeasurePolicy() and config.variants == (Variant(),) and config.text == LEAST


def test_all_keys() -> None:
    text = (
        'name = "all"\nquestion = "What?"\nworkloads = ["a()", "suite:tiny"]\nsamplers = ["random", "mine.py:Mine"]\nmodels = ["xgb"]\n'
        'seeds = [3, -1]\ntrials = 5\nbatch = 2\nleaders = 0\nworkers = 0\ntarget = "llvm"\n'
        '[policy]\nmin_repeat_ms = 1\nrepeats = 2\nverify = "always"\noverlap = true\n'
        '[[variants]]\nname = "default"\n[[variants]]\nname = "off"\nracing = false\ndraft_model = false\nimperfect_tiles = false\n'
    )
    config = ExperimentConfig.from_text(text)
    assert (config.name, config.question, config.seeds, config.trials, config.workers, config.target) == (
        "all",
        "What?",
        (3, -1),
        5,
        0,
        "llvm",
    )
    assert config.policy == MeasurePolicy(RacePolicy(min_repeat_ms=1.0, repeats=2), verify="always", overlap=True)
    assert config.variants == (Variant(), Variant("off", False, False, False))
    assert config.code == ("mine.py:Mine",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workloads = [", "is not TOML"),
        ("", "workloads is a list of texts, at least one, got []"),
        ("workloads = []", "at least one"),
        ('workloads = "relu(shape=8)"', "workloads is a list of texts"),
        ('workloads = ["a", 3]', "workloads is a list of texts"),
        ('workloads = ["a", "a"]', "workloads names a twice"),
        (LEAST + "seed = [1]", "unknown key 'seed'. Did you mean 'seeds'? Known: batch, leaders, models"),
        (LEAST + "zzz = 1", "unknown key 'zzz'. Known"),
        (LEAST + "seeds = [true]", "seeds is a list of integers"),
        (LEAST + "seeds = [1, 1]", "seeds names 1 twice"),
        (LEAST + "trials = 0", "trials is an integer, at least 1, got 0"),
        (LEAST + "trials = 2.5", "trials is an integer"),
        (LEAST + "leaders = -1", "leaders is an integer, at least 0"),
        (LEAST + "workers = -1", "workers is a number of processes"),
        (LEAST + "target = 3", "target is a text such as"),
        (LEAST + "question = 3", "question is a text"),
        (LEAST + 'name = "../up"', "name is letters, digits"),
        (LEAST + "policy = 3", "policy is a table"),
        (LEAST + "[policy]\nrepeat = 3", "unknown key 'repeat'. Did you mean 'repeats'?"),
        (LEAST + "[policy]\nrepeats = 0", "[policy]: race policy out of range: repeats=0"),
        (LEAST + '[policy]\nmin_repeat_ms = "3"', "min_repeat_ms is a number"),
        (LEAST + '[policy]\nverify = "perhaps"', "verify is one of"),
        (LEAST + "[policy]\noverlap = 1", "overlap is true or false"),
        (LEAST + "variants = 3", "each under [[variants]]"),
        (LEAST + "[[variants]]\nracing = false", "name is letters, digits"),
        (LEAST + '[[variants]]\nname = "a"\nracin = false', "unknown key 'racin'. Did you mean 'racing'?"),
        (LEAST + '[[variants]]\nname = "a"\n[[variants]]\nname = "a"\nracing = false', "two variants are named 'a'"),
        (LEAST + '[[variants]]\nname = "a"\n[[variants]]\nname = "b"', "'a' and 'b' are the same"),
    ],
)
def test_invalid_values_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        ExperimentConfig.from_text(text, "study.toml")
    assert "study.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*config.toml: No such file"):
        ExperimentConfig.load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read .*binary.toml"):
        ExperimentConfig.load(tmp_path / "binary.toml")


def test_the_documentation_lists_every_key_and_loads() -> None:
    text = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    config = ExperimentConfig.from_text(example)
    assert config.policy == MeasurePolicy() and len(config.variants) == 2
    with pytest.raises(UserError) as caught:
        ExperimentConfig.from_text(LEAST + "zzz = 1")
    keys = str(caught.value).rpartition("Known: ")[2].rstrip(".").split(", ")
    with pytest.raises(UserError) as caught:
        ExperimentConfig.from_text(LEAST + "[policy]\nzzz = 1")
    keys += str(caught.value).rpartition("Known: ")[2].rstrip(".").split(", ")
    missing = [k for k in keys if not re.search(rf"^(\[+)?{k}\b", example, re.MULTILINE)]
    assert not missing
