"""Score programs by TenSet's multilayer perceptron: encode each store, sum over the stores, decode.

The loss is LambdaRank, so the model is trained on the order of programs within a task, not on their times (source: Zheng et al.,
"TenSet", NeurIPS 2021 datasets track; the network is TVM MetaSchedule's SegmentSumMLP).  Features are normalised to mean 0 and deviation
1 of the training data; constant features are dropped, and values are clipped at `CLIP` deviations, because the network does not
extrapolate.

On 1357 programs of seven tasks from search logs, with five folds within tasks, mean Spearman is 0.49 (trees 0.52, the analytic cost
0.21); on held-out tasks 0.25 (trees 0.14, the analytic cost 0.22).  For a model pretrained on other tasks, updates with 8, 32 and 64
measurements of a task result in 0.32, 0.46 and 0.47; for one pretrained on half of the task, 0.50 becomes 0.43, 0.46 and 0.43.  More
epochs or larger steps for updates gained 0.02 in the first case and lost 0.07 in the second.  One thread scores 62,000 programs of ten
stores per second; an update with 200 takes 0.07 s.

Results are deterministic on a CPU: weights and data order come from named random streams, and torch runs deterministic algorithms on a
fixed number of threads; its settings are restored afterwards.  Programs are scored in blocks of a fixed size, so that a score does not
depend on the other programs.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.metrics import normalized_throughput
from tunesmith.costmodel.models.model import CostModel, Features, Scores, check_training_data, weighted_rows
from tunesmith.costmodel.models.saved_model import check_schema, check_suffix, not_saved, unwritable
from tunesmith.support import atomic_file
from tunesmith.support.array_types import Float32Array, FloatArray, Int64Array, IntArray
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.support.seeds import plain_seed, stream

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    from tunesmith.costmodel.models.torch_lambda_loss import lambda_rank_loss
except ImportError as error:
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "the cost model `mlp`") from None

CLIP = 4.0
"""Number of standard deviations at which features are clipped."""
BLOCK = 1024
"""Rows of each matrix product during scoring."""
LIST = 64
"""Maximum programs per list: programs of one task that are ranked against each other in a training step."""
_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class MLPSettings:
    """Hyperparameters of the MLP.

    Attributes:
        hidden: width of all layers.
        epochs: passes over the data in training from scratch.
        online_epochs: passes in an update of a pretrained model.
        learning_rate: initial learning rate of Adam, multiplied by 0.8 after each tenth of the epochs.
        online_rate: initial learning rate in an update of a pretrained model.
        weight_decay: weight decay of Adam.
        lists: lists of programs per step.
        seed: seed of the initial weights and the data order.
        threads: number of torch threads.
    """

    hidden: int = 256
    epochs: int = 60
    online_epochs: int = 10
    learning_rate: float = 2e-3
    online_rate: float = 3e-4
    weight_decay: float = 1e-6
    lists: int = 8
    seed: int = 0
    threads: int = 1


class TorchMLPModel(CostModel):
    """TenSet's MLP, see the module docstring.

    An update of a pretrained model starts from the pretrained weights and takes fewer, smaller steps.

    Args:
        seed: seed of the initial weights and the data order.
        settings: hyperparameters; their seed is ignored.
    """

    inputs: ClassVar[str] = "stores"
    suffix: ClassVar[str] = ".safetensors"

    def __init__(self, *, seed: int = 0, settings: MLPSettings | None = None) -> None:
        given = asdict(settings or MLPSettings())
        self.settings = MLPSettings(**{**given, "seed": plain_seed(seed)})
        self._state: dict[str, torch.Tensor] | None = None
        self._pretrained: dict[str, torch.Tensor] | None = None

    @property
    def ready(self) -> bool:
        return self._state is not None

    def keep(self) -> None:
        self._pretrained = self._state

    def score(self, features: Features) -> Scores:
        if self._state is None or not len(features):
            return np.zeros(len(features))
        with _torch_settings(self.settings.threads), torch.no_grad():
            state = self._state
            rows, owner = self._rows(features, state)
            sums = torch.zeros(len(features), self.settings.hidden)
            for at, stores in _in_blocks(rows, lambda x: _encode(_normal(x, state), state)):
                sums.index_add_(0, owner[at : at + len(stores)], stores)
            scores = torch.cat([s for _, s in _in_blocks(sums, lambda x: _decode(x, state))])
            return scores[:, 0].numpy().astype(np.float64)

    def update(self, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None = None) -> None:
        check_training_data(features, seconds, groups, self.inputs, weights)
        features, seconds, groups, weights = weighted_rows(features, seconds, groups, weights)
        if not len(seconds):
            self._state = self._pretrained
            return
        with _torch_settings(self.settings.threads):
            state = _fresh(features, self.settings) if self._pretrained is None else dict(self._pretrained)
            rows, owner = self._rows(features, state)
            rows = _normal(rows, state)
            relevance = torch.from_numpy(normalized_throughput(seconds, groups).astype(np.float32))
            self._train(state, rows, owner, relevance, groups, None if weights is None else torch.from_numpy(weights.astype(np.float32)))
            self._state = state

    def _train(
        self,
        state: dict[str, torch.Tensor],
        rows: torch.Tensor,
        owner: torch.Tensor,
        relevance: torch.Tensor,
        groups: npt.NDArray[Any],
        sample_weights: torch.Tensor | None,
    ) -> None:
        """Train the weights in `state` in place."""
        s, online = self.settings, self._pretrained is not None
        epochs, rate = (s.online_epochs, s.online_rate) if online else (s.epochs, s.learning_rate)
        weights = {name: value.clone().requires_grad_() for name, value in state.items() if name not in _FIXED}
        optimizer = torch.optim.Adam(list(weights.values()), lr=rate, weight_decay=s.weight_decay)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(epochs // 10, 1), 0.8)
        first = torch.searchsorted(owner, torch.arange(len(relevance) + 1))
        rng = stream(s.seed, "mlp", "order")
        for _ in range(epochs):
            lists = _lists(groups, rng)
            for at in range(0, len(lists), s.lists):
                step = lists[at : at + s.lists]
                present = torch.zeros(len(step), max(map(len, step)), dtype=torch.bool)
                for i, one in enumerate(step):
                    present[i, : len(one)] = True
                programs = torch.from_numpy(np.concatenate(step))
                mine, sizes = _stores_of(programs, first)
                encoded = _encode(rows[mine], weights)
                sums = torch.zeros(len(programs), encoded.shape[1]).index_add(0, sizes, encoded)
                scores = torch.zeros(present.shape).masked_scatter(present, _decode(sums, weights)[:, 0])
                truth = torch.zeros(present.shape).masked_scatter(present, relevance[programs])
                each = None
                if sample_weights is not None:
                    each = torch.zeros(present.shape).masked_scatter(present, sample_weights[programs])
                optimizer.zero_grad()
                lambda_rank_loss(scores, truth, present, each).backward()
                torch.nn.utils.clip_grad_norm_(list(weights.values()), 0.5)
                optimizer.step()
            schedule.step()
        state.update({name: value.detach() for name, value in weights.items()})

    def _rows(self, features: Features, state: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Feature rows of all stores, [M, F], and the program of each, [M]."""
        columns = len(state["mean"])
        if features.ndim != 3 or features.shape[2] != columns:
            raise UserError(f"the model was trained on stores of {columns} features, got an array of shape {list(features.shape)}")
        flat, owner = _present(features)
        return torch.from_numpy(flat), torch.from_numpy(owner)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and normalisation as safetensors, with settings and feature version as metadata.

        Raises:
            UserError: the model is untrained, or the file cannot be written.
        """
        if self._state is None:
            raise UserError(f"cannot save to {os.fspath(path)}: the model is untrained. Call update with measurements first")
        check_suffix(path, self.suffix)
        settings = json.dumps(asdict(self.settings))
        metadata = {"model": "mlp", "schema": str(SCHEMA_VERSION), "settings": settings, "digest": _digest(self._state, settings)}
        try:
            atomic_file.write_bytes(path, save({k: v.contiguous() for k, v in self._state.items()}, metadata))
        except OSError as error:
            raise unwritable(path, error) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        try:
            data = Path(path).read_bytes()
            state = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            if header["model"] != "mlp":
                raise ValueError(f"it contains a model {header['model']!r}")
            if header["digest"] != _digest(state, header["settings"]):
                raise ValueError("its weights do not match its digest")
            settings = _settings_of(json.loads(header["settings"]))
            schema = int(header["schema"])
            _check_shapes(state, settings.hidden)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError) as error:
            raise not_saved(path, cls, error) from None
        check_schema(path, schema)
        out = cls(seed=settings.seed, settings=settings)
        # Weights in the order of a new model, because the rounding of gradient norms depends on the order of the sum.
        out._state = {name: state[name] for name in _names(state, settings.hidden)}
        out.keep()
        return out


_FIXED = frozenset({"mean", "scale"})
_LAYERS = ("encoder0", "encoder1", "residual0", "residual1", "decoder")


def _fresh(features: Features, s: MLPSettings) -> dict[str, torch.Tensor]:
    """Normalisation of these features, and initial weights: uniform in +-1 / sqrt(fan in), as in torch, from a named stream."""
    flat, _ = _present(features)
    mean, deviation = flat.mean(axis=0, dtype=np.float64), flat.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 1e-6, 1.0 / np.maximum(deviation, 1e-6), 0.0)
    state = {"mean": torch.from_numpy(mean.astype(np.float32)), "scale": torch.from_numpy(scale.astype(np.float32))}
    rng = stream(s.seed, "mlp", "weights")
    for name, (out, inside) in _shapes(features.shape[2], s.hidden).items():
        bound = inside**-0.5
        state[f"{name}.weight"] = torch.from_numpy(rng.uniform(-bound, bound, (out, inside)).astype(np.float32))
        state[f"{name}.bias"] = torch.from_numpy(rng.uniform(-bound, bound, out).astype(np.float32))
    return state


def _shapes(columns: int, hidden: int) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of each layer."""
    square = (hidden, hidden)
    return dict(zip(_LAYERS, ((hidden, columns), square, square, square, (1, hidden)), strict=True))


def _names(state: dict[str, torch.Tensor], hidden: int) -> list[str]:
    layers = _shapes(len(state["mean"]), hidden)
    return ["mean", "scale", *[f"{name}.{part}" for name in layers for part in ("weight", "bias")]]


def _check_shapes(state: dict[str, torch.Tensor], hidden: int) -> None:
    wanted: dict[str, tuple[int, ...]] = {"mean": tuple(state["mean"].shape), "scale": tuple(state["mean"].shape)}
    for name, shape in _shapes(len(state["mean"]), hidden).items():
        wanted |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    found = {name: tuple(value.shape) for name, value in state.items() if value.dtype == torch.float32}
    if found != wanted or not all(bool(v.isfinite().all()) for v in state.values()):
        raise ValueError("its weights do not have the names and shapes of this network, or are not finite")


def _settings_of(data: Any) -> MLPSettings:
    kinds = {f.name: type(f.default) for f in fields(MLPSettings)}
    if (
        not isinstance(data, dict)
        or {k: type(v) for k, v in data.items()} != kinds
        or not all(k == "seed" or v >= (k == "threads") for k, v in data.items())
    ):
        raise ValueError("its settings do not have the names, types and ranges of this network")
    return MLPSettings(**data)


def _linear(x: torch.Tensor, name: str, w: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _normal(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    """Normalise and clip rows.  Scoring does this block by block, in the cache."""
    return ((x - w["mean"]) * w["scale"]).clamp_(-CLIP, CLIP)


def _encode(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    return _linear(_linear(x, "encoder0", w).relu_(), "encoder1", w).relu_()


def _decode(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    x = x + _linear(x, "residual0", w).relu_()
    x = x + _linear(x, "residual1", w).relu_()
    return _linear(x, "decoder", w)


def _in_blocks(x: torch.Tensor, layer: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Apply a layer to blocks of exactly `BLOCK` rows; yields (first row, result).

    The block size is fixed because the order of summation in libraries depends on the number of rows.  Results stay in the cache; results
    for all rows would need newly mapped pages each time, a third of the work.
    """
    for at in range(0, len(x), BLOCK):
        part = x[at : at + BLOCK]
        n = len(part)
        yield at, layer(part if n == BLOCK else torch.cat([part, part.new_zeros(BLOCK - n, part.shape[1])]))[:n]


def _present(features: Features) -> tuple[Float32Array, Int64Array]:
    """The stores without padding, [M, F], and the program of each, [M]."""
    there = ~np.isnan(features[:, :, 0]) if features.shape[2] else np.ones(features.shape[:2], bool)
    chosen = features.reshape(-1, features.shape[2]) if there.all() else features[there]
    rows = np.require(chosen, np.float32, ["C", "W"])  # copied only if torch cannot share the memory
    if not np.isfinite(rows).all():
        rows = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    return rows, np.nonzero(there)[0].astype(np.int64)


def _stores_of(programs: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of the stores of `programs`, and for each row the position of its program in `programs`."""
    counts = first[programs + 1] - first[programs]
    position = torch.arange(len(programs)).repeat_interleave(counts)
    inside = torch.arange(len(position)) - (counts.cumsum(0) - counts)[position]
    return first[programs][position] + inside, position


def _lists(groups: npt.NDArray[Any], rng: np.random.Generator) -> list[Int64Array]:
    """Random lists of at most `LIST` programs of one task, in random order."""
    out: list[Int64Array] = []
    for g in np.unique(groups):
        mine = rng.permutation(np.flatnonzero(groups == g))
        out += [np.asarray(p, np.int64) for p in np.array_split(mine, -(-len(mine) // LIST))]
    return [out[i] for i in rng.permutation(len(out))]


def _digest(state: dict[str, torch.Tensor], settings: str) -> str:
    digest = blake2b(settings.encode(), digest_size=16)
    for name in sorted(state):
        digest.update(name.encode() + state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _torch_settings(threads: int) -> Iterator[None]:
    """Run torch with deterministic algorithms on `threads` threads, in one caller at a time, and restore its settings."""
    with _LOCK:
        before = (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        try:
            torch.use_deterministic_algorithms(True)
            torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.use_deterministic_algorithms(before[1], warn_only=before[2])
