"""Test the torch models: published numbers of parameters, seeds, and compiled small sizes against torch in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.support.errors import UserError  # noqa: E402
from tunesmith.testing import torch_models  # noqa: E402
from tunesmith.testing.torch_agreement import executed  # noqa: E402
from tunesmith.testing.torch_recurrent_models import Mamba, selective_scan  # noqa: E402

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "vgg16": 138_357_544,
    "convnext_tiny": 28_589_128,
    "efficientnet_b0": 5_288_548,
    "bert_base": 109_482_240,
    "distilbert": 66_362_880,
    "vit_b16": 86_567_656,
    # All of Whisper tiny has 37,184,640, of which the decoder has 29,552,256.  Its sinusoids are a buffer, not parameters.
    "whisper_tiny_encoder": 7_632_384,
    "gpt2_prefill": 124_439_808,
    "gpt2_decode": 124_439_808,
    # Published as 20 million.  torch adds two biases in each gate, of which the equations have one.
    "lstm_lm": 19_780_400,
}
"""Published numbers of parameters.  The U-Net with padding, the small GPT and the small Mamba have no published size."""


def on_meta(name: str) -> Any:
    with torch.device("meta"):
        return torch_models.build(name, "full")


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_full_sizes_have_the_published_number_of_parameters(name: str) -> None:
    assert parameters(on_meta(name)) == PARAMETERS[name]


def test_mamba_at_a_published_size() -> None:
    with torch.device("meta"):
        model = Mamba(24, 768, 50280)
    assert parameters(model) == 129_135_360  # mamba-130m


@pytest.mark.parametrize("name", torch_models.NAMES)
def test_a_seed_determines_weights_and_inputs(name: str) -> None:
    state = torch.random.get_rng_state()
    (model, inputs), (again, same), (other, _) = torch_models.get(name), torch_models.get(name), torch_models.get(name, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    weights = model.state_dict()
    assert all(torch.equal(w, weights[key]) for key, w in again.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(inputs, same, strict=True))
    assert any(not torch.equal(w, weights[key]) for key, w in other.state_dict().items())


@pytest.mark.parametrize("name", torch_models.NAMES)
def test_example_inputs_differ_from_those_of_the_model(name: str) -> None:
    _, inputs = torch_models.get(name)
    examples = torch_models.example_inputs(name, "small", 0)
    assert [(x.shape, x.dtype) for x in examples] == [(x.shape, x.dtype) for x in inputs]
    assert not all(torch.equal(a, b) for a, b in zip(examples, inputs, strict=True))


@pytest.mark.parametrize("name", torch_models.NAMES)
def test_models_run_with_a_batch(name: str) -> None:
    model, inputs = torch_models.get(name, batch=3)
    _, single = torch_models.get(name)
    results = torch.utils._pytree.tree_leaves(model(*inputs))
    expected = [tuple(3 if a != b else b for a, b in zip(x.shape, y.shape, strict=True)) for x, y in zip(inputs, single, strict=True)]
    assert [tuple(x.shape) for x in inputs] == expected and any(3 in x.shape for x in inputs)
    assert all(3 in r.shape for r in results)


@pytest.mark.parametrize("name", torch_models.STAGES)
def test_stages_are_equal_convolutions_of_the_published_sizes(name: str) -> None:
    pixels, channels = torch_models.STAGES[name]
    model, (image,) = torch_models.get(name, size="full")
    assert image.shape == (1, channels, pixels, pixels) and len(model) == 8
    assert all(layer.weight.shape == (channels, channels, 3, 3) for layer in model[::2])
    small, (x,) = torch_models.get(name)
    assert small(x).shape == x.shape == (1, 4, 8, 8)


@pytest.mark.parametrize("name", torch_models.NAMES)
def test_compiled_models_agree_with_torch_in_float64(name: str) -> None:
    model, inputs = torch_models.get(name)
    got = executed("graph")(from_torch(model, inputs), [x.numpy() for x in inputs])
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(copy.deepcopy(model).double()(*wide))
    for g, w in zip(got, expected, strict=True):
        assert g.shape == w.shape
        assert np.abs(g - w.numpy()).max() <= 1e-4 * np.abs(w.numpy()).max()


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(UserError, match="no torch model 'mamba' of size 'large'. .*; sizes: small, full"):
        torch_models.build("mamba", "large")
    with pytest.raises(UserError, match="a batch has at least one input, not 0"):
        torch_models.get("mamba", batch=0)


# ---- definitions ------------------------------------------------------------------------------------------------------------------------


def test_selective_scan_is_the_recurrence() -> None:
    n, length, inner, states = 2, 5, 3, 4
    x, delta = torch.randn(n, length, inner, dtype=torch.float64), torch.rand(n, length, inner, dtype=torch.float64)
    a = -torch.rand(inner, states, dtype=torch.float64)
    b, c = torch.randn(2, n, length, states, dtype=torch.float64)
    got = selective_scan(x, delta, a, b, c)
    for i in range(n):
        for d in range(inner):
            state = np.zeros(states)
            for t in range(length):
                state = torch.exp(delta[i, t, d] * a[d]).numpy() * state + float(delta[i, t, d] * x[i, t, d]) * b[i, t].numpy()
                assert abs(float(got[i, t, d]) - float(state @ c[i, t].numpy())) < 1e-12


@pytest.mark.parametrize("name", ["lstm_lm", "mamba"])
def test_language_models_are_causal(name: str) -> None:
    model, (ids, *states) = torch_models.get(name)
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 40
    before, after = [torch.utils._pytree.tree_leaves(model(tokens, *states))[0] for tokens in (ids, changed)]
    assert torch.equal(before[:, :-1], after[:, :-1]) and not torch.equal(before[:, -1], after[:, -1])


def test_the_scan_contributes_to_the_results_of_mamba() -> None:
    model, inputs = torch_models.get("mamba")
    before = model(*inputs)
    for layer in model.layers:
        layer.dt_bias.fill_(-30.0)  # steps of size 0 keep the state at 0
    assert (model(*inputs) - before).abs().max() > 0.01 * before.abs().max()
