"""Check that every cost model works in the evolutionary sampler, a pretrained one from the start."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tunesmith.costmodel.models.model import CostModel, Features, Scores
from tunesmith.costmodel.models.registry import make_model
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler, EvolutionSettings
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TASK = Task("softmax", workload("softmax(m=96,n=80)").func, Target("llvm -mcpu=znver5 -num-cores=2"))
SMALL = EvolutionSettings(draft=256, keep=64, generations=1, parents=8)


def seconds_of(c: Candidate) -> float:
    return 1e-6 * (1 + int.from_bytes(hashlib.blake2b(repr(c).encode(), digest_size=2).digest(), "little") / 65536)


@pytest.mark.parametrize("name", ["analytic", "mlp", "random", "xgb"])
def test_a_search_is_reproducible_with_each_model(name: str) -> None:
    runs = []
    for _ in range(2):
        sampler = EvolutionarySampler(TASK, make_model(name, 1), 1, SMALL)
        batches = []
        for _ in range(2):
            batch = sampler.ask(10)
            sampler.tell([Result(c, seconds_of(c)) for c in batch])
            batches.append(batch)
        runs.append(batches)
    assert runs[0] == runs[1] and len({c for batch in runs[0] for c in batch}) == 20


def test_features_of_several_sketches() -> None:
    generator, rng = ProposalGenerator(TASK), stream(0, "rows")
    rows = {k: s.space.sample(3, rng) for k, s in enumerate(TASK.space.sketches)}
    candidates = [Candidate(k, tuple(int(x) for x in rows[k][i])) for i in (2, 0, 1) for k in sorted(rows)]
    stores, vectors = generator.features_of(candidates, "stores"), generator.features_of(candidates)
    assert vectors.ndim == 2 and stores.ndim == 3 and stores.dtype == np.float32
    sizes = set()
    for line, vector, c in zip(stores, vectors, candidates, strict=True):
        alone = generator.features(c.sketch, np.array([c.row], np.int64), "stores")[0]
        sizes.add(len(alone))
        assert np.array_equal(line[: len(alone)], alone) and np.isnan(line[len(alone) :]).all()
        assert np.array_equal(vector, generator.features(c.sketch, np.array([c.row], np.int64))[0])
    assert len(sizes) > 1, "the test needs programs with missing stores"
    with pytest.raises(UserError, match="takes `program` or `stores` as inputs, not 'tokens'"):
        generator.features(0, rows[0], "tokens")


class Pretrained(CostModel):
    """A pretrained model that prefers many stores."""

    ready = True  # type: ignore[assignment]

    def score(self, features: Features) -> Scores:
        return features[:, 0].astype(np.float64)

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray) -> None: ...
    def save(self, path: object) -> None: ...
    @classmethod
    def load(cls, path: object) -> Pretrained:
        return cls()


def test_a_ready_model_is_used_before_any_measurement() -> None:
    pretrained, untrained = (EvolutionarySampler(TASK, m, 0, SMALL) for m in (Pretrained(), make_model("xgb")))
    generator = ProposalGenerator(TASK)
    stores = [generator.features_of(s.ask(16))[:, 0] for s in (pretrained, untrained)]
    assert stores[0].mean() > stores[1].mean()
    assert pretrained.generator.scored > 0 == untrained.generator.scored
