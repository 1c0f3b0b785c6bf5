"""Evaluate a cost model on held-out programs, in comparison with controls.

There are four kinds of holdout.  *within* tests generalisation to other programs of the same tasks; *task*, *family* and *target* test
generalisation to new workloads, operators and machines.  A held-out workload is held out on all targets and under all of its names, as in
`datasets.splits`.  Each program is held out once.  There are three controls: random scores, the same model trained on times shuffled
within each task (the information in the task's features alone), and the analytic cost, which needs no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tunesmith.costmodel import metrics
from tunesmith.costmodel.models.checked_scores import checked_scores
from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import make_model
from tunesmith.costmodel.models.sample_weights import update_model
from tunesmith.costmodel.training.training_set import TaskKey, TrainingSet
from tunesmith.support.array_types import BoolArray, Float64Array, Int64Array
from tunesmith.support.errors import UserError
from tunesmith.support.html_table import html_table
from tunesmith.support.seeds import stream

HOLDOUTS = ("within", "task", "family", "target")
FOLDS = 5

METRICS: dict[str, Callable[[Float64Array, Float64Array, Int64Array], float]] = {
    "top-1": lambda s, p, g: metrics.top_k_score(s, p, g, 1),
    "top-5": lambda s, p, g: metrics.top_k_score(s, p, g, 5),
    "recall@10": lambda s, p, g: metrics.recall_at_k(s, p, g, 10),
    "best-5 of 32": lambda s, p, g: metrics.best_k(s, p, g, 32, 5),
    "pairs": metrics.pairwise_accuracy,
    "Spearman": metrics.spearman,
    "NDCG": metrics.ndcg,
    "RMSE": lambda s, p, g: metrics.rmse(metrics.normalized_throughput(s, g), metrics.fitted_throughput(s, p, g)),
    "R2": lambda s, p, g: metrics.r_squared(metrics.normalized_throughput(s, g), metrics.fitted_throughput(s, p, g)),
}
"""Reported metrics by name.  RMSE and R2 are of throughput (best of the task = 1), after a linear fit of each task's scores."""
TRIVIAL = {"top-1": 1, "top-5": 5, "recall@10": 10, "best-5 of 32": 32, "NDCG": 1, "RMSE": 1}
"""Number of programs of a task up to which a metric is the same for any model, because all of them are chosen."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        holdout: kind of holdout; None if a pretrained model was evaluated without further training.
        folds: number of folds.
        programs: number of evaluated programs, without failed ones.
        tasks: number of their tasks.
        values: by model or control, then by metric name; None if the metric is undefined, for example because all times are equal, or
            no fold has more programs of a task than `TRIVIAL`.
        clean: number of evaluated programs whose measurement no other process disturbed.
        clean_values: as `values`, over these programs alone, in the same folds: noise in the times lowers every metric of a good model.
            Empty if all programs are clean, or none.
    """

    holdout: str | None
    folds: int
    programs: int
    tasks: int
    values: dict[str, dict[str, float | None]]
    clean: int
    clean_values: dict[str, dict[str, float | None]]

    @property
    def too_few_for(self) -> list[str]:
        """Metrics that are undefined because no fold has enough programs of a task."""
        every = [*self.values.values(), *self.clean_values.values()]
        return [name for name in TRIVIAL if any(v.get(name) is None for v in every)]

    def _repr_html_(self) -> str:
        """The metrics in a notebook."""
        every = [*self.values.items(), *[(f"{name}, {self.clean} clean programs", v) for name, v in self.clean_values.items()]]
        rows = [[name, *["-" if v is None else f"{v:.3f}" for v in values.values()]] for name, values in every]
        held = "as it is" if self.holdout is None else f"holdout {self.holdout}, {self.folds} folds"
        return html_table(f"{self.programs} programs of {self.tasks} tasks, {held}", ["model", *METRICS], rows)


def evaluate(
    model: str | Callable[..., CostModel], data: TrainingSet, holdout: str | None = "within", folds: int = FOLDS, seed: int = 0
) -> Evaluation:
    """Evaluate a model and the controls on the same held-out programs.

    Args:
        model: see `find_model`.  A pretrained model is updated with the programs that are not held out.
        data: the programs.
        holdout: one of `HOLDOUTS`; None evaluates a pretrained model on all programs without training.
        folds: number of folds; fewer if there are fewer programs, families or targets.
        seed: seed of the model and of the folds.
    Raises:
        UserError: the programs cannot be held out this way, or `holdout` is None and the model is untrained.
    """
    candidates: dict[str, Callable[[], CostModel]] = {
        "model": lambda: make_model(model, seed),
        "shuffled": lambda: make_model(model, seed),
        "analytic": lambda: make_model("analytic", seed),
        "random": lambda: make_model("random", seed),
    }
    every = np.arange(len(data))
    rounds = [(every[:0], every)] if holdout is None else list(split(data, holdout, folds, seed))
    if holdout is None:
        del candidates["shuffled"]
        if not make_model(model, seed).ready:
            raise UserError(f"the model {model!r} is untrained: hold programs out ({', '.join(HOLDOUTS)}) or train it first")
    values: dict[str, dict[str, float | None]] = {}
    clean_values: dict[str, dict[str, float | None]] = {}
    ran, clean = data.ran, data.ran & data.clean
    for name, make in candidates.items():
        seconds = _shuffled(data, seed) if name == "shuffled" else data.seconds
        scores = [_score(make(), data, seconds, learn, test) for learn, test in rounds]
        values[name] = metric_values(data, [test for _, test in rounds], scores)
        if 0 < clean.sum() < ran.sum():
            clean_values[name] = metric_values(data, [test for _, test in rounds], scores, data.clean)
    return Evaluation(holdout, len(rounds), int(ran.sum()), len(np.unique(data.groups[ran])), values, int(clean.sum()), clean_values)


def split(data: TrainingSet, holdout: str, folds: int = FOLDS, seed: int = 0) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The training and the test programs of each fold.

    Raises:
        UserError: see `evaluate`.
    """
    if holdout not in HOLDOUTS:
        raise UserError(f"programs are held out by {', '.join(HOLDOUTS)}, not by {holdout!r}")
    if folds < 2:
        raise UserError(f"folds must be at least 2, got {folds}")
    rng = stream(seed, "held out", holdout)
    if holdout == "within":
        fold = np.zeros(len(data), np.int64)
        for g in range(len(data.tasks)):
            mine = rng.permutation(np.flatnonzero(data.groups == g))
            fold[mine] = np.arange(len(mine)) % folds
    else:
        names = {"task": lambda t: t.workload, "family": lambda t: t.family, "target": lambda t: t.target}
        key: Callable[[TaskKey], object] = names[holdout]
        kinds = list(dict.fromkeys(key(t) for t in data.tasks))
        if len(kinds) < 2:
            raise UserError(f"all programs have the same {holdout}, so holding it out leaves no training data. Hold out within tasks")
        folds = min(folds, len(kinds))
        fold_of = dict(zip([kinds[i] for i in rng.permutation(len(kinds))], np.arange(len(kinds)) % folds, strict=True))
        fold = np.array([fold_of[key(t)] for t in data.tasks], np.int64)[data.groups]
    for f in range(folds):
        if not (fold != f).any():  # within tasks of one program each, which are all in the first fold
            raise UserError(
                "no task has two programs, so none can be held out within its task: measure more programs of a task, or hold out whole "
                "tasks (task), if there are several"
            )
        if (fold == f).any():
            yield np.flatnonzero(fold != f), np.flatnonzero(fold == f)


def metric_values(
    data: TrainingSet, parts: list[Int64Array], scores: list[Float64Array], only: BoolArray | None = None
) -> dict[str, float | None]:
    """The metrics of scores of parts of the programs.  Scores of different parts or tasks are not compared.

    Args:
        data: the programs.
        parts: positions of the programs of each part.
        scores: their scores.
        only: bool [N], the programs that count; by default all.
    Raises:
        UserError: all programs failed.
    """
    at, score = np.concatenate(parts), np.concatenate(scores)
    part = np.concatenate([np.full(len(p), i) for i, p in enumerate(parts)])
    group = part * len(data.tasks) + data.groups[at]
    ran = data.ran[at] & (True if only is None else only[at])
    if not ran.any():
        raise UserError("all programs failed: a model cannot be evaluated on them")
    most = int(np.bincount(group[ran]).max())
    out: dict[str, float | None] = {}
    for name, metric in METRICS.items():
        try:
            out[name] = None if most <= TRIVIAL.get(name, 0) else metric(data.seconds[at][ran], score[ran], group[ran])
        except UserError:  # undefined for these times
            out[name] = None
    return out


def _score(model: CostModel, data: TrainingSet, seconds: Float64Array, learn: Int64Array, test: Int64Array) -> Float64Array:
    features = data.features(model.inputs)
    if len(learn):
        update_model(model, features[learn], seconds[learn], data.groups[learn], data.weights[learn])
    return checked_scores(model, features[test], len(test))


def _shuffled(data: TrainingSet, seed: int) -> Float64Array:
    """The times of all programs, permuted at random within each task."""
    rng, out = stream(seed, "shuffled"), data.seconds.copy()
    for g in range(len(data.tasks)):
        mine = np.flatnonzero(data.groups == g)
        out[mine] = out[rng.permutation(mine)]
    return out
