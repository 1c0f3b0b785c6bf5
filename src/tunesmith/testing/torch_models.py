"""Build plain torch models with seeded weights for tests of importing, compiling and tuning whole networks.

The models are defined in the modules `torch_convolutional_models`, `torch_attention_models` and `torch_recurrent_models` of this package.
Batch norms have non-trivial statistics and scales, so that errors in folding them are detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunesmith.support.errors import MissingExtraError, UserError

try:
    import torch
    from torch import nn
except ImportError as error:
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "tunesmith.testing.torch_models") from None

from tunesmith.testing.torch_attention_models import Bert, DistilBert, Gpt, Vit, WhisperEncoder
from tunesmith.testing.torch_convolutional_models import ConvNext, EfficientNet, MobileNetV2, ResNet, UNet, Vgg, conv_stage
from tunesmith.testing.torch_recurrent_models import LstmLanguageModel, Mamba

Tensor = Any
CONVOLUTIONAL = ("resnet18", "resnet50", "mobilenet_v2", "unet", "vgg16", "convnext_tiny", "efficientnet_b0")
ATTENTION = (
    *("bert_base", "distilbert", "vit_b16", "whisper_tiny_encoder"),
    *("gpt2_prefill", "gpt2_decode", "gpt_prefill", "gpt_decode", "gpt_decode_cat"),
)
RECURRENT = ("lstm_lm", "mamba")
NAMES = (*CONVOLUTIONAL, *ATTENTION, *RECURRENT)
_SIZES = (
    *((56, 64), (28, 128), (14, 256), (7, 512)),  # ResNet
    *((224, 64), (112, 128), (56, 256), (28, 512), (14, 512)),  # VGG
    *((128, 32), (64, 64), (32, 128), (16, 256)),  # U-Net
)
STAGES = {f"conv3x3_{pixels}x{channels}": (pixels, channels) for pixels, channels in _SIZES}
"""Name -> (height and width of the image, channels) of four equal 3x3 convolutions, as in ResNet, VGG and U-Net; `get` makes these, too."""

_FAN_IN = ("vgg16", "convnext_tiny", "whisper_tiny_encoder", *RECURRENT)
"""Models whose linear weights and embeddings have variance 1 / fan-in, so that each layer changes the results of small sizes too."""
_MOBILE_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
_VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_EFFICIENT_STAGES = (
    *((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2)),
    *((6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1)),
)


@dataclass(frozen=True, slots=True)
class _Gpt:
    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    past: int


_GPT = {"full": _Gpt(4, 512, 8, 8192, 256, 128), "small": _Gpt(2, 16, 2, 50, 12, 7)}
_GPT2 = {"full": _Gpt(12, 768, 12, 50257, 1024, 128), "small": _GPT["small"]}


def _gpt_sizes(name: str, size: str) -> _Gpt:
    return (_GPT2 if name.startswith("gpt2") else _GPT)[size]


def get(name: str, size: str = "small", seed: int = 0, batch: int = 1) -> tuple[Any, tuple[Any, ...]]:
    """A model in evaluation mode, and example inputs.

    Args:
        name: one of `NAMES` or `STAGES`.
        size: "full" for the published size, or "small" for the same layers, fewer and narrower, for tests.
        seed: seed of weights and inputs.
        batch: images, sentences or sequences of the inputs.
    Raises:
        UserError: unknown model or size, or a batch below 1.
    """
    if batch < 1:
        raise UserError(f"a batch has at least one input, not {batch}")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(name, size)
    _initialise(model, generator, fan_in=name in _FAN_IN)
    return model.eval().requires_grad_(False), _inputs(name, size, generator, batch)


def build(name: str, size: str) -> Any:
    """The model on torch's default device, with weights from torch's global generator.

    Raises:
        UserError: unknown model or size.
    """
    if name not in (*NAMES, *STAGES) or size not in ("small", "full"):
        raise UserError(f"there is no torch model {name!r} of size {size!r}. Models: {', '.join((*NAMES, *STAGES))}; sizes: small, full")
    if name in STAGES:
        return conv_stage(STAGES[name][1], 4) if size == "full" else conv_stage(4, 2)
    return _MAKE[name](size == "full")


def example_inputs(name: str, size: str, seed: int) -> tuple[Any, ...]:
    """Inputs like those of `get`, as for calibration; different ones for each seed, and from those of `get`."""
    return _inputs(name, size, torch.Generator().manual_seed(seed), 1)


_MAKE: dict[str, Callable[[bool], Any]] = {
    "resnet18": lambda full: ResNet((2, 2, 2, 2), False) if full else ResNet((1, 2), False, 4, 10),
    "resnet50": lambda full: ResNet((3, 4, 6, 3), True) if full else ResNet((1, 2), True, 4, 10),
    "mobilenet_v2": lambda full: MobileNetV2(_MOBILE_STAGES) if full else MobileNetV2(((1, 4, 1, 1), (3, 6, 2, 2)), 4, 8, 10),
    "unet": lambda full: UNet() if full else UNet(4, 2),
    "vgg16": lambda full: Vgg(_VGG_STAGES) if full else Vgg(((4, 1), (8, 2)), 32, 16, 10),
    "convnext_tiny": lambda full: ConvNext((3, 3, 9, 3), (96, 192, 384, 768)) if full else ConvNext((1, 2), (8, 16), 10),
    "efficientnet_b0": lambda full: (
        EfficientNet(_EFFICIENT_STAGES) if full else EfficientNet(((1, 3, 4, 1, 1), (4, 5, 8, 2, 2)), 4, 16, 10)
    ),
    "bert_base": lambda full: Bert(12, 768, 12, 30522) if full else Bert(2, 24, 3, 40, 16),
    "distilbert": lambda full: DistilBert(6, 768, 12, 30522) if full else DistilBert(2, 24, 3, 40, 16),
    "vit_b16": lambda full: Vit(12, 768, 12, 16, 224, 1000) if full else Vit(2, 24, 3, 8, 32, 10),
    "whisper_tiny_encoder": lambda full: WhisperEncoder(4, 384, 6, 80, 3000) if full else WhisperEncoder(2, 24, 3, 8, 32),
    "gpt2_prefill": lambda full: _gpt("prefill", "gpt2", full),
    "gpt2_decode": lambda full: _gpt("static", "gpt2", full),
    "gpt_prefill": lambda full: _gpt("prefill", "gpt", full),
    "gpt_decode": lambda full: _gpt("static", "gpt", full),
    "gpt_decode_cat": lambda full: _gpt("cat", "gpt", full),
    "lstm_lm": lambda full: LstmLanguageModel(2, 650, 10000) if full else LstmLanguageModel(2, 8, 40),
    "mamba": lambda full: Mamba(4, 256, 8192) if full else Mamba(2, 16, 40, 4),
}


def _gpt(mode: str, name: str, full: bool) -> Gpt:
    s = _gpt_sizes(name, "full" if full else "small")
    return Gpt(mode, s.layers, s.width, s.heads, s.vocabulary, s.context)


def _inputs(name: str, size: str, generator: Any, batch: int) -> tuple[Any, ...]:
    full = size == "full"

    def tokens(below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=generator)

    if name in STAGES:
        pixels, channels = STAGES[name] if full else (8, 4)
        return (torch.randn(batch, channels, pixels, pixels, generator=generator),)
    if name in (*CONVOLUTIONAL, "vit_b16"):
        pixels = (128 if name == "unet" else 224) if full else 32
        return (torch.randn(batch, 3, pixels, pixels, generator=generator),)
    if name in ("bert_base", "distilbert"):
        length = 128 if full else 8
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[:, length - length // 8 :] = 0
        ids = tokens(30522 if full else 40, batch, length)
        return (ids, tokens(2, batch, length), mask) if name == "bert_base" else (ids, mask)
    if name == "whisper_tiny_encoder":
        return (torch.randn(batch, *((80, 3000) if full else (8, 32)), generator=generator),)
    if name == "lstm_lm":
        states = [torch.randn(2, batch, 650 if full else 8, generator=generator) * 0.5 for _ in range(2)]
        return tokens(10000, batch, 35) if full else tokens(40, batch, 4), *states
    if name == "mamba":
        return (tokens(8192, batch, 64) if full else tokens(40, batch, 6),)
    gpt = _gpt_sizes(name, size)
    if name in ("gpt_prefill", "gpt2_prefill"):
        return tokens(gpt.vocabulary, batch, gpt.past), torch.arange(gpt.past)
    held = gpt.past if name == "gpt_decode_cat" else gpt.context
    shape = (batch, gpt.heads, held, gpt.width // gpt.heads)
    caches = [torch.randn(*shape, generator=generator) * 0.5 for _ in range(2 * gpt.layers)]
    return tokens(gpt.vocabulary, batch, 1), torch.tensor([gpt.past]), *caches


def _initialise(model: Any, generator: Any, fan_in: bool) -> None:
    """Initialise weights by He et al. (2015), so that activations stay near 1; draw statistics and scales of norms at random.

    LSTM layers and single parameters keep the weights that they were made with.
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)):
            module.weight.data.normal_(0, (2.0 / module.weight[0].numel()) ** 0.5, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.4, 0.8, generator=generator)
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0, module.weight.shape[1] ** -0.5 if fan_in else 0.02, generator=generator)
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            module.weight.data.uniform_(0.8, 1.2, generator=generator)
        if isinstance(getattr(module, "bias", None), nn.Parameter):
            module.bias.data.normal_(0, 0.02, generator=generator)
