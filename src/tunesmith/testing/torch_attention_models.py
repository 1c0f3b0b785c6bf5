"""Build torch models with attention: BERT, DistilBERT, ViT, GPT and the encoder of Whisper.

BERT (Devlin et al. 2019), DistilBERT (Sanh et al. 2019), ViT (Dosovitskiy et al. 2021), the encoder of Whisper (Radford et al. 2022), and
GPT (pre-norm, tied head) in three modes: a whole prompt, one token with a fixed-size cache written at `pos`, and one token with a cache
that grows by concatenation.  `tunesmith.testing.torch_models` initialises their weights.
"""

from __future__ import annotations

import math
from typing import Any

from tunesmith.support.errors import MissingExtraError

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "tunesmith.testing.torch_attention_models") from None

Tensor = Any


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def _padding_scores(mask: Tensor, dtype: Any) -> Tensor:
    """Scores [n, 1, 1, length] that remove padding from a softmax: 0 for tokens, -1e9 for padding."""
    return ((1.0 - mask.to(dtype)) * -1e9)[:, None, None, :]


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
        hidden = _padding_scores(mask, self.word.weight.dtype)
        x = self.norm(self.word(ids) + self.position(self.positions[:, : ids.shape[1]]) + self.kind(kinds))
        for layer in self.layers:
            x = layer(x, hidden)
        return x, torch.tanh(self.pool(x[:, 0]))


class DistilBert(nn.Module):
    """DistilBERT encoder: BERT's layers without token types and without a pooled state."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int = 512) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList([BertLayer(width, heads, 4 * width) for _ in range(layers)])
        self.register_buffer("positions", torch.arange(context)[None], persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """int64[n, length] twice, the mask 1 for tokens and 0 for padding -> hidden states [n, length, width]."""
        hidden = _padding_scores(mask, self.word.weight.dtype)
        x = self.norm(self.word(ids) + self.position(self.positions[:, : ids.shape[1]]))
        for layer in self.layers:
            x = layer(x, hidden)
        return x


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
            mask = torch.arange(key.shape[2], device=key.device)[None, None, None, :] <= position
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


class WhisperLayer(nn.Module):
    """Attention without a mask and a two-layer network, each after a norm and with a residual sum; keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = [nn.Linear(width, width) for _ in range(3)]
        self.key = nn.Linear(width, width, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] -> the same shape."""
        y = self.norm1(x)
        query, key, value = [_heads(layer(y), self.heads) for layer in (self.query, self.key, self.value)]
        x = x + self.out(_joined(F.scaled_dot_product_attention(query, key, value)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class WhisperEncoder(nn.Module):
    """Encoder of log-mel spectrograms: two convolutions over time with gelu, of which the second has stride 2, then layers.

    Args:
        layers: number of layers.
        width: hidden size, even.
        heads: number of attention heads.
        mels: number of mel channels.
        frames: number of frames, even.
    """

    def __init__(self, layers: int, width: int, heads: int, mels: int, frames: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(mels, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.register_buffer("positions", _sinusoids(frames // 2, width), persistent=False)
        self.layers = nn.ModuleList([WhisperLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """[n, mels, frames] -> [n, frames / 2, width]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(spectrogram))))
        x = x.transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def _sinusoids(length: int, width: int) -> Tensor:
    """[length, width]: sines, then cosines, of positions at wavelengths from 2 pi to 20,000 pi."""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10000) / (width // 2 - 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
