"""Operators of quantised models in torch: quantised and dequantised tensors, and convolutions in integers."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torch.ao.quantization.fx._decomposed") is None:
    pytest.skip("this torch has no quantized_decomposed", allow_module_level=True)

import tunesmith  # noqa: E402
from tunesmith.graph.importers.torch.importer import from_torch  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
OPS = torch.ops.quantized_decomposed


def compared(module: torch.nn.Module, *inputs: torch.Tensor, ties: float = 0.0) -> None:
    """The compiled model agrees with torch, up to `ties`: the size of a step."""
    want = module(*inputs).detach().numpy()
    got = tunesmith.compile(from_torch(module.eval(), inputs))(*[x.numpy() for x in inputs])
    assert got.dtype == want.dtype and got.shape == want.shape
    assert np.abs(got.astype("float64") - want.astype("float64")).max() <= ties + 1e-6


class Both(torch.nn.Module):
    """Quantise and dequantise."""

    def __init__(self, limits: tuple[int, int], dtype: torch.dtype, tensors: bool = False) -> None:
        super().__init__()
        self.limits, self.dtype = limits, dtype
        self.scale = torch.tensor([0.05]) if tensors else 0.05
        self.zero = torch.tensor([3]) if tensors else 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = OPS.quantize_per_tensor(x, self.scale, self.zero, *self.limits, self.dtype)
        return OPS.dequantize_per_tensor(q, self.scale, self.zero, *self.limits, self.dtype)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("limits", "dtype"),
    [((0, 255), torch.uint8), ((-128, 127), torch.int8), ((0, 127), torch.uint8), ((-127, 127), torch.int8), ((-1000, 1000), torch.int16)],
)
def test_tensors(limits: tuple[int, int], dtype: torch.dtype, tensors: bool) -> None:
    """Also with limits inside of the type's."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(4, 50) * 4, torch.full((1, 50), 1e6), torch.full((1, 50), -1e6)])
    if dtype is torch.int16 and tensors:
        pytest.skip("torch has no such overload for int16")
    compared(Both(limits, dtype, tensors), x, ties=0.05)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels(axis: int) -> None:
    class Channels(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            n = 6 if axis == 0 else 5
            self.register_buffer("scales", torch.rand(n) / 20 + 0.02)
            self.register_buffer("zeros", torch.randint(-9, 9, (n,)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = OPS.quantize_per_channel(x, self.scales, self.zeros, axis, -128, 127, torch.int8)
            return OPS.dequantize_per_channel(q, self.scales, self.zeros, axis, -128, 127, torch.int8)

    torch.manual_seed(2)
    compared(Channels(), torch.randn(6, 5), ties=0.07)


def test_a_convolution_is_computed_in_integers() -> None:
    """As PT2E quantisation leaves it: bytes of weights with a scale for each channel, activations quantised before and after."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("weight", torch.randint(-127, 128, (16, 8, 3, 3), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(16) / 100 + 0.001)
            self.register_buffer("zeros", torch.zeros(16, dtype=torch.int64))
            self.register_buffer("bias", torch.randn(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = OPS.quantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8)
            real = OPS.dequantize_per_tensor(q, 0.03, 120, 0, 255, torch.uint8)
            weight = OPS.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
            y = torch.relu(torch.nn.functional.conv2d(real, weight, self.bias, padding=1))
            q = OPS.quantize_per_tensor(y, 0.1, 0, 0, 255, torch.uint8)
            return OPS.dequantize_per_tensor(q, 0.1, 0, 0, 255, torch.uint8)

    x = torch.randn(1, 8, 9, 9)
    compared(Layer(), x, ties=0.1)
    compiled = tunesmith.compile(from_torch(Layer().eval(), (x,)))
    names = [c.function for c in compiled.coverage]
    assert any("conv2d" in n and "round" in n for n in names) and not any("dequantize_conv2d" in n for n in names)


def test_other_types_are_refused() -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return OPS.dequantize_per_tensor(x, 0.1, 0, 0, 65535, torch.uint16)

    with pytest.raises(ModelImportError, match="it dequantises uint16; supported are int8"):
        from_torch(Wide(), (torch.zeros(4, dtype=torch.uint16),))
