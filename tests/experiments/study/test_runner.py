"""Running studies: a small one end to end, resuming, failing cells, and refusals of run folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunesmith.display.tables import as_text
from tunesmith.driver.workloads import find_subject
from tunesmith.experiments.study.config import ExperimentConfig, Variant
from tunesmith.experiments.study.results import cell_folder, load_manifest, load_run
from tunesmith.experiments.study.runner import plan, run_experiment, space_size
from tunesmith.experiments.study.summary import summarise
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.support.errors import RecordError, UserError

SMOKE = Path(__file__).parents[1] / "studies" / "smoke"
TARGET = Target("llvm")
MATMUL = "matmul(m=32,n=32,k=32)"


def study(**changes: Any) -> ExperimentConfig:
    """A study of one workload with one random search of four trials in this process."""
    policy = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
    base = ExperimentConfig("small", (MATMUL,), samplers=("random",), trials=4, batch=2, leaders=0, workers=0, policy=policy)
    return replace(base, **changes)


def own_sampler(tmp_path: Path, body: str) -> str:
    file = tmp_path / "own.py"
    file.write_text(
        "from tunesmith.search.samplers.random_sampler import RandomSampler\nclass Own(RandomSampler):\n"
        f"    def ask(self, n):\n        {body}\n        return super().ask(n)\n"
    )
    return f"{file}:Own"


def test_a_small_study_runs_once(tmp_path: Path) -> None:
    config = ExperimentConfig.load(SMOKE)
    said: list[str] = []
    index = run_experiment(config, tmp_path / "run", target=TARGET, say=said.append)
    assert index.ok and not index.interrupted
    assert [r.cell.seed for r in index.results] == [0] * 4 + [1] * 4  # one seed after the other
    assert [a.name for a in index.arms] == ["random", "evolutionary + random"]
    for r in index.results:
        assert r.trials == r.timed_trials == 4 == len(r.curve) and r.best_s and r.curve[-1] == r.best_s
        assert r.seconds["total"] > 0
        log = RecordLog(cell_folder(tmp_path / "run", r.cell) / "log.jsonl").load()
        assert len({x.candidate for x in log.records}) == 4 and {x.seed for x in log.records} == {r.cell.seed}
    assert {(s.workload, s.sketches > 0) for s in index.spaces} == {(MATMUL, True), ("relu(shape=256)", True)}
    assert (tmp_path / "run" / "config.toml").read_text() == config.text
    assert json.loads((tmp_path / "run" / "index.json").read_text()) == index.to_json()
    assert load_run(tmp_path / "run") == index
    assert said[0].startswith("[1/8] ") and len(said) == 16
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cells").rglob("*.jsonl")}
    again = run_experiment(config, tmp_path / "run", target=TARGET, say=said.append)
    assert again == index and said[-1] == "smoke: all 8 cells are done"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cells").rglob("*.jsonl")} == stamps
    assert str(index).count("2/2") == 4


def test_variants(tmp_path: Path) -> None:
    variants = (
        Variant(),
        Variant("patient", racing=False),
        Variant("divisors", imperfect_tiles=False),
        Variant("blind", draft_model=False),
    )
    config = study(variants=variants, samplers=("evolutionary",), models=("random",), trials=2)
    index = run_experiment(config, tmp_path, target=TARGET)
    assert index.ok
    policies = {r.cell.arm.variant: RecordLog(cell_folder(tmp_path, r.cell) / "log.jsonl").load().records[0].policy for r in index.results}
    assert policies["default"]["give_up"] == policies["blind"]["give_up"] == 1.5 and policies["patient"]["give_up"] == 1e12
    sizes = {s.imperfect_tiles: s.rows for s in index.spaces}
    assert sizes[False] < sizes[True]
    assert [a.name for a in index.arms] == [
        "evolutionary + random",
        "evolutionary + random (patient)",
        "evolutionary + random (divisors)",
        "evolutionary + random (blind)",
    ]


def test_an_interrupted_cell_resumes_from_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = RandomSampler.ask
    rounds: list[int] = []

    def stopping(self: RandomSampler, n: int) -> Any:
        rounds.append(n)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return ask(self, n)

    monkeypatch.setattr(RandomSampler, "ask", stopping)
    config = study(seeds=(0, 1))
    first = run_experiment(config, tmp_path, target=TARGET)
    assert first.interrupted and not first.ok
    assert [(r.state, r.trials) for r in first.results] == [("interrupted", 2), ("waiting", 0)]
    assert "the same command resumes the run" in str(first)
    log = cell_folder(tmp_path, first.results[0].cell) / "log.jsonl"
    before = RecordLog(log).load().records
    second = run_experiment(config, tmp_path, target=TARGET)
    assert second.ok and not second.interrupted and load_run(tmp_path) == second
    assert list(RecordLog(log).load().records)[:2] == list(before)
    resumed = second.results[0]
    assert resumed.trials == resumed.timed_trials == 4 and resumed.seconds["total"] > first.results[0].seconds["total"]


def test_an_interrupt_between_searches_keeps_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tunesmith.experiments.study.runner.tune", interrupted)
    index = run_experiment(study(), tmp_path, target=TARGET)
    assert index.interrupted and load_run(tmp_path).interrupted and load_run(tmp_path).spaces


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("raise ValueError('no idea')", "ValueError: no idea at "),
        ("from tunesmith.support.errors import RunError; raise RunError('gone')", "gone"),
    ],
)
def test_a_failing_cell_stops_no_other_and_is_repeated(tmp_path: Path, body: str, failure: str) -> None:
    config = study(samplers=(own_sampler(tmp_path, body), "random"))
    index = run_experiment(config, tmp_path / "run", target=TARGET, run_code=True)
    assert [r.state for r in index.results] == ["failed", "done"] and failure in index.results[0].failure
    assert not index.ok and failure in as_text(index.render(), 400)
    own_sampler(tmp_path, "pass")
    assert run_experiment(config, tmp_path / "run", target=TARGET, run_code=True).ok


def test_a_sampler_without_drafts_fails_the_variant_without_draft_model(tmp_path: Path) -> None:
    index = run_experiment(study(variants=(Variant(), Variant("blind", draft_model=False))), tmp_path, target=TARGET)
    assert [r.state for r in index.results] == ["done", "failed"] and "has no draft model" in index.results[1].failure


def test_executable_files_need_permission(tmp_path: Path) -> None:
    spec = own_sampler(tmp_path, "pass")
    with pytest.raises(UserError, match="names Python files, which would be executed: .*own.py:Own.*--run-code"):
        run_experiment(study(samplers=(spec,)), tmp_path / "run", target=TARGET)
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_extended_but_not_changed(tmp_path: Path) -> None:
    assert run_experiment(study(), tmp_path, target=TARGET).ok
    log = next((tmp_path / "cells").rglob("log.jsonl"))
    text = log.read_text()
    grown = run_experiment(study(seeds=(0, 1), variants=(Variant(), Variant("patient", racing=False))), tmp_path, target=TARGET)
    assert grown.ok and len(grown.results) == 4 and log.read_text() == text
    with pytest.raises(UserError, match="has a run with other settings .trials: 4 in the folder, 8 now.: name another folder"):
        run_experiment(study(trials=8), tmp_path, target=TARGET)
    message = "the variant 'patient': racing disabled in the folder, draft_model now"
    with pytest.raises(UserError, match=message):
        run_experiment(study(variants=(Variant("patient", draft_model=False),)), tmp_path, target=TARGET)
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(RecordError, match="is list, not an object"):
        run_experiment(study(), tmp_path, target=TARGET)


def test_a_removed_variant_keeps_its_meaning(tmp_path: Path) -> None:
    """Its cells stay in the folder: a variant of its name with other components must not count them as its own."""
    patient, said = Variant("X", racing=False), list[str]()
    assert run_experiment(study(variants=(Variant(), patient)), tmp_path, target=TARGET).ok
    run_experiment(study(), tmp_path, target=TARGET, say=said.append)
    assert said[0] == (
        f"small: 1 cells of this run are not in the configuration any more, and reports leave them out: {MATMUL}: random (X), seed 0. "
        "Their files stay, and count again with the old configuration"
    )
    assert summarise(load_run(tmp_path))["variants"] == {"default": {"racing": True, "draft_model": True, "imperfect_tiles": True}}
    with pytest.raises(UserError, match="the variant 'X': racing disabled in the folder, imperfect_tiles now"):
        run_experiment(study(variants=(Variant(), Variant("X", imperfect_tiles=False))), tmp_path, target=TARGET)
    said.clear()
    assert run_experiment(study(variants=(Variant(), patient)), tmp_path, target=TARGET, say=said.append).ok
    assert said == ["small: all 2 cells are done"]


def test_many_removed_cells_are_counted(tmp_path: Path) -> None:
    said: list[str] = []
    run_experiment(study(seeds=(0, 1, 2, 3, 4), trials=2), tmp_path, target=TARGET)
    run_experiment(study(seeds=(0,), trials=2), tmp_path, target=TARGET, say=said.append)
    assert said[0].startswith("small: 4 cells of this run") and ", seed 3; and 1 more. Their files stay" in said[0]


def test_the_folder_of_another_study_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'workloads = ["{MATMUL}"]\nsamplers = ["random"]\ntrials = 2\nleaders = 0\nworkers = 0\n'
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.toml").write_text(text)
    config = ExperimentConfig.load("mine")
    run_experiment(config, "run", target=TARGET)
    before = (tmp_path / "run" / "index.json").read_bytes()
    message = "run has a run of the study 'mine', and this study is 'other': name another folder, or, .* write name = \"mine\""
    with pytest.raises(UserError, match=message):
        run_experiment(replace(config, name="other"), "run", target=TARGET)
    assert (tmp_path / "run" / "index.json").read_bytes() == before
    (tmp_path / "run").rename(tmp_path / "moved")
    assert ExperimentConfig.load("moved").name == "mine", "a run without a name in its configuration keeps that of its study"
    assert run_experiment(ExperimentConfig.load("moved"), "moved", target=TARGET).ok


def test_the_plan() -> None:
    laid_out = plan(study(workloads=("suite:tiny", MATMUL), samplers=("random", "evolutionary"), models=("random", "xgb"), seeds=(0, 1)))
    assert len(laid_out.subjects) == 7 and len(laid_out.cells) == 7 * 3 * 2
    assert {c.arm.name for c in laid_out.cells} == {"random", "evolutionary + random", "evolutionary + xgb"}
    assert len({c.id for c in laid_out.cells}) == len(laid_out.cells)
    assert laid_out.cells[0].id.startswith("matmul-m-64-n-64-k-64-random-default-s0-")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ("rulu(shape=3)",)}, "Did you mean 'relu'"),
        ({"workloads": ("suite:tinny",)}, "Did you mean 'tiny'"),
        ({"samplers": ("rondom",)}, "Did you mean 'random'"),
        ({"samplers": ("evolutionary",), "models": ("xbg",)}, "Did you mean 'xgb'"),
        ({"target": "lvm"}, "lvm"),
    ],
)
def test_unknown_names_are_refused_before_any_measurement(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_experiment(study(**changes), tmp_path / "run")
    assert not (tmp_path / "run" / "cells").exists()


def test_an_empty_space_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    size = space_size(find_subject("relu(shape=64)"), TARGET)
    assert (size.sketches, size.rows, size.admissible, size.failure) == (2, size.rows, size.rows, "")
    monkeypatch.setattr("tunesmith.experiments.study.runner.divisors_only", lambda: ())
    assert "makes no schedule for" in space_size(find_subject("relu(shape=64)"), TARGET, imperfect_tiles=False).failure


def test_a_run_resumes_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are relative to the folder where the run was started, not to the current one."""
    (tmp_path / "here").mkdir()
    (tmp_path / "away").mkdir()
    own_sampler(tmp_path / "here", "pass")
    (tmp_path / "here" / "op.py").write_text(
        "from tunesmith.ops.workload import workload\n\n\ndef small():\n    return workload('relu(shape=64)').func\n"
    )
    text = 'name = "own"\nworkloads = ["op.py:small"]\nsamplers = ["own.py:Own"]\nseeds = [0]\n'
    text += "trials = 4\nbatch = 4\nleaders = 0\nworkers = 0\n"
    monkeypatch.chdir(tmp_path / "here")
    said: list[str] = []
    begun = run_experiment(ExperimentConfig.from_text(text), tmp_path / "run", target=TARGET, run_code=True, say=said.append)
    assert begun.ok and load_run(tmp_path / "run").base == str(tmp_path / "here")
    assert "own: batch 4 >= trials 4: a sampler is asked once and learns nothing. Take a smaller batch, or more trials" in said
    monkeypatch.chdir(tmp_path / "away")
    (tmp_path / "run" / "config.toml").write_text(text.replace("seeds = [0]", "seeds = [0, 1]"))
    again = ExperimentConfig.load(tmp_path / "run")
    with pytest.raises(UserError, match=f"would be executed: {tmp_path}/here/op.py:small, {tmp_path}/here/own.py:Own"):
        run_experiment(again, tmp_path / "run", target=TARGET)
    index = run_experiment(again, tmp_path / "run", target=TARGET, run_code=True)
    assert index.ok and [(r.cell.workload, r.cell.arm.sampler) for r in index.results] == [("op.py:small", "own.py:Own")] * 2
    assert load_run(tmp_path / "run").base == str(tmp_path / "here")
    with pytest.raises(UserError, match=f"there is no file op.py in {tmp_path}/away"):
        run_experiment(ExperimentConfig.from_text(text), tmp_path / "other", target=TARGET, run_code=True)


def test_files_that_changed_since_the_last_part_of_a_run_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest has the digests of the sampler and of a module beside it; an edit of that module is reported by the next run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_own.py").write_text("DRAWS = 1\n")
    own_sampler(tmp_path, "import beside_own")
    config, said = study(samplers=("own.py:Own",)), list[str]()

    def run(config: ExperimentConfig) -> None:
        said.clear()
        run_experiment(config, tmp_path / "run", target=TARGET, run_code=True, say=said.append)

    run(config)
    (part,) = load_manifest(tmp_path / "run")
    assert sorted(part["code"]) == ["beside_own.py", "own.py"]  # type: ignore[call-overload]
    run(config)
    assert said == ["small: all 1 cells are done"]
    (tmp_path / "beside_own.py").write_text("DRAWS = 2\n")
    for changed in (config, replace(config, seeds=(0, 1))):
        run(changed)
        assert said[0].startswith("small: beside_own.py changed since the last part of this run, whose finished cells are not repeated")
    before, after = (x["code"] for x in load_manifest(tmp_path / "run"))
    assert before["own.py"] == after["own.py"] and before["beside_own.py"] != after["beside_own.py"]  # type: ignore[index]
