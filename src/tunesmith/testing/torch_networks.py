"""Generate random small torch networks: directed acyclic graphs of layers, views, joins and reductions with odd sizes.

A network is reproducible from its seed and grows value by value.  Each step selects an existing value and a layer for it.  The layer
is run at once to obtain its shape, and dropped if its values cannot be compared (infinite, NaN, very large, or constant).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunesmith.support.errors import MissingExtraError
from tunesmith.support.seeds import stream

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_networks") from error

Tensor = Any
Apply = Callable[..., Tensor]
ACTIVATIONS: tuple[tuple[str, Apply], ...] = (
    ("relu", F.relu),
    ("gelu", F.gelu),
    ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("silu", F.silu),
    ("tanh", torch.tanh),
    ("sigmoid", torch.sigmoid),
    ("softplus", lambda x: F.softplus(x, 2.0, 1e9)),
    ("elu", lambda x: F.elu(x, 0.5)),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.1)),
    ("hardswish", F.hardswish),
    ("hardtanh", lambda x: F.hardtanh(x, -0.7, 1.2)),
    ("relu6", lambda x: F.relu6(x * 3)),
    ("mish", F.mish),
    ("logsigmoid", F.logsigmoid),
    ("softsign", F.softsign),
    ("square", lambda x: (x * x).clamp(max=9.0)),
    ("root", lambda x: (x.abs() + 0.1).sqrt()),
    ("sine", torch.sin),
    ("where", lambda x: torch.where(x > 0, x, x * 0.25)),
    ("in place", lambda x: x.clone().mul_(0.5).add_(1.0).clamp_(-2.0, 2.0)),
    ("double", lambda x: (x.double() * 0.3).float()),
)
LARGEST, FEWEST, MOST = 200.0, 1, 4000
"""Maximum magnitude of values and number of elements."""


class Network(nn.Module):
    """The network of a seed.

    Attributes:
        steps: name, function and operand indices of each layer.
        example: example inputs.
    """

    def __init__(self, seed: int, layers: int = 8) -> None:
        super().__init__()
        self.draw = stream(seed, "torch network")
        self.generator = torch.Generator().manual_seed(seed)
        self.parts = nn.ModuleList()
        self.steps: list[tuple[str, Apply, tuple[int, ...]]] = []
        self.example = self._inputs()
        self.values: list[Tensor] = list(self.example)
        self.eval()
        tries = 0
        while len(self.steps) < layers and tries < 20 * layers:
            tries += 1
            with torch.no_grad():
                self._grow()
        used = {i for _, _, operands in self.steps for i in operands}
        ends = [i for i in range(len(self.example), len(self.values)) if i not in used]
        self.ends = ends[-3:] or [len(self.values) - 1]
        self.values = []  # values are needed only during growth

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The values that no layer uses."""
        values = list(inputs)
        for _, apply, operands in self.steps:
            values.append(apply(*[values[i] for i in operands]))
        return tuple([values[i] for i in self.ends])

    def pick(self, options: Sequence[Any]) -> Any:
        """A random element."""
        return options[int(self.draw.integers(len(options)))]

    def normal(self, *shape: int) -> Tensor:
        """A normally distributed parameter of the network."""
        return torch.randn(shape, generator=self.generator)

    def layer(self, module: nn.Module) -> nn.Module:
        """Register a module with weights of this network."""
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                drawn = torch.randn(tensor.shape, generator=self.generator)
                fan = max(1, tensor[0].numel()) if tensor.dim() > 1 else 1
                tensor.copy_(drawn.abs() + 0.5 if name.endswith("var") else drawn / fan**0.5)
        self.parts.append(module.eval())
        return module

    def _inputs(self) -> tuple[Tensor, ...]:
        shapes = {
            "image": (self.pick((1, 2)), self.pick((3, 4, 6)), self.pick((5, 7, 8)), self.pick((4, 6, 9))),
            "sequence": (self.pick((1, 2)), self.pick((3, 5, 8)), self.pick((4, 6, 12))),
            "rows": (self.pick((1, 3, 5)), self.pick((4, 7, 10))),
        }
        kinds = [self.pick(tuple(shapes)) for _ in range(self.pick((1, 1, 2)))]
        return tuple([self.normal(*shapes[kind]) for kind in kinds])

    def _grow(self) -> None:
        """Try to add a layer, mostly to a recent value."""
        late = self.pick((True, True, False))
        at = len(self.values) - 1 - self.pick(range(min(3, len(self.values)))) if late else self.pick(range(len(self.values)))
        x = self.values[at]
        name, make = self.pick((*ANY, *LAYERS.get(x.dim(), ())))
        kept, state = len(self.parts), self.generator.get_state()
        made = make(self, x, at)
        if made is not None:
            apply, operands = made if isinstance(made, tuple) else (made, (at,))
            value = apply(*[self.values[i].clone() for i in operands])
            if value.dtype == torch.float32 and FEWEST <= value.numel() <= MOST and value.dim() > 0 and _tame(value):
                self.steps.append((name, apply, operands))
                self.values.append(value)
                return
        self.generator.set_state(state)
        while len(self.parts) > kept:
            del self.parts[-1]


def _tame(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all()) and float(value.abs().max()) < LARGEST and float(value.abs().max()) > 1e-3


Made = Apply | tuple[Apply, tuple[int, ...]] | None
Maker = Callable[[Network, Tensor, int], Made]


def _like(g: Network, x: Tensor, at: int, fits: Callable[[Tensor], bool]) -> int:
    """Index of another value that meets the condition; `at` itself if there is none."""
    found = [i for i, v in enumerate(g.values) if i != at and fits(v)]
    return int(g.pick(found)) if found else at


# ---- for any value ----------------------------------------------------------------------------------------------------------------------


def _activation(g: Network, x: Tensor, at: int) -> Made:
    return g.pick(ACTIVATIONS)[1]


def _residual(g: Network, x: Tensor, at: int) -> Made:
    other = _like(g, x, at, lambda v: v.shape == x.shape)
    apply = g.pick((torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: torch.add(a, b, alpha=0.5), lambda a, b: a / (b * b + 1)))
    return apply, (at, other)


def _joined(g: Network, x: Tensor, at: int) -> Made:
    axis = g.pick(range(x.dim()))
    rest = [d for d in range(x.dim()) if d != axis]
    other = _like(g, x, at, lambda v: v.dim() == x.dim() and all(v.shape[d] == x.shape[d] for d in rest))
    return (lambda a, b: torch.cat([a, b, a[:1] if axis == 0 else b], axis - x.dim())), (at, other)


def _sliced(g: Network, x: Tensor, at: int) -> Made:
    axis, step = g.pick(range(x.dim())), g.pick((1, 1, 2))
    if x.shape[axis] < 3:
        return None
    begin, end = g.pick((0, 1)), g.pick((x.shape[axis], x.shape[axis] - 1))
    index = (slice(None),) * axis + (slice(begin, end, step),)
    return lambda v: v[index]


def _permuted(g: Network, x: Tensor, at: int) -> Made:
    axes = tuple(int(a) for a in g.draw.permutation(x.dim()))
    return lambda v: v.permute(axes)


def _reshaped(g: Network, x: Tensor, at: int) -> Made:
    factor = g.pick((2, 3, 4))
    if x.shape[-1] % factor or x.dim() > 3:
        return (lambda v: v.flatten(-2)) if x.dim() > 2 else None
    return lambda v: v.reshape(*v.shape[:-1], factor, -1)


def _normalised(g: Network, x: Tensor, at: int) -> Made:
    axis = g.pick(range(-x.dim(), 0))
    if x.shape[axis] < 2:
        return None
    return g.pick(
        (
            lambda v: v.softmax(axis),
            lambda v: v.log_softmax(axis),
            lambda v: F.normalize(v, dim=axis),
            lambda v: (v - v.mean(axis, keepdim=True)) / (v.std(axis, keepdim=True) + 0.1),
            lambda v: v - v.amax(axis, keepdim=True),
            lambda v: v.cumsum(axis) * 0.3,
            lambda v: v - torch.logsumexp(v, axis, keepdim=True),
            lambda v: v / (v.abs().sum(axis, keepdim=True) + 0.1),
        )
    )


def _reduced(g: Network, x: Tensor, at: int) -> Made:
    axis, kept = g.pick(range(-x.dim(), 0)), g.pick((True, False))
    if x.dim() < 2 and not kept:
        return None
    name = g.pick(("mean", "sum", "amax", "amin", "norm", "var"))
    if name == "norm":
        return lambda v: torch.linalg.vector_norm(v, dim=axis, keepdim=kept)
    if name == "var":
        return (lambda v: v.var(axis, correction=0.5, keepdim=kept)) if x.shape[axis] > 1 else None
    return lambda v: getattr(v, name)(axis, keepdim=kept)


def _moved(g: Network, x: Tensor, at: int) -> Made:
    axis = g.pick(range(x.dim()))
    shift, order = g.pick((1, -2, 5)), torch.randperm(x.shape[axis], generator=g.generator)
    return g.pick(
        (
            lambda v: v.roll(shift, axis),
            lambda v: v.flip(axis),
            lambda v: v.index_select(axis, order),
            lambda v: v.repeat_interleave(2, axis),
            lambda v: torch.stack(v.chunk(2, axis)[:1], axis).squeeze(axis),
            lambda v: F.pad(v, (1, 2), value=0.5),
            lambda v: v.unsqueeze(axis).expand(*v.shape[:axis], 2, *v.shape[axis:]).flatten(axis, axis + 1),
        )
    )


def _written(g: Network, x: Tensor, at: int) -> Made:
    if x.shape[0] < 2 and x.shape[-1] < 2:
        return None

    def apply(v: Tensor) -> Tensor:
        out = v.clone()
        out[..., -1] = out[..., 0] * 0.5
        out[-1:].mul_(2.0)
        return out

    return apply


def _scaled(g: Network, x: Tensor, at: int) -> Made:
    axis = g.pick(range(x.dim()))
    factor = g.normal(*[e if d == axis else 1 for d, e in enumerate(x.shape)])
    return lambda v: v * factor + 0.1


ANY: tuple[tuple[str, Maker], ...] = (
    ("activation", _activation),
    ("residual", _residual),
    ("concat", _joined),
    ("slice", _sliced),
    ("permute", _permuted),
    ("reshape", _reshaped),
    ("normalise", _normalised),
    ("reduce", _reduced),
    ("move", _moved),
    ("write", _written),
    ("scale", _scaled),
)

# ---- for rows and sequences -------------------------------------------------------------------------------------------------------------


def _linear(g: Network, x: Tensor, at: int) -> Made:
    return g.layer(nn.Linear(x.shape[-1], g.pick((3, 5, 8, 16)), bias=g.pick((True, False))))


def _row_norm(g: Network, x: Tensor, at: int) -> Made:
    width = x.shape[-1]
    return g.layer(g.pick((nn.LayerNorm, nn.RMSNorm))(width, eps=1e-3)) if width > 1 else None


def _gated(g: Network, x: Tensor, at: int) -> Made:
    return F.glu if x.shape[-1] % 2 == 0 else None


def _attention(g: Network, x: Tensor, at: int) -> Made:
    rows, width = x.shape[-2:]
    heads = g.pick((1, 2))
    if width % heads or width < 2 or width > 32:
        return None
    query, key = g.layer(nn.Linear(width, width)), g.layer(nn.Linear(width, width))
    mask = torch.rand(rows, rows, generator=g.generator) > 0.3
    mask[0] = g.pick((False, True))
    given = g.pick((None, mask, torch.where(mask, 0.0, -torch.inf)))

    def apply(v: Tensor) -> Tensor:
        q, k, u = [t.unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (query(v), key(v), v)]
        made = (
            F.scaled_dot_product_attention(q, k, u, given) if given is not None else F.scaled_dot_product_attention(q, k, u, is_causal=True)
        )
        return made.transpose(-2, -3).flatten(-2)

    return apply


def _products(g: Network, x: Tensor, at: int) -> Made:
    weight = g.normal(x.shape[0], x.shape[-1], 3)
    return g.pick((lambda v: v @ v.mT * 0.1, lambda v: torch.einsum("btd,bdk->btk", v, weight) * 0.3, lambda v: torch.bmm(v, weight) * 0.3))


def _line_conv(g: Network, x: Tensor, at: int) -> Made:
    kernel = g.pick((1, 2, 3))
    if x.shape[-1] < kernel:
        return None
    mode = g.pick(("zeros", "replicate", "circular")) if x.shape[-1] > 2 else "zeros"
    return g.layer(nn.Conv1d(x.shape[1], g.pick((2, 4, 5)), kernel, padding=kernel // 2, padding_mode=mode))


def _recurrent(g: Network, x: Tensor, at: int) -> Made:
    module = g.layer(g.pick((nn.GRU, nn.LSTM, nn.RNN))(x.shape[-1], 4, batch_first=True, bidirectional=g.pick((True, False))))
    return (lambda v: module(v)[0]) if x.shape[1] <= 5 else None


# ---- for images -------------------------------------------------------------------------------------------------------------------------


def _conv(g: Network, x: Tensor, at: int) -> Made:
    channels = x.shape[1]
    groups = g.pick([d for d in (1, 1, 2, channels) if channels % d == 0])
    kernel = (min(g.pick((1, 2, 3)), x.shape[2]), min(g.pick((1, 3, 3)), x.shape[3]))
    mode = g.pick(("zeros", "zeros", "reflect", "circular")) if min(x.shape[2:]) > 2 else "zeros"
    module = nn.Conv2d(
        channels,
        groups * g.pick((1, 2, 3)),
        kernel,
        stride=g.pick((1, 1, 2, (1, 2))),
        padding=(g.pick((0, 1)), g.pick((0, 1, 2 if mode == "zeros" else 1))),
        dilation=g.pick((1, 1, (1, 2))) if x.shape[3] > 2 * kernel[1] else 1,
        groups=groups,
        bias=g.pick((True, False)),
        padding_mode=mode,
    )
    return g.layer(module)


def _conv_transpose(g: Network, x: Tensor, at: int) -> Made:
    stride = g.pick((1, 2, 3))
    kernel, extra = g.pick((2, 3)), g.pick((0, stride - 1))
    return g.layer(nn.ConvTranspose2d(x.shape[1], g.pick((2, 3)), kernel, stride, padding=g.pick((0, 1)), output_padding=extra))


def _image_norm(g: Network, x: Tensor, at: int) -> Made:
    channels = x.shape[1]
    groups = g.pick([d for d in (1, 2, channels) if channels % d == 0])
    options = [nn.BatchNorm2d(channels), nn.GroupNorm(groups, channels)]
    if x.shape[2] * x.shape[3] > 1:
        options.append(nn.InstanceNorm2d(channels, eps=1e-2, affine=True))
    return g.layer(g.pick(options))


def _pool(g: Network, x: Tensor, at: int) -> Made:
    kernel, stride, ceil = g.pick((2, 3)), g.pick((1, 2)), g.pick((True, False))
    padding = g.pick((0, 1))
    if min(x.shape[2:]) < kernel:
        return None
    count = g.pick((True, False))
    return g.pick(
        (
            lambda v: F.max_pool2d(v, kernel, stride, padding, ceil_mode=ceil),
            lambda v: F.avg_pool2d(v, kernel, stride, padding, ceil_mode=ceil, count_include_pad=count),
            lambda v: F.adaptive_avg_pool2d(v, 1),
            lambda v: F.adaptive_max_pool2d(v, (1, v.shape[3])),
        )
    )


def _resized(g: Network, x: Tensor, at: int) -> Made:
    size, mode = (g.pick((3, 8, 11)), g.pick((2, 5, 14))), g.pick(("nearest", "bilinear", "corners"))
    if mode == "corners":
        return lambda v: F.interpolate(v, size, mode="bilinear", align_corners=True)
    return lambda v: F.interpolate(v, size, mode=mode)


def _squeezed_excitation(g: Network, x: Tensor, at: int) -> Made:
    gate = g.layer(nn.Linear(x.shape[1], x.shape[1]))
    return lambda v: v * torch.sigmoid(gate(v.mean((2, 3))))[..., None, None]


def _tokens(g: Network, x: Tensor, at: int) -> Made:
    return lambda v: v.flatten(2).transpose(1, 2)


def _shuffled(g: Network, x: Tensor, at: int) -> Made:
    channels, height, width = x.shape[1:]
    if channels % 4 == 0 and g.pick((True, False)):
        return lambda v: F.pixel_shuffle(v, 2)
    if height % 2 == 0 and width % 2 == 0:
        return lambda v: F.pixel_unshuffle(v, 2)
    return (lambda v: F.channel_shuffle(v, 2)) if channels % 2 == 0 else None


_ROWS: tuple[tuple[str, Maker], ...] = (("linear", _linear), ("linear", _linear), ("row norm", _row_norm), ("gate", _gated))
LAYERS: dict[int, tuple[tuple[str, Maker], ...]] = {
    2: _ROWS,
    3: (
        *_ROWS,
        ("attention", _attention),
        ("attention", _attention),
        ("product", _products),
        ("conv1d", _line_conv),
        ("recurrent", _recurrent),
    ),
    4: (
        *(("conv2d", _conv), ("conv2d", _conv), ("conv2d", _conv), ("conv_transpose2d", _conv_transpose), ("image norm", _image_norm)),
        *(
            ("pool", _pool),
            ("pool", _pool),
            ("resize", _resized),
            ("squeeze", _squeezed_excitation),
            ("tokens", _tokens),
            ("shuffle", _shuffled),
        ),
    ),
}
"""Layers by number of dimensions of their operand."""
