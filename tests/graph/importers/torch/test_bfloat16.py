"""Test models with weights and values of bfloat16: results near those of torch in float64, as near as torch's own are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402


class Layers(nn.Module):
    """Layers of a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.rms = nn.Embedding(30, 32), nn.LayerNorm(32), nn.RMSNorm(32)
        self.qkv, self.mlp = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids: Any, scale: Any) -> Any:
        """[2, 7] and a number -> [2, 7, 32]."""
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        return x + F.gelu(self.mlp(self.rms(x)) * 0.5) * scale


class Images(nn.Module):
    """Layers of a convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.norm.running_mean.normal_(0, 0.2)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        """[1, 3, 10, 10] -> [1, 16]."""
        x = F.relu(self.norm(self.conv(x)))
        x = F.interpolate(F.max_pool2d(x, 2), size=(8, 8), mode="bilinear")
        return F.softmax(F.adaptive_avg_pool2d(x, 3).mean((2, 3)) / 3 + x.var((2, 3)), -1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "layers": (Layers, lambda: (torch.arange(14).reshape(2, 7), torch.tensor(1.5))),
    "images": (Images, lambda: (torch.randn(1, 3, 10, 10),)),
}


def narrow(x: Any) -> Any:
    return x.bfloat16() if x.is_floating_point() else x


def error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(got, np.float64) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("wide_inputs", [False, True])
def test_models(name: str, wide_inputs: bool) -> None:
    torch.manual_seed(1)
    make, inputs = MODELS[name]
    model = make().eval().bfloat16()
    given = tuple(narrow(x) for x in inputs())
    exact = copy.deepcopy(model).double()(*[x.double() if x.is_floating_point() else x for x in given]).detach().numpy()
    own = error(model(*given).detach().float().numpy(), exact)

    class FromFloat(nn.Module):
        """The model with inputs and results in float32, as inside of a float32 model."""

        def forward(self, *x: Any) -> Any:
            return model(*map(narrow, x)).float()

    outer, passed = (FromFloat(), tuple(x.float() if x.is_floating_point() else x for x in given)) if wide_inputs else (model, given)
    mod = from_torch(outer, passed)
    arrays = [x.float().numpy() if x.is_floating_point() else x.numpy() for x in passed]
    (interpreted,) = run(mod["main"], arrays, mod)
    assert error(interpreted, exact) <= max(2 * own, 2.0**-8)
    compiled = tunesmith.compile(mod)(*passed)
    assert compiled.dtype.name == ("float32" if wide_inputs else "bfloat16")
    assert error(compiled.astype(np.float32), exact) <= max(2 * own, 2.0**-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{"size": (13, 13)}, {"size": (20, 31), "align_corners": True}, {"scale_factor": 1.7}])
def test_images_are_resized_as_exactly_as_in_torch(dtype: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Upsample(mode="bilinear", **options), torch.randn(2, 6, 9, 9).to(dtype)
    mod = from_torch(model, (x,))
    (got,) = run(mod["main"], [x.float().numpy() if dtype is torch.bfloat16 else x.numpy()], mod)
    exact = model(x.double()).numpy()
    assert error(got, exact) <= 1.5 * error(model(x).float().numpy(), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [False, True])
def test_batch_statistics(dtype: Any, training: bool) -> None:
    torch.manual_seed(0)
    model = (nn.BatchNorm1d(33) if training else nn.BatchNorm1d(33, track_running_stats=False).eval()).to(dtype)
    x = torch.randn(4, 33).to(dtype)
    mod = from_torch(copy.deepcopy(model), (x,), drop_buffer_writes=True)
    (got,) = run(mod["main"], [x.float().numpy() if dtype is torch.bfloat16 else x.numpy()], mod)
    exact = copy.deepcopy(model).double()(x.double()).detach().numpy()
    assert error(got, exact) <= max(2 * error(model(x).detach().float().numpy(), exact), 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11)


def test_constants_and_numbers() -> None:
    table = torch.randn(3, 4).bfloat16()

    class Numbers(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x.bfloat16()
            return (
                (y * 0.3 + table).float(),
                torch.zeros(2, dtype=torch.bfloat16).float(),
                torch.full((2,), 0.1, dtype=torch.bfloat16).float(),
            )

    x = torch.randn(3, 4)
    mod = from_torch(Numbers(), (x,))
    for got, expected in zip(run(mod["main"], [x.numpy()], mod), Numbers()(x), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=2.0**-8)
