"""Run the conformance suite on every sampler; slow samplers have small settings that still learn."""

from __future__ import annotations

import pytest

from tunesmith.costmodel.models.registry import make_model
from tunesmith.search.samplers.annealing_sampler import AnnealingSampler, AnnealingSettings
from tunesmith.search.samplers.evolutionary_sampler import EvolutionarySampler, EvolutionSettings
from tunesmith.search.samplers.torch_gradient_sampler import GradientSampler, GradientSettings
from tunesmith.testing.sampler_conformance import Make, SamplerConformance, maker


class TestRandom(SamplerConformance):
    learns = False

    @pytest.fixture
    def make(self) -> Make:
        return maker("random")


class TestEvolutionary(SamplerConformance):
    @pytest.fixture
    def make(self) -> Make:
        settings = EvolutionSettings(draft=1024, keep=128, generations=2, parents=16)
        return lambda task, seed: EvolutionarySampler(task, make_model("xgb", seed), seed, settings)


class TestAnnealing(SamplerConformance):
    searches = 1

    @pytest.fixture
    def make(self) -> Make:
        settings = AnnealingSettings(chains=32, steps=20)
        return lambda task, seed: AnnealingSampler(task, make_model("xgb", seed), seed, settings)


class TestGradient(SamplerConformance):
    searches = 1

    @pytest.fixture
    def make(self) -> Make:
        settings = GradientSettings(starts=16, sketches=1, steps=4, every=2, draft=256)
        return lambda task, seed: GradientSampler(task, make_model("xgb", seed), seed, settings)


class TestOptunaTPE(SamplerConformance):
    searches = 1
    rounds = 8

    @pytest.fixture
    def make(self) -> Make:
        return maker("optuna-tpe")


class TestOptunaCMAES(SamplerConformance):
    searches = 1

    @pytest.fixture
    def make(self) -> Make:
        return maker("optuna-cmaes")


class TestOptunaQMC(SamplerConformance):
    learns = False

    @pytest.fixture
    def make(self) -> Make:
        return maker("optuna-qmc")


class TestOptunaRandom(SamplerConformance):
    learns = False

    @pytest.fixture
    def make(self) -> Make:
        return maker("optuna-random")
