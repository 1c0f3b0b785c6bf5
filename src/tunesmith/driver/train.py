"""Train cost models on existing measurements, and evaluate them.

Measurements are logs (.jsonl) and record tables (.parquet).  Each candidate contributes only its representative record, so that no
program is in both the training and the test set.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from rich.console import Group, RenderableType

from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import make_model
from tunesmith.costmodel.models.sample_weights import update_model
from tunesmith.costmodel.models.saved_model import check_suffix, is_model_file
from tunesmith.costmodel.training.evaluation import FOLDS, METRICS, Evaluation, evaluate
from tunesmith.costmodel.training.training_set import Measured, Refused, TrainingSet, training_set
from tunesmith.datasets.record_table import RecordTable, load_any, merge
from tunesmith.display.noise import RETAKE, noise_remark
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import plain_table, printable
from tunesmith.ir.target.target import Target
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.support.load_from_file import names_a_file
from tunesmith.support.user_code import running

Path_ = str | PathLike[str]
LEAST_QUIET = 8
"""The least number of clean times that a model is trained or evaluated on with `quiet_only`."""


@dataclass(frozen=True, slots=True)
class Trained(Rendered):
    """Result of `train`: the model, its training set, the seconds taken (reading and features included), and its name for a search."""

    model: CostModel
    path: Path
    data: TrainingSet
    seconds: float
    named: str = ""

    def render(self) -> RenderableType:
        """The result as text for a terminal."""
        d = self.data
        text = f"{self.path}: trained on {len(d)} programs of {len(d.tasks)} tasks in {self.seconds:.1f} s"
        text += f"; use it with --model {self.named}" if self.named not in ("", str(self.path)) else ""
        return printable("\n".join([text, *_remarks(d)]))

    def to_json(self) -> dict[str, object]:
        """The result as plain data."""
        return {"file": str(self.path), "seconds": self.seconds, **_about(self.data)}


@dataclass(frozen=True, slots=True)
class EvaluatedModel(Rendered):
    """Result of `evaluate_files`: the evaluation of a model and its data."""

    model: str
    found: Evaluation
    data: TrainingSet

    def render(self) -> RenderableType:
        """A table of the model and the controls."""
        f = self.found
        how = (
            "as it is"
            if f.holdout is None
            else f"held out {'within tasks' if f.holdout == 'within' else 'by ' + f.holdout}, {f.folds} folds"
        )
        rows = [self._row(name, values, "") for name, values in f.values.items()]
        rows += [self._row(name, values, f", {f.clean} clean programs") for name, values in f.clean_values.items()]
        table = plain_table(f"{f.programs} programs of {f.tasks} tasks, {how}", ["model", *METRICS], rows)
        return Group(table, *[printable(line) for line in [*self._legend(), *_remarks(self.data)]])

    def _legend(self) -> list[str]:
        """What the numbers do not show: programs of the training set, scores of chance, and metrics of too few programs."""
        out = []
        if is_model_file(self.model):
            out.append(
                f"programs that {self.model} was trained on count too, if these files have some: to judge it on others, split the "
                "measurements (`tunesmith dataset split`), train on train.parquet and evaluate on test.parquet; or evaluate a new model, "
                "by name, with --holdout"
            )
        out.append("RMSE and R2 follow a line fitted to the scores of each task: the R2 of random is what the means of the tasks explain")
        if few := self.found.too_few_for:
            per = "a task" if self.found.holdout is None else "a task in one fold"
            out.append(f"-: {', '.join(few)} would be the same for any model, because there are too few programs of {per}")
        return out

    def _row(self, name: str, values: Mapping[str, float | None], on: str) -> list[str]:
        return [(self.model if name == "model" else name) + on, *["-" if v is None else f"{v:.3f}" for v in values.values()]]

    def to_json(self) -> dict[str, object]:
        """The evaluation as plain data."""
        f = self.found
        header = {
            "model": self.model,
            "holdout": f.holdout,
            "folds": f.folds,
            "judged": f.programs,
            "values": f.values,
            "clean_values": f.clean_values,
        }
        return {**header, **_about(self.data)}


def train(
    files: Path_ | Iterable[Path_],
    out: Path_,
    model: str | Callable[..., CostModel] = "xgb",
    seed: int = 0,
    *,
    quiet_only: bool = False,
) -> Trained:
    """Train a model on measurements and save it.  Those that other processes disturbed weigh less (`costmodel.models.sample_weights`).

    Args:
        files: logs and record tables.
        out: file to write, for `tunesmith tune --model FILE`, or `--model path.py:Class@FILE` if the model is a class in a file.
        model: as in `tune`; a saved model is trained further.
        seed: seed of the model.
        quiet_only: leave out times that other processes disturbed.
    Raises:
        UserError: an argument is invalid, no record is usable, or fewer than `LEAST_QUIET` times are clean with `quiet_only`.
        RecordError: a file cannot be read.
    """
    start = time.perf_counter()
    with running(f"the cost model {model}"):
        made = make_model(model, seed)
        check_suffix(out, made.suffix)
        if type(made).save is CostModel.save:
            made.save(out)  # refuses, before the time of the training is spent
    data = examples(files, quiet_only)
    with running(f"the cost model {model}"):
        update_model(made, data.features(made.inputs), data.seconds, data.groups, data.weights)
        made.save(out)
    code = model.rpartition("@")[0] or model if isinstance(model, str) and names_a_file(model) else ""
    return Trained(made, Path(out), data, time.perf_counter() - start, f"{code}@{out}" if code else str(out))


def evaluate_files(
    model: str,
    files: Path_ | Iterable[Path_],
    holdout: str | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    *,
    quiet_only: bool = False,
) -> EvaluatedModel:
    """Evaluate a model and the controls on measurements; see `costmodel.training.evaluation`.

    Args:
        model: a name, or the file of a saved model.
        files: logs and record tables.
        holdout: `within`, `task`, `family` or `target`.  By default a saved model is evaluated as it is, any other `within` tasks.
        folds: folds of the cross-validation.
        seed: seed of the model and of the folds.
        quiet_only: leave out times that other processes disturbed.
    Raises:
        UserError, RecordError: as `train`; or the measurements do not support this holdout.
    """
    if holdout is None and not is_model_file(model):
        holdout = "within"
    with running(f"the cost model {model}"):
        make_model(model, seed)  # report a wrong name before reading the files
    data = examples(files, quiet_only)
    with running(f"the cost model {model}"):
        return EvaluatedModel(model, evaluate(model, data, holdout, folds, seed), data)


def examples(files: Path_ | Iterable[Path_], quiet_only: bool = False) -> TrainingSet:
    """The programs of logs and record tables, one per candidate; with `quiet_only` without those with disturbed times.

    Raises:
        UserError, RecordError: see `train`.
    """
    paths = [files] if isinstance(files, (str, PathLike)) else list(files)
    tables = [load_any(p) for p in paths]
    table = merge(tables).representatives()
    every = len(table)
    table = table.quiet(LEAST_QUIET) if quiet_only and every else table
    refused = Refused()
    if len(table) < every:
        refused.add("left out by quiet_only: other processes disturbed their times", every - len(table))
    for path, one in zip(paths, tables, strict=True):
        if one.report.bad_count:
            refused.add(f"{path}: invalid lines, the first {one.report.bad[0]}", one.report.bad_count)
    identities: dict[str, Mapping[str, object]] = {key: json.loads(key) for key in table.targets}
    frame = table.frame
    columns = [frame[c].tolist() for c in ("workload", "target", "sketch", "trace", "row", "seconds", "clean")]
    measured = [
        Measured(workload, identities[target], sketch, json.loads(trace), row, seconds, clean)
        for workload, target, sketch, trace, row, seconds, clean in zip(*columns, strict=True)
    ]
    scripts = {digest: p.script for digest, p in table.workloads.items()}
    names = {digest: p.name for digest, p in table.workloads.items()}
    return training_set(measured, scripts, names, _targets(table), refused)


def _targets(table: RecordTable) -> Callable[[Mapping[str, object]], Target]:
    """Targets with machine rates as in a search: those of the table if present, measured rates for this machine."""

    def of(identity: Mapping[str, object]) -> Target:
        target = Target.from_json(identity)
        known = table.targets[target.key]
        if len(known) > len(identity):
            return Target.from_json(known)
        return calibrated(target) if target.key == Target.detect().key else target

    return of


def _remarks(data: TrainingSet) -> list[str]:
    """How many measurements are clean, and which records were skipped."""
    noise = noise_remark(int((data.ran & data.clean).sum()), int(data.ran.sum()), RETAKE)
    return [*([noise] if noise else []), *([str(data.refused)] if data.refused.count else [])]


def _about(data: TrainingSet) -> dict[str, object]:
    counts: Sequence[int] = [int((data.groups == i).sum()) for i in range(len(data.tasks))]
    return {
        "programs": len(data),
        "clean": int((data.ran & data.clean).sum()),
        "tasks": [{"workload": t.name, "digest": t.workload, "programs": n} for t, n in zip(data.tasks, counts, strict=True)],
        "refused": {"records": data.refused.count, "reasons": data.refused.reasons},
    }
