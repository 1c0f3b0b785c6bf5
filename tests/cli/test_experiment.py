"""`tunesmith experiment` on the command line, and the shipped studies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tunesmith.cli.main import main
from tunesmith.driver.workloads import find_subjects
from tunesmith.experiments.study.config import ExperimentConfig

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted(path.parent for path in (ROOT / "experiments" / "studies").glob("*/config.toml"))
TINY = """
name = "tiny"
workloads = ["relu(shape=256)"]
samplers = ["random"]
seeds = [0, 1]
trials = 2
leaders = 0
workers = 0
target = "llvm"
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["experiment", *[str(a) for a in arguments]])


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "config.toml").write_text(TINY)
    return tmp_path / "study"


def test_run_report_compare(study: Path) -> None:
    done = run("run", study, "--json", "-")
    assert done.exit_code == 0, done.stderr
    index = json.loads(done.stdout)
    assert index["done"] == 2 and [c["state"] for c in index["cells"]] == ["done", "done"]
    assert index == json.loads(Path("runs/tiny/index.json").read_text())
    assert "[1/2] relu(shape=256): random, seed 0" in done.stderr and "2/2 trials" in done.stderr and "runs/tiny" in done.stderr
    resumed = run("run", "runs/tiny")
    assert resumed.exit_code == 0 and "all 2 cells are done" in resumed.stderr and not Path("runs/runs").exists()
    assert run("run", study / "config.toml", "-o", "runs/other").exit_code == 0
    page = run("report", "runs/tiny", "--json", "numbers.json")
    assert page.exit_code == 0 and page.stdout == "runs/tiny/report.html\n"
    assert json.loads(Path("numbers.json").read_text())["name"] == "tiny"
    assert run("report", "runs/tiny", "-o", "page.html").exit_code == 0 and Path("page.html").stat().st_size > 5000
    compared = run("compare", "runs/tiny", "runs/other", "--json", "-")
    assert compared.exit_code == 0 and [x["arm"] for x in json.loads(compared.stdout)["lines"]] == ["random"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere"], "cannot read nowhere"),
        (["run", "study", "-o", "study/config.toml/run"], "Not a directory"),
        (["report", "study"], "Is study the folder of a run?"),
        (["compare", "study", "study"], "Is study the folder of a run?"),
        (["run"], "Missing argument"),
    ],
)
def test_misuse_ends_with_2(study: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and message in result.stderr, result.stderr


def test_a_failing_cell_ends_with_1(study: Path) -> None:
    (study / "own.py").write_text(
        "from tunesmith.search.samplers.random_sampler import RandomSampler\n"
        "class Own(RandomSampler):\n    def ask(self, n):\n        return 1 / 0\n"
    )
    (study / "config.toml").write_text(TINY.replace('"random"', '"study/own.py:Own"'))
    refused = run("run", study)
    assert refused.exit_code == 2 and "--run-code" in refused.stderr
    failed = run("run", study, "--run-code")
    assert failed.exit_code == 1 and "ZeroDivisionError: division by zero" in failed.stdout


def test_studies_are_shipped() -> None:
    assert {folder.name for folder in STUDIES} >= {"sampler_comparison", "cost_model_comparison", "ablation"}


@pytest.mark.parametrize("folder", STUDIES, ids=[f.name for f in STUDIES])
def test_a_shipped_study_loads_and_documents_its_results(folder: Path) -> None:
    config = ExperimentConfig.load(folder)
    assert config.name == folder.name and config.question and not config.code and len(config.seeds) >= 3
    assert len(find_subjects(list(config.workloads))) == len(config.workloads)
    text = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("**Question.**", "**Expectation.**", "**Run.**", "**How to read the result.**", f"experiments/studies/{folder.name}"):
        assert part in text, part
    cells = len(config.workloads) * len(config.samplers) * len(config.models) * len(config.variants) * len(config.seeds)
    assert f"{cells * config.trials:,} measured" in text.replace("\n", " ")
