"""Train and evaluate models from logs and tables, in Python and on the command line, and search with the result."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.costmodel.models.registry import find_model
from tunesmith.costmodel.models.sample_weights import DISTURBED_WEIGHT
from tunesmith.costmodel.training.evaluation import METRICS
from tunesmith.datasets.record_table import RecordTable
from tunesmith.display.tables import as_text
from tunesmith.driver.train import evaluate_files, examples, train
from tunesmith.driver.tune_options import grouped
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.task import Task
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
TEXTS = ("matmul(m=64,n=48,k=32)", "softmax(m=40,n=64)")


def fill(path: Path, text: str, n: int = 15) -> Path:
    """A log of random candidates of a workload, with analytic times."""
    task = Task(text, workload(text).func, TARGET)
    sketch = task.space.sketches[0]
    rows = sketch.space.sample(n, stream(0, text))
    lines: list[Record | WorkloadLine] = [WorkloadLine(task.digest, text, script(task.func))]
    for i, (row, t) in enumerate(zip(rows.tolist(), ProposalGenerator(task).analytic[0].seconds(rows).tolist(), strict=True)):
        trace = sketch.trace_of(tuple(row)).to_json()
        error = ErrorInfo("timeout", "too slow") if i == 3 else None
        samples = () if error else (t,)
        stamp = 1000.0 + i
        lines.append(
            Record(task.digest, TARGET.to_json(), trace, sketch.name, tuple(row), samples, True, error, not error, {}, {}, 0, stamp, {})
        )
    RecordLog(path).append(*lines)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [fill(tmp_path / f"{i}.jsonl", text) for i, text in enumerate(TEXTS)]


def test_logs_and_tables_give_the_same_examples(logs: list[Path], tmp_path: Path) -> None:
    RecordTable.from_log(logs).save(tmp_path / "all.parquet")
    one, other = examples(logs), examples([tmp_path / "all.parquet", logs[0]])
    assert [t.name for t in one.tasks] == list(TEXTS) and one.tasks == other.tasks
    assert np.array_equal(one.seconds, other.seconds) and np.isinf(one.seconds).sum() == 2
    assert np.array_equal(one.features("program"), other.features("program"))


def test_models_are_also_evaluated_on_clean_programs(tmp_path: Path) -> None:
    """Disturbed times are random, so that every metric of the analytic cost is lower where they count."""
    log = fill(tmp_path / "log.jsonl", TEXTS[0], 60)
    draw = stream(0, "noise")
    records = [
        replace(r, clean=False, samples=tuple(x * draw.uniform(1, 100) for x in r.samples)) if i % 2 else r
        for i, r in enumerate(Database.from_log(log).records())
    ]
    table = RecordTable.from_records(records, RecordLog(log).load().workloads.values())
    table.save(tmp_path / "noisy.parquet")
    found = evaluate_files("analytic", tmp_path / "noisy.parquet")
    every, clean = found.found.values["model"]["Spearman"], found.found.clean_values["model"]["Spearman"]
    assert clean == pytest.approx(1) and every is not None and every < 0.9
    assert 20 < found.found.clean < found.found.programs and found.to_json()["clean"] == found.found.clean
    text = as_text(found.render())
    assert (
        f"analytic, {found.found.clean} clean programs" in text
        and f"{found.found.clean} of {found.found.programs} measurements are clean" in text
    )
    trained = train(tmp_path / "noisy.parquet", tmp_path / "m.json", "analytic")
    assert f"{found.found.clean} of {found.found.programs} measurements are clean" in as_text(trained.render())
    assert evaluate_files("analytic", log).found.clean_values == {}


def noisy_log(path: Path, clean: int) -> Path:
    """A table of 15 candidates, of which one failed and `clean` times were not disturbed."""
    log = fill(path / "log.jsonl", TEXTS[0])
    records = Database.from_log(log).records()
    timed = [i for i, r in enumerate(records) if r.error is None]
    records = [replace(r, clean=i not in timed[clean:]) for i, r in enumerate(records)]
    RecordTable.from_records(records, RecordLog(log).load().workloads.values()).save(path / "noisy.parquet")
    return path / "noisy.parquet"


def test_quiet_only_leaves_out_disturbed_times(tmp_path: Path) -> None:
    file = noisy_log(tmp_path, 9)
    every, quiet = examples(file), examples(file, quiet_only=True)
    assert (len(every), len(quiet)) == (15, 10) and quiet.clean.all() and np.isinf(quiet.seconds).sum() == 1
    assert sorted(every.weights.tolist()) == [DISTURBED_WEIGHT] * 5 + [1.0] * 10
    made = train(file, tmp_path / "m.json", "random", quiet_only=True)
    assert "5 records skipped\n  5: left out by quiet_only: other processes disturbed their times" in as_text(made.render())
    result = CliRunner().invoke(main, ["costmodel", "eval", "analytic", str(file), "--folds", "2", "--quiet-only"])
    assert result.exit_code == 0 and "9 programs of 1 tasks" in result.stdout and "5: left out by quiet_only" in result.stdout


def test_a_log_without_valid_lines(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    log.write_text("no record\nneither\n")
    for quiet in (False, True):
        with pytest.raises(
            UserError, match=r"no record can be used for training: 2 records skipped\n  2: .*bad.jsonl: invalid lines, the first .*:1"
        ):
            examples(log, quiet_only=quiet)


def test_quiet_only_with_few_times_that_are_all_clean(tmp_path: Path) -> None:
    log = fill(tmp_path / "log.jsonl", TEXTS[0], 3)
    with pytest.raises(UserError, match="there are 3 times, all of them clean, and at least 8 are needed: measure more programs"):
        examples(log, quiet_only=True)


def test_quiet_only_needs_clean_times(tmp_path: Path) -> None:
    file = noisy_log(tmp_path, 7)
    message = "7 of 14 times are clean, and at least 8 are needed: .* again on a quiet machine .*--retake.*, without --quiet-only"
    with pytest.raises(UserError, match=message):
        evaluate_files("random", file, quiet_only=True)
    result = CliRunner().invoke(main, ["costmodel", "train", str(file), "-o", str(tmp_path / "m.json"), "--quiet-only"])
    assert result.exit_code == 2 and "7 of 14 times are clean" in result.stderr
    out = tmp_path / "quiet.parquet"
    for command in (["merge", file, "--out", out], ["export", file, "--out", out]):
        result = CliRunner().invoke(main, ["dataset", *map(str, command), "--quiet-only"])
        assert result.exit_code == 0 and "7 records left out: other processes disturbed the times" in result.stderr
        assert len(RecordTable.load(out)) == 8
    result = CliRunner().invoke(main, ["dataset", "split", str(file), "--train", "0.5", "--out", str(tmp_path / "parts"), "--quiet-only"])
    assert result.exit_code == 0 and sum(len(RecordTable.load(tmp_path / "parts" / f"{n}.parquet")) for n in ("train", "test")) == 8


def test_the_analytic_cost_uses_the_rates_of_a_table(logs: list[Path], tmp_path: Path) -> None:
    # Both rates are given: those of a log's target are calibrated if it is the processor of the test.
    issue = []
    for share in (1, 8):
        target = TARGET.with_attributes(peak_gflops_core=TARGET.peak_gflops_core / share)
        RecordTable.from_log(logs[0], [target]).save(tmp_path / "table.parquet")
        column = -1 - len(("shared", "l2", "l3", "dram", "stalls", "overhead"))
        issue.insert(0, examples(tmp_path / "table.parquet").features("program")[:, column])
    assert np.allclose(issue[0] - issue[1], 3.0, atol=0.1), "stored as a logarithm"


def test_invalid_lines_are_counted(logs: list[Path]) -> None:
    with logs[0].open("a") as file:
        file.write("not a record\n")
    data = examples(logs[0])
    assert data.refused.count == 1 and "invalid lines" in str(data.refused) and f"{logs[0]}:17" in str(data.refused)


@pytest.mark.parametrize(("model", "file"), [("xgb", "m.json"), ("mlp", "m.safetensors"), ("analytic", "m.json")])
def test_a_trained_model_is_saved_evaluated_and_guides_a_search(model: str, file: str, logs: list[Path], tmp_path: Path) -> None:
    made = train(logs, tmp_path / file, model)
    data = made.data
    assert as_text(made.render()).startswith(f"{tmp_path / file}: trained on 30 programs of 2 tasks")
    loaded = find_model(str(tmp_path / file))()
    features = data.features(loaded.inputs)
    assert np.array_equal(loaded.score(features), made.model.score(features))
    evaluated = evaluate_files(str(tmp_path / file), logs)
    assert evaluated.found.holdout is None and set(evaluated.found.values) == {"model", "analytic", "random"}
    again = evaluate_files(str(tmp_path / file), logs, "task")
    assert again.found.folds == 2 and set(again.found.values) == {"model", "shuffled", "analytic", "random"}
    quick = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
    here = Target("llvm")
    report = tunesmith.tune(
        TEXTS[1],
        **grouped(
            target=here, trials=10, log=None, model=str(tmp_path / file), batch=8, workers=0, leaders=0, progress=False, policy=quick
        ),
    )
    assert report.ok and report.tasks[0].scored > 0


def test_the_commands(logs: list[Path], tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, ["costmodel", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout

    file, out = tmp_path / "m.json", tmp_path / "out.json"
    assert "trained on 30 programs of 2 tasks" in run("train", *logs, "-o", file, "--json", out)
    data = json.loads(out.read_text())
    assert data["file"] == str(file) and data["programs"] == 30 and [t["workload"] for t in data["tasks"]] == list(TEXTS)
    table = run("eval", "xgb", *logs, "--holdout", "family", "--json", out)
    assert "held out by family, 2 folds" in table and "shuffled" in table
    data = json.loads(out.read_text())
    assert (data["holdout"], data["folds"], data["judged"], data["refused"]["records"]) == ("family", 2, 28, 0)
    assert set(data["values"]) == {"model", "shuffled", "analytic", "random"} and set(data["values"]["random"]) == set(METRICS)
    table = run("eval", file, *logs)
    assert "as it is" in table and f"programs that {file} was trained on count too" in table and "train on train.parquet and" in table
    assert "the R2 of random is what the means of the tasks explain" in table
    assert "-: best-5 of 32 would be the same for any model, because there are too few programs of a task\n" in table
    assert f"programs that {file} was trained on count too" in run("eval", file, *logs, "--holdout", "task"), "it has seen them before"
    table = run("eval", "random", *logs, "--folds", 3)
    assert "within tasks, 3 folds" in table and "was trained on" not in table
    assert (
        "-: top-5, recall@10, best-5 of 32 would be the same for any model, because there are too few programs of a task in one fold"
        in table
    )
    run("train", logs[0], "--model", file, "-o", tmp_path / "further.json")
    assert len(json.loads((tmp_path / "further.json").read_text())["parts"]) == 3  # the analytic cost, trees, more trees


RIDGE = """
import json
import os
from ridge_solver import solve
from tunesmith.costmodel.models.model import CostModel, check_training_data, log_throughput
from tunesmith.costmodel.models.saved_model import not_saved, read_json, write_json
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
import numpy as np


class Ridge(CostModel):
    w = None
    ready = property(lambda self: self.w is not None)

    def score(self, features):
        return np.zeros(len(features)) if self.w is None else np.einsum("nf,f->n", np.asarray(features, np.float64), self.w)

    def update(self, features, seconds, groups):
        check_training_data(features, seconds, groups)
        if len(seconds):
            self.w = solve(np.asarray(features, np.float64), log_throughput(seconds, groups, -6.0))

    def save(self, path):
        write_json(path, {"model": "ridge", "schema": SCHEMA_VERSION, "w": self.w.tolist()})

    @classmethod
    def load(cls, path):
        out = cls()
        out.w = np.array(read_json(path, "ridge", cls)["w"])
        return out
"""
SOLVER = """
import numpy as np


def solve(x, y):
    return np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
"""


def test_a_model_of_a_file_is_saved_and_guides_a_search(logs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "ridge.py").write_text(RIDGE)
    (tmp_path / "ridge_solver.py").write_text(SOLVER)
    kind, file = f"{tmp_path}/ridge.py:Ridge", tmp_path / "m.json"
    path, modules = list(sys.path), set(sys.modules)
    try:
        made = train(logs, file, kind)
        assert f"--model {kind}@{file}" in as_text(made.render(), 1000)
        loaded = find_model(f"{kind}@{file}")()
        assert loaded.ready and np.array_equal(loaded.score(made.data.features("program")), made.model.score(made.data.features("program")))
        assert evaluate_files(f"{kind}@{file}", logs).found.holdout is None
        quick = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
        given: dict[str, Any] = {"batch": 4, "workers": 0, "leaders": 0, "progress": False, "policy": quick}
        report = tunesmith.tune(TEXTS[1], **grouped(target=Target("llvm"), trials=4, log=None, model=f"{kind}@{file}", **given))
        assert report.ok and report.tasks[0].scored > 0
        # Loading a model never runs code named in its file, so the class must be given separately.
        with pytest.raises(UserError, match=r"unknown cost model 'ridge'.*of your own wrote it, name both: path.py:Class@.*m\.json"):
            tunesmith.tune(TEXTS[1], **grouped(target=Target("llvm"), trials=4, log=None, model=str(file), **given))
        with pytest.raises(UserError, match=r"'m.txt' is not a saved model: its name must end with one of .json, .safetensors"):
            find_model(f"{kind}@m.txt")
        with pytest.raises(RecordError, match="none.json is not a model written by Ridge.save"):
            find_model(f"{kind}@{tmp_path}/none.json")
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            del sys.modules[name]


def test_misuse_is_reported_before_the_files_are_read(logs: list[Path], tmp_path: Path) -> None:
    none = tmp_path / "none.jsonl"
    (tmp_path / "mine.py").write_text(
        "from tunesmith.costmodel.models.model import CostModel\n\n"
        "class Mine(CostModel):\n    def score(self, features): ...\n    def update(self, features, seconds, groups): ...\n"
    )
    with pytest.raises(UserError, match=r"the cost model Mine cannot be saved: it defines no save\(path\)"):
        train(none, tmp_path / "m.json", f"{tmp_path / 'mine.py'}:Mine")
    with pytest.raises(UserError, match=r"m\.json: files of this model have names that end with \.safetensors"):
        train(none, tmp_path / "m.json", "mlp")
    with pytest.raises(UserError, match="unknown cost model 'xbg'"):
        evaluate_files("xbg", none)
    with pytest.raises(RecordError, match=r"cannot read .*none\.jsonl"):
        train(none, tmp_path / "m.json")
    result = CliRunner().invoke(main, ["costmodel", "eval", "xgb", str(logs[0]), "--holdout", "task"])
    assert result.exit_code == 2 and "all programs have the same task" in result.stderr


@pytest.mark.parametrize("method", ["__init__", "update", "score"])
def test_an_exception_of_a_users_model_names_its_line(logs: list[Path], tmp_path: Path, method: str) -> None:
    lines = ["import numpy as np", "", "from tunesmith.costmodel.models.model import CostModel", "", "", "class Broken(CostModel):"]
    bodies = {"__init__": "pass", "update": "pass", "score": "return np.zeros(len(features))", "save": "open(path, 'w').close()"}
    heads = {"__init__": "self", "update": "self, features, seconds, groups", "score": "self, features", "save": "self, path"}
    for name, body in bodies.items():
        lines += ["", f"    def {name}({heads[name]}):", "        raise RuntimeError('boom')" if name == method else f"        {body}"]
    lines += ["", "    @classmethod", "    def load(cls, path):", "        return cls()", "", "    suffix = '.json'"]
    code = tmp_path / "broken.py"
    code.write_text("\n".join(lines) + "\n")
    line = lines.index("        raise RuntimeError('boom')") + 1
    model = f"{code}:Broken"
    message = rf"the cost model (.*broken.py:)?Broken raised RuntimeError: boom at .*broken.py:{line} in {method}"
    with pytest.raises(UserError, match=message):
        evaluate_files(model, logs, folds=2) if method == "score" else train(logs, tmp_path / "m.json", model)
