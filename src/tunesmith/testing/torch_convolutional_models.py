"""Build convolutional torch models: ResNet, MobileNet-V2, U-Net, VGG, ConvNeXt and EfficientNet.

ResNet (He et al. 2016, with the stride on the 3x3 convolution), MobileNet-V2 (Sandler et al. 2018), U-Net (Ronneberger et al. 2015),
VGG (Simonyan & Zisserman 2015, without batch norm), ConvNeXt (Liu et al. 2022) and EfficientNet (Tan & Le 2019).
`tunesmith.testing.torch_models` initialises their weights.
"""

from __future__ import annotations

from typing import Any

from tunesmith.support.errors import MissingExtraError

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "tunesmith.testing.torch_convolutional_models") from None

Tensor = Any


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


def conv_stage(channels: int, count: int) -> nn.Sequential:
    """3x3 convolutions with stride 1 and equal numbers of channels, each followed by bias and relu."""
    return nn.Sequential(*[layer for _ in range(count) for layer in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())])


class Vgg(nn.Module):
    """VGG for classification: 3x3 convolutions with bias and relu, a halving after each stage, three linear layers.

    Args:
        stages: (channels, convolutions) per stage.
        pixels: height and width of images, a multiple of 2**len(stages).
        hidden: width of the linear layers.
        classes: number of classes.
    """

    def __init__(self, stages: tuple[tuple[int, int], ...], pixels: int = 224, hidden: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for channels, count in stages:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
                inputs = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        flat = inputs * (pixels >> len(stages)) ** 2
        first = [nn.Linear(flat, hidden), nn.ReLU(), nn.Dropout(0.5)]
        self.head = nn.Sequential(*first, nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, pixels, pixels] -> [n, classes]."""
        return self.head(torch.flatten(self.features(x), 1))


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [n, channels, h, w]."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] -> the same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """7x7 depthwise convolution, layer norm, a two-layer network with gelu over the channels, layer scale, residual sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        # The published initial value 1e-6 would hide errors in the block.
        self.scale = nn.Parameter(torch.empty(channels).uniform_(0.2, 0.6))

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] -> the same shape."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt for classification, without stochastic depth, which only training has.

    Args:
        layers: blocks per stage.
        widths: channels per stage.
        classes: number of classes.
    """

    def __init__(self, layers: tuple[int, ...], widths: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], 1e-6)]
        for i, (count, width) in enumerate(zip(layers, widths, strict=True)):
            if i:
                stages += [ChannelNorm(widths[i - 1], 1e-6), nn.Conv2d(widths[i - 1], width, 2, 2)]
            stages += [ConvNextBlock(width) for _ in range(count)]
        self.stages = nn.Sequential(*stages)
        self.norm, self.head = nn.LayerNorm(widths[-1], 1e-6), nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes], h and w multiples of 2**(1 + number of stages)."""
        return self.head(self.norm(self.stages(x).mean((2, 3))))


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate that two 1x1 convolutions compute from the means of all channels (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] -> the same shape."""
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(F.adaptive_avg_pool2d(x, 1)))))


class MBConv(nn.Module):
    """1x1 expansion, depthwise convolution, squeeze-excitation to a quarter of `inputs`, 1x1 projection; residual if shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [*_norm_conv(inputs, hidden, 1), nn.SiLU()]
        depthwise = [*_norm_conv(hidden, hidden, kernel, stride, hidden), nn.SiLU()]
        gate = SqueezeExcitation(hidden, max(1, inputs // 4))
        self.body = nn.Sequential(*widen, *depthwise, gate, *_norm_conv(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h / stride, w / stride]."""
        return x + self.body(x) if self.residual else self.body(x)


class EfficientNet(nn.Module):
    """EfficientNet, without stochastic depth, which only training has.

    Args:
        stages: (expansion, kernel, channels, blocks, stride) per stage.
        stem: channels of the first convolution.
        last: channels of the last convolution.
        classes: number of classes.
    """

    def __init__(self, stages: tuple[tuple[int, int, int, int, int], ...], stem: int = 32, last: int = 1280, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_norm_conv(3, stem, 3, 2), nn.SiLU()]
        inputs = stem
        for expansion, kernel, channels, count, stride in stages:
            for i in range(count):
                layers.append(MBConv(inputs, channels, kernel, stride if i == 0 else 1, expansion))
                inputs = channels
        self.features = nn.Sequential(*layers, *_norm_conv(inputs, last, 1), nn.SiLU())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))
