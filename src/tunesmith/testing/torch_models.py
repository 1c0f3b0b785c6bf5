"""Build plain torch models with seeded weights for tests of importing, compiling and tuning whole networks.

ResNet (He et al. 2016, with the stride on the 3x3 convolution), MobileNet-V2 (Sandler et al. 2018), U-Net (Ronneberger et al. 2015),
BERT (Devlin et al. 2019), ViT (Dosovitskiy et al. 2021), GPT-2 (Radford et al. 2019) for a prompt, and a small GPT (pre-norm, tied
head) in three modes: a whole prompt, one token with a fixed-size cache written at `pos`, and one token with a cache that grows by
concatenation.  Batch norms have non-trivial statistics and scales, so that errors in folding them are detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunesmith.support.errors import MissingExtraError, UserError

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "tunesmith.testing.torch_models") from None

Tensor = Any
CONVOLUTIONAL = ("resnet18", "resnet50", "mobilenet_v2", "unet")
NAMES = (*CONVOLUTIONAL, "bert_base", "vit_b16", "gpt2_prefill", "gpt_prefill", "gpt_decode", "gpt_decode_cat")


def _norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class ResidualBlock(nn.Module):
    """relu(x + body(x)); `bottleneck` is 1x1, 3x3, 1x1 with four times the channels at the end, else two 3x3."""

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * channels if bottleneck else channels
        if bottleneck:
            layers = [*_norm_conv(inputs, channels, 1), nn.ReLU(), *_norm_conv(channels, channels, 3, stride), nn.ReLU()]
            layers += _norm_conv(channels, outputs, 1)
        else:
            layers = [*_norm_conv(inputs, channels, 3, stride), nn.ReLU(), *_norm_conv(channels, channels, 3)]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(*_norm_conv(inputs, outputs, 1, stride)) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Residual network for classification.

    Args:
        layers: blocks per stage; each stage has twice the channels and half the resolution of the previous one.
        bottleneck: whether blocks are bottlenecks.
        width: channels of the first stage.
        classes: number of classes.
    """

    def __init__(self, layers: tuple[int, ...], bottleneck: bool, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_norm_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(layers):
            for i in range(count):
                blocks.append(ResidualBlock(inputs, width << stage, 2 if stage and i == 0 else 1, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)
        self.stages = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1), 1))


class InvertedResidual(nn.Module):
    """1x1 expansion to `expansion` times the channels, 3x3 depthwise, 1x1 projection; with a residual if the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [*_norm_conv(inputs, hidden, 1), nn.ReLU6()]
        self.body = nn.Sequential(*widen, *_norm_conv(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *_norm_conv(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    """MobileNet-V2.

    Args:
        stages: (expansion, channels, blocks, stride) per stage.
        stem: channels of the first convolution.
        last: channels of the last convolution.
        classes: number of classes.
    """

    def __init__(self, stages: tuple[tuple[int, int, int, int], ...], stem: int = 32, last: int = 1280, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_norm_conv(3, stem, 3, 2), nn.ReLU6()]
        inputs = stem
        for expansion, channels, count, stride in stages:
            for i in range(count):
                layers.append(InvertedResidual(inputs, channels, stride if i == 0 else 1, expansion))
                inputs = channels
        self.features = nn.Sequential(*layers, *_norm_conv(inputs, last, 1), nn.ReLU6())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each with norm and relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(*_norm_conv(inputs, outputs, 3), nn.ReLU(), *_norm_conv(outputs, outputs, 3), nn.ReLU())


class UNet(nn.Module):
    """Encoder and decoder with skip connections; `base` channels at full resolution, twice as many at each of `depth` halvings."""

    def __init__(self, base: int = 32, depth: int = 4) -> None:
        super().__init__()
        widths = [base << i for i in range(depth)]
        self.down = nn.ModuleList([DoubleConv(i, o) for i, o in zip([3, *widths[:-1]], widths, strict=True)])
        self.middle = DoubleConv(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths)])
        self.join = nn.ModuleList([DoubleConv(2 * w, w) for w in reversed(widths)])
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, 1, h, w], h and w multiples of 2**depth."""
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return torch.sigmoid(self.out(x))


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


class BertLayer(nn.Module):
    """Attention and a two-layer network, each followed by a norm after the residual sum."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = [nn.Linear(width, width) for _ in range(4)]
        self.norm1, self.norm2 = [nn.LayerNorm(width, 1e-12) for _ in range(2)]
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[n, length, width] -> the same shape; `mask` is added to the scores."""
        query, key, value = [_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)]
        x = self.norm1(x + self.out(_joined(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT encoder; returns all hidden states and the pooled first one."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int = 512) -> None:
        super().__init__()
        self.word, self.position, self.kind = nn.Embedding(vocabulary, width), nn.Embedding(context, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList([BertLayer(width, heads, 4 * width) for _ in range(layers)])
        self.pool = nn.Linear(width, width)
        self.register_buffer("positions", torch.arange(context)[None], persistent=False)

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """int64[n, length] three times, the mask 1 for tokens and 0 for padding."""
        hidden = ((1.0 - mask.to(self.word.weight.dtype)) * -1e9)[:, None, None, :]
        x = self.norm(self.word(ids) + self.position(self.positions[:, : ids.shape[1]]) + self.kind(kinds))
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pool(x[:, 0]))


class GptLayer(nn.Module):
    """GPT layer with norms before attention and network; `mode` as in Gpt, or "encoder" without a mask and with the exact gelu."""

    def __init__(self, width: int, heads: int, mode: str) -> None:
        super().__init__()
        self.heads, self.mode = heads, mode
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new state and the updated keys and values."""
        query, key, value = [_heads(t, self.heads) for t in self.qkv(self.norm1(x)).split(x.shape[-1], -1)]
        mask = None
        if self.mode == "static":
            key, value = keys.index_copy(2, position, key), values.index_copy(2, position, value)
            mask = torch.arange(key.shape[2])[None, None, None, :] <= position
        elif self.mode == "cat":
            key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        made = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.mode == "prefill")
        x = x + self.out(_joined(made))
        approximate = "none" if self.mode == "encoder" else "tanh"
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=approximate)), key, value


class Vit(nn.Module):
    """Vision transformer for classification by its first token.

    Args:
        layers: number of layers.
        width: hidden size.
        heads: number of attention heads.
        patch: height and width of the patches.
        pixels: height and width of images.
        classes: number of classes.
    """

    def __init__(self, layers: int, width: int, heads: int, patch: int, pixels: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 1 + (pixels // patch) ** 2, width) * 0.02)
        self.layers = nn.ModuleList([GptLayer(width, heads, "encoder") for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, pixels, pixels] -> [n, classes]."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x, _, _ = layer(x, None, None, None)
        return self.head(self.norm(x[:, 0]))


class Gpt(nn.Module):
    """A decoder whose head shares the embedding's weights.

    Args:
        mode: "prefill" takes a prompt; "static" takes a token, its position int64[1] and fixed-size caches; "cat" takes a token, its
            position and caches of previous tokens, which grow.
        layers: number of layers.
        width: hidden size.
        heads: number of attention heads.
        vocabulary: number of tokens.
        context: maximum number of positions.
    """

    def __init__(self, mode: str, layers: int, width: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList([GptLayer(width, heads, mode) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Logits, then keys and values per layer."""
        x, kept = self.words(ids) + self.positions(position), []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, position, *(caches[2 * i : 2 * i + 2] or (None, None)))
            kept += [key, value]
        return (F.linear(self.norm(x), self.words.weight), *kept)


_MOBILE_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


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


def get(name: str, size: str = "small", seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """A model in evaluation mode, and example inputs for a batch of one.

    Args:
        name: one of `NAMES`.
        size: "full" for the published size, or "small" for the same layers, fewer and narrower, for tests.
        seed: seed of weights and inputs.
    Raises:
        UserError: unknown model or size.
    """
    if name not in NAMES or size not in ("small", "full"):
        raise UserError(f"there is no torch model {name!r} of size {size!r}. Models: {', '.join(NAMES)}; sizes: small, full")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _MAKE[name](size == "full")
    _initialise(model, generator)
    return model.eval().requires_grad_(False), _inputs(name, size, generator)


def example_inputs(name: str, size: str, seed: int) -> tuple[Any, ...]:
    """Inputs like those of `get`, as for calibration; different ones for each seed, and from those of `get`."""
    return _inputs(name, size, torch.Generator().manual_seed(seed))


_MAKE: dict[str, Callable[[bool], Any]] = {
    "resnet18": lambda full: ResNet((2, 2, 2, 2), False) if full else ResNet((1, 2), False, 4, 10),
    "resnet50": lambda full: ResNet((3, 4, 6, 3), True) if full else ResNet((1, 2), True, 4, 10),
    "mobilenet_v2": lambda full: MobileNetV2(_MOBILE_STAGES) if full else MobileNetV2(((1, 4, 1, 1), (3, 6, 2, 2)), 4, 8, 10),
    "unet": lambda full: UNet() if full else UNet(4, 2),
    "bert_base": lambda full: Bert(12, 768, 12, 30522) if full else Bert(2, 24, 3, 40, 16),
    "vit_b16": lambda full: Vit(12, 768, 12, 16, 224, 1000) if full else Vit(2, 24, 3, 8, 32, 10),
    "gpt2_prefill": lambda full: _gpt("prefill", "gpt2", full),
    "gpt_prefill": lambda full: _gpt("prefill", "gpt", full),
    "gpt_decode": lambda full: _gpt("static", "gpt", full),
    "gpt_decode_cat": lambda full: _gpt("cat", "gpt", full),
}


def _gpt(mode: str, name: str, full: bool) -> Gpt:
    s = _gpt_sizes(name, "full" if full else "small")
    return Gpt(mode, s.layers, s.width, s.heads, s.vocabulary, s.context)


def _inputs(name: str, size: str, generator: Any) -> tuple[Any, ...]:
    full = size == "full"

    def tokens(below: int, *shape: int) -> Tensor:
        return torch.randint(0, below, shape, generator=generator)

    if name in (*CONVOLUTIONAL, "vit_b16"):
        pixels = (128 if name == "unet" else 224) if full else 32
        return (torch.randn(1, 3, pixels, pixels, generator=generator),)
    if name == "bert_base":
        length = 128 if full else 8
        mask = torch.ones(1, length, dtype=torch.int64)
        mask[:, length - length // 8 :] = 0
        return tokens(30522 if full else 40, 1, length), tokens(2, 1, length), mask
    gpt = _gpt_sizes(name, size)
    if name in ("gpt_prefill", "gpt2_prefill"):
        return tokens(gpt.vocabulary, 1, gpt.past), torch.arange(gpt.past)
    held = gpt.context if name == "gpt_decode" else gpt.past
    shape = (1, gpt.heads, held, gpt.width // gpt.heads)
    caches = [torch.randn(*shape, generator=generator) * 0.5 for _ in range(2 * gpt.layers)]
    return tokens(gpt.vocabulary, 1, 1), torch.tensor([gpt.past]), *caches


def _initialise(model: Any, generator: Any) -> None:
    """Initialise weights by He et al. (2015), so that activations stay near 1; draw statistics and scales of norms at random."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.weight.data.normal_(0, (2.0 / module.weight[0].numel()) ** 0.5, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.4, 0.8, generator=generator)
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0, 0.02, generator=generator)
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.uniform_(0.8, 1.2, generator=generator)
        if getattr(module, "bias", None) is not None:
            module.bias.data.normal_(0, 0.02, generator=generator)
