"""How good a model is on programs that it has not learned from, beside controls that show what the numbers are worth.

Four ways to hold programs out ask four questions.  *within*: measured some of a task, which of the others are fast?  *task*, *family*,
*target*: what does it know about workloads, operators, machines that it has never met?  A workload that is held out is so on all
targets and under all of its names, as in `datasets.splits`.  Each program is held out once.  Three controls
stand beside the model: random scores, the same model taught with times shuffled within each task (what it gets from the features of
a task alone), and the analytic cost, which needs no data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel import metrics
from tunesmith.costmodel.models.checked_scores import checked_scores
from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import make_model
from tunesmith.costmodel.training.training_set import TaskKey, TrainingSet
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HOLDOUTS = ("within", "task", "family", "target")
FOLDS = 5

METRICS: dict[str, Callable[[Floats, Floats, Ints], float]] = {
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
"""What is reported, by name; RMSE and R2 are of throughput, best of the task = 1, after a straight line through each task's scores."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        holdout: how programs were held out; None if the model had learned already and was judged as it was.
        folds: in how many rounds.
        programs: that were judged; failed ones are not.
        tasks: that they are of.
        values: by model or control, then by name of the metric; None where a metric is not defined, as for times all equal.
    """

    holdout: str | None
    folds: int
    programs: int
    tasks: int
    values: dict[str, dict[str, float | None]]


def evaluate(
    model: str | Callable[..., CostModel], data: TrainingSet, holdout: str | None = "within", folds: int = FOLDS, seed: int = 0
) -> Evaluation:
    """Judge a model and the controls on the same held-out programs.

    Args:
        model: as `find_model` takes it.  A pretrained one is updated with what is not held out.
        data: the programs.
        holdout: one of `HOLDOUTS`; None judges a pretrained model on all programs as it is.
        folds: rounds; fewer if there are fewer programs, families or targets.
        seed: of the model and of what is held out when.
    Raises:
        UserError: the programs cannot be held out this way, or a model that has learned nothing is to be judged as it is.
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
            raise UserError(f"the model {model!r} has learned nothing yet: hold programs out ({', '.join(HOLDOUTS)}) or train it first")
    values: dict[str, dict[str, float | None]] = {}
    for name, make in candidates.items():
        seconds = _shuffled(data, seed) if name == "shuffled" else data.seconds
        scores = [_score(make(), data, seconds, learn, test) for learn, test in rounds]
        values[name] = judge(data, [test for _, test in rounds], scores)
    ran = np.isfinite(data.seconds)
    return Evaluation(holdout, len(rounds), int(ran.sum()), len(np.unique(data.groups[ran])), values)


def split(data: TrainingSet, holdout: str, folds: int = FOLDS, seed: int = 0) -> Iterator[tuple[Ints, Ints]]:
    """The programs to learn from and those to be judged, round by round.

    Raises:
        UserError: see `evaluate`.
    """
    if holdout not in HOLDOUTS:
        raise UserError(f"programs are held out by {', '.join(HOLDOUTS)}, not by {holdout!r}")
    if folds < 2:
        raise UserError(f"folds counts from 2, got {folds}")
    rng = stream(seed, "held out", holdout)
    if holdout == "within":
        turn = np.zeros(len(data), np.int64)
        for g in range(len(data.tasks)):
            mine = rng.permutation(np.flatnonzero(data.groups == g))
            turn[mine] = np.arange(len(mine)) % folds
    else:
        names = {"task": lambda t: t.workload, "family": lambda t: t.family, "target": lambda t: t.target}
        key: Callable[[TaskKey], object] = names[holdout]
        kinds = list(dict.fromkeys(key(t) for t in data.tasks))
        if len(kinds) < 2:
            raise UserError(f"all programs are of one {holdout}: nothing is left to learn from when it is held out. Hold out within tasks")
        folds = min(folds, len(kinds))
        place = dict(zip([kinds[i] for i in rng.permutation(len(kinds))], np.arange(len(kinds)) % folds, strict=True))
        turn = np.array([place[key(t)] for t in data.tasks], np.int64)[data.groups]
    for f in range(folds):
        if (turn == f).any() and (turn != f).any():
            yield np.flatnonzero(turn != f), np.flatnonzero(turn == f)


def judge(data: TrainingSet, parts: list[Ints], scores: list[Floats]) -> dict[str, float | None]:
    """The metrics of scores of parts of the programs.  Scores of different parts, and of different tasks, are not compared."""
    at, score = np.concatenate(parts), np.concatenate(scores)
    part = np.concatenate([np.full(len(p), i) for i, p in enumerate(parts)])
    group = part * len(data.tasks) + data.groups[at]
    ran = np.isfinite(data.seconds[at])
    if not ran.any():
        raise UserError("no program ran: there is nothing to judge a model on")
    out: dict[str, float | None] = {}
    for name, metric in METRICS.items():
        try:
            out[name] = metric(data.seconds[at][ran], score[ran], group[ran])
        except UserError:  # it is not defined for these times
            out[name] = None
    return out


def _score(model: CostModel, data: TrainingSet, seconds: Floats, learn: Ints, test: Ints) -> Floats:
    features = data.features(model.inputs)
    if len(learn):
        model.update(features[learn], seconds[learn], data.groups[learn])
    return checked_scores(model, features[test], len(test))


def _shuffled(data: TrainingSet, seed: int) -> Floats:
    """The times of each task, dealt to its programs by chance."""
    rng, out = stream(seed, "shuffled"), data.seconds.copy()
    for g in range(len(data.tasks)):
        mine = np.flatnonzero(data.groups == g)
        out[mine] = out[rng.permutation(mine)]
    return out
