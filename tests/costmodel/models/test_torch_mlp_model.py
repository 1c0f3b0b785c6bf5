"""Test the MLP: its loss, its use of features, determinism, torch settings, files and error messages."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.models.registry import find_model
from tunesmith.costmodel.models.torch_lambda_loss import lambda_rank_loss
from tunesmith.costmodel.models.torch_mlp_model import LIST, MLPSettings, TorchMLPModel, _lists, _stores_of
from tunesmith.support.errors import MissingExtraError, RecordError, UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.cost_model_conformance import example_data

SMALL = MLPSettings(hidden=16, epochs=4)


@pytest.fixture
def trained() -> TorchMLPModel:
    m = TorchMLPModel(seed=3, settings=SMALL)
    m.update(*example_data("stores", 60))
    return m


def test_loss_of_one_pair() -> None:
    # Relevances 1 and 0.5, ranked in reverse: DCG gains 1 and 2^0.5 - 1, discounts 1 and 1 / log2(3).
    loss = lambda_rank_loss(torch.tensor([[0.2, 0.7]]), torch.tensor([[1.0, 0.5]]), torch.ones(1, 2, dtype=torch.bool))
    low, third = 2**0.5 - 1, 1 / math.log2(3)
    weight = (1 - third) * (1 - low) / (1 + low * third)
    assert loss.item() == pytest.approx(-weight * math.log2(1 / (1 + math.exp(0.5))) / 2, rel=1e-5)


def test_a_pair_has_the_smaller_weight_of_its_programs() -> None:
    scores, truth, present = torch.tensor([[0.2, 0.7]]), torch.tensor([[1.0, 0.5]]), torch.ones(1, 2, dtype=torch.bool)
    alone = lambda_rank_loss(scores, truth, present).item()
    for weights in ([[0.25, 2.0]], [[2.0, 0.25]]):
        assert lambda_rank_loss(scores, truth, present, torch.tensor(weights)).item() == pytest.approx(alone / 4, rel=1e-5)


def test_padding_and_equal_programs_have_no_loss() -> None:
    scores, truth = torch.tensor([[0.3, 0.1, 5.0], [1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 9.0], [0.5, 0.5, 0.5]])
    present = torch.tensor([[True, True, False], [True, True, True]])
    alone = lambda_rank_loss(scores[:1, :2], truth[:1, :2], present[:1, :2])
    assert lambda_rank_loss(scores, truth, present).item() == pytest.approx(alone.item() * 2 / 5, rel=1e-5)
    tied = torch.zeros(1, 3, requires_grad=True)
    lambda_rank_loss(tied, torch.tensor([[0.2, 1.0, 0.5]]), torch.ones(1, 3, dtype=torch.bool)).backward()
    assert tied.grad is not None and tied.grad.isfinite().all() and tied.grad[0, 1] < 0 < tied.grad[0, 0]


def test_lists_contain_one_task_and_every_program_once() -> None:
    groups = np.array([0] * (LIST + 5) + [4] * 3)
    lists = _lists(groups, stream(0, "test"))
    assert sorted(np.concatenate(lists).tolist()) == list(range(len(groups)))
    assert all(len(set(groups[one])) == 1 and len(one) <= LIST for one in lists) and len(lists) == 3


def test_stores_of_programs() -> None:
    first = torch.tensor([0, 2, 3, 6])  # programs of 2, 1 and 3 stores
    rows, position = _stores_of(torch.tensor([2, 0]), first)
    assert rows.tolist() == [3, 4, 5, 0, 1] and position.tolist() == [0, 0, 0, 1, 1]


def test_scores_do_not_depend_on_the_order_of_stores(trained: TorchMLPModel) -> None:
    x, _, _ = example_data("stores", 60)
    assert np.allclose(trained.score(x[:, ::-1]), trained.score(x), atol=1e-4)
    assert not np.allclose(trained.score(x[:, :1]), trained.score(x), atol=1e-4)


def test_values_far_outside_the_training_data_are_clipped(trained: TorchMLPModel) -> None:
    x, seconds, groups = example_data("stores", 60)
    far, further = x.copy(), x.copy()
    far[:, :, 7], further[:, :, 7] = 1e3, 1e6
    assert np.array_equal(trained.score(far), trained.score(further))
    x[:, :, 7] = np.where(np.isnan(x[:, :, 7]), np.nan, 5.0)
    constant = TorchMLPModel(settings=SMALL)
    constant.update(x, seconds, groups)
    assert np.array_equal(constant.score(far), constant.score(x)), "constant columns are ignored"


def test_torch_settings_are_restored() -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        m = TorchMLPModel(settings=SMALL)
        x, seconds, groups = example_data("stores", 60)
        m.update(x, seconds, groups)
        torch.manual_seed(99)
        again = TorchMLPModel(settings=SMALL)
        again.update(x, seconds, groups)
        assert np.array_equal(m.score(x), again.score(x)), "torch's global random stream is not used"
        assert torch.get_num_threads() == 2 and not torch.are_deterministic_algorithms_enabled()
        with pytest.raises(UserError):
            m.score(x[..., :3])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


def test_seeds_change_the_scores() -> None:
    x, seconds, groups = example_data("stores", 60)
    scores = []
    for seed in (0, 1):
        m = TorchMLPModel(seed=seed, settings=SMALL)
        m.update(x, seconds, groups)
        scores.append(m.score(x))
    assert not np.array_equal(*scores)


def test_updates_of_a_pretrained_model_start_from_its_weights(trained: TorchMLPModel) -> None:
    x, seconds, groups = example_data("stores", 60)
    before = trained.score(x)
    trained.keep()
    few = example_data("stores", 8, seed=2)
    trained.update(few[0], few[1], np.zeros(8, np.int64))
    fresh = TorchMLPModel(seed=3, settings=SMALL)
    fresh.update(few[0], few[1], np.zeros(8, np.int64))
    assert 0 < np.abs(trained.score(x) - before).max() < np.abs(fresh.score(x) - before).max() / 2
    trained.update(x[:0], seconds[:0], groups[:0])
    assert np.array_equal(trained.score(x), before)


def test_a_file_contains_settings_and_version(trained: TorchMLPModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    trained.save(file)
    found = find_model(str(file))()
    assert isinstance(found, TorchMLPModel) and found.settings == trained.settings and found.settings.seed == 3 and found.ready


def test_damaged_files_and_other_versions_are_rejected(trained: TorchMLPModel, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    trained.save(file)
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    metadata, state = json.loads(whole[8 : 8 + size])["__metadata__"], load(whole)
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    file.write_bytes(bytes(flipped))
    with pytest.raises(RecordError, match=r"m\.safetensors is not a model written by TorchMLPModel\.save: its weights do not match"):
        TorchMLPModel.load(file)

    def refused(message: str, **changes: str) -> None:
        file.write_bytes(save(state, {k: v for k, v in {**metadata, **changes}.items() if v}))
        with pytest.raises(RecordError, match=message):
            TorchMLPModel.load(file)

    refused("contains a model 'other'", model="other")
    refused("the field 'model' is missing", model="")
    refused(rf"version {SCHEMA_VERSION - 1}; this is version {SCHEMA_VERSION}\. Train it again", schema=str(SCHEMA_VERSION - 1))
    refused("its weights do not match its digest", settings=metadata["settings"].replace('"hidden": 16', '"hidden": 17'))


def test_invalid_arguments_are_rejected(trained: TorchMLPModel, tmp_path: Path) -> None:
    x, seconds, groups = example_data("stores", 60)
    with pytest.raises(UserError, match="the model is untrained"):
        TorchMLPModel().save(tmp_path / "m.safetensors")
    with pytest.raises(UserError, match=r"m\.json: files of this model have names that end with \.safetensors"):
        trained.save(tmp_path / "m.json")
    with pytest.raises(UserError, match=r"trained on stores of 160 features, got an array of shape \[60, 3, 159\]"):
        trained.score(x[..., 1:])
    with pytest.raises(UserError, match=r"is trained on features \[N, S, F\]"):
        trained.update(x[:, 0], seconds, groups)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("tunesmith.costmodel.models.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"the cost model `mlp` needs the package `torch`.*pip install 'tunesmith\[torch\]'"):
        __import__("tunesmith.costmodel.models.torch_mlp_model")
