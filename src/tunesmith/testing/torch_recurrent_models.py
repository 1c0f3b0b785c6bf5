"""Build recurrent torch models: a language model of LSTM layers, and the selective state-space model Mamba.

The LSTM language model is that of Zaremba et al. (2014); Mamba is that of Gu & Dao (2023), whose scan is a loop over time steps.
`tunesmith.testing.torch_models` initialises their weights.
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
    raise MissingExtraError((error.name or "torch").partition(".")[0], "torch", "tunesmith.testing.torch_recurrent_models") from None

Tensor = Any


class LstmLanguageModel(nn.Module):
    """Embedding, LSTM layers and a head with its own weights; hidden and cell states come with the call and are returned.

    Args:
        layers: number of LSTM layers.
        width: size of embeddings and states.
        vocabulary: number of words.
    """

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """int64[n, length] and states [layers, n, width] -> logits [n, length, vocabulary] and the new states."""
        x, (hidden, cell) = self.lstm(self.words(ids), (hidden, cell))
        return self.head(x), hidden, cell


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """State-space recurrence with parameters that depend on the input (Gu & Dao 2023, algorithm 2).

    For each time step, state = exp(delta a) state + delta b x, and the result is the sum of c state over the states.

    Args:
        x: input [n, length, inner].
        delta: step sizes [n, length, inner].
        a: rates [inner, states], negative.
        b: input weights [n, length, states].
        c: output weights [n, length, states].

    Returns:
        [n, length, inner].
    """
    decay = torch.exp(delta[..., None] * a)
    added = (delta * x)[..., None] * b[:, :, None, :]
    state = torch.zeros_like(decay[:, 0])
    made = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + added[:, t]
        made.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
    return torch.stack(made, 1)


class MambaBlock(nn.Module):
    """Norm, projection, causal depthwise convolution, selective scan, gate, projection; with a residual sum.

    Args:
        width: size of tokens; the inner size is twice that.
        states: states per inner channel.
        kernel: taps of the convolution.
    """

    def __init__(self, width: int, states: int, kernel: int = 4) -> None:
        super().__init__()
        inner, self.rank, self.states = 2 * width, math.ceil(width / 16), states
        self.norm = nn.RMSNorm(width, 1e-5)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1)
        self.x_proj = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner, bias=False)
        # As published: softplus of the bias is log-uniform in 0.001 .. 0.1, the rates are 1 .. states, and the skip weights are 1.
        # The bias is not part of the linear layer, because those of linear layers are initialised near 0.
        delta = torch.exp(torch.rand(inner) * math.log(100.0) + math.log(0.001))
        self.dt_bias = nn.Parameter(delta + torch.log(-torch.expm1(-delta)))
        self.a_log = nn.Parameter(torch.log(torch.arange(1, states + 1, dtype=torch.float32)).repeat(inner, 1))
        self.d = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] -> the same shape."""
        y, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        # The convolution pads both ends; without the last results it is causal.
        y = F.silu(self.conv1d(y.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        delta, b, c = self.x_proj(y).split([self.rank, self.states, self.states], -1)
        delta = F.softplus(self.dt_proj(delta) + self.dt_bias)
        y = selective_scan(y, delta, -torch.exp(self.a_log), b, c) + self.d * y
        return x + self.out_proj(y * F.silu(gate))


class Mamba(nn.Module):
    """Language model of Mamba blocks whose head shares the embedding's weights.

    Args:
        layers: number of blocks.
        width: size of tokens.
        vocabulary: number of tokens.
        states: states per inner channel.
    """

    def __init__(self, layers: int, width: int, vocabulary: int, states: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([MambaBlock(width, states) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, 1e-5)

    def forward(self, ids: Tensor) -> Tensor:
        """int64[n, length] -> logits [n, length, vocabulary]."""
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.words.weight)
