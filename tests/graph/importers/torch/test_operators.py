"""Test each torch converter against torch, with one small formula per use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.importers.torch.importer import TORCH_OPERATORS, from_torch
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.support.errors import ModelImportError

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Formulas(torch.nn.Module):
    """Many formulas in one module, since tracing has a high fixed cost; each formula has its own inputs and result."""

    def __init__(self, cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, inputs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: formula(*inputs[name]) for name, (formula, _) in self.cases.items()}


def draw(shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple of extents as a normally distributed tensor; tensors are kept."""
    generator = torch.Generator().manual_seed(7)
    return tuple([torch.randn(s, generator=generator) if isinstance(s, tuple) else s for s in shapes])


def leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


Results = dict[str, tuple[list[np.ndarray], list[np.ndarray]]]


def evaluated(cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> Results:
    """Results of the imported graph and of torch, by case."""
    model = Formulas(cases)
    inputs = {name: draw(shapes) for name, (_, shapes) in cases.items()}
    func = from_torch(model, (inputs,))["main"]
    verify(func)
    got = iter(run(func, [x.numpy() for x in leaves(inputs)]))
    expected = {name: [np.asarray(torch.as_tensor(w).numpy()) for w in leaves(tree)] for name, tree in model(inputs).items()}
    results = {name: ([next(got) for _ in trees], trees) for name, trees in expected.items()}
    assert next(got, None) is None
    return results


def compare(results: Results, name: str) -> None:
    for g, w in zip(*results[name], strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        scale = np.abs(w[np.isfinite(w)]).max(initial=1e-3) if w.dtype != bool else 1
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * scale)


INTS = torch.tensor([[3, -4, 5], [-7, 2, 9]])
BOOLS = torch.tensor([[True, False, True], [False, False, True]])
PLACES = torch.tensor([[0, 2, 1], [1, 1, 0]])
ROW = torch.tensor([1.5, -0.5, 2.5, 0.0])
IMAGE = (2, 4, 6, 8)

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs() + 0.1),
    "log1p": lambda x: torch.log1p(x * x * 1e-5),
    "expm1": lambda x: torch.expm1(x * 1e-4),
    "exp2": torch.exp2,
    "log2": lambda x: torch.log2(x.abs() + 0.1),
    "log10": lambda x: torch.log10(x.abs() + 0.1),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "relu6": lambda x: F.relu6(4 * x),
    "silu": F.silu,
    "square": torch.square,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardtanh": F.hardtanh,
    "hardswish": lambda x: F.hardswish(3 * x),
    "hardsigmoid": lambda x: F.hardsigmoid(3 * x),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "clamp_min": lambda x: torch.clamp(x, min=0.1),
    "clamp_max": lambda x: torch.clamp_max(x, 0.1),
    "isnan": lambda x: torch.isnan(torch.sqrt(x)),
    "isinf": lambda x: torch.isinf(x / (x > 0)),
    "isfinite": lambda x: torch.isfinite(x / (x > 0)),
    "pow_2": lambda x: x**2,
    "pow_half": lambda x: x.abs() ** 0.5,
    "pow_minus_half": lambda x: (x.abs() + 0.1) ** -0.5,
    "pow_minus_1": lambda x: x**-1,
    "pow_3": lambda x: x**3,
    "pow_1": lambda x: x**1,
    "two_to_the_x": lambda x: 2.0**x,
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "clone": lambda x: x.clone(),
    "to_double": lambda x: x.double(),
    "to_int": lambda x: x.to(torch.int64),
    "to_bool": lambda x: x.round().bool(),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax_double": lambda x: torch.softmax(x, 1, dtype=torch.float64),
    "sum": torch.sum,
    "sum_dims": lambda x: x.sum((0, 1), keepdim=True),
    "sum_bools": lambda x: (x > 0).sum(1),
    "mean": lambda x: x.mean(),
    "mean_dim": lambda x: x.mean(-1, keepdim=True),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(1),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "min_dim": lambda x: x.min(1),
    "max_dim": lambda x: tuple(x.max(0, keepdim=True)),
    "argmax": lambda x: x.argmax(),
    "argmin_dim": lambda x: x.argmin(1, keepdim=True),
    "any": lambda x: (x > 1).any(),
    "all_dim": lambda x: (x > -1).all(1),
    "any_floats": lambda x: x.round().any(0),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((0, 1), correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm_1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm_max": lambda x: torch.linalg.vector_norm(x, math.inf, dim=0),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
}


@pytest.fixture(scope="module")
def unary() -> Results:
    return evaluated({name: (formula, ((3, 4),)) for name, formula in UNARY.items()})


@pytest.mark.parametrize("name", UNARY)
def test_unary_operator(unary: Results, name: str) -> None:
    compare(unary, name)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub": lambda a, b: a - b,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": lambda a, b: 1 - b,
    "rsub_alpha": lambda a, b: torch.rsub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "pow": lambda a, b: torch.pow(a.abs() + 0.5, b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda a, b: torch.clamp(a, min=b, max=b + 1),
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "logical_and": lambda a, b: torch.logical_and(a, b > 0),
    "logical_or": lambda a, b: torch.logical_or(a > 0, b),
    "logical_xor": lambda a, b: torch.logical_xor(a > 0, b > 0),
    "logical_not": lambda a, b: torch.logical_not(a),
    "bitwise": lambda a, b: ((a > 0) & (b > 0)) | ~((a > 0) ^ (b > 0)),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "where_numbers": lambda a, b: torch.where(a > 0, 1.0, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, -math.inf),
    "masked_fill_tensor": lambda a, b: a.masked_fill(b > 0, b.sum()),
    "matmul": lambda a, b: a @ b.T,
    "addmm": lambda a, b: torch.addmm(a[:, :3], a, b.T, beta=0.5, alpha=2),
    "mv": lambda a, b: a @ b[0],
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "cat": lambda a, b: torch.cat([a, b, a], -1),
    "stack": lambda a, b: torch.stack([a, b], 1),
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "meshgrid": lambda a, b: torch.meshgrid(a[0], b[0], indexing="ij"),
}


@pytest.fixture(scope="module")
def binary() -> Results:
    return evaluated({name: (formula, ((3, 4), (3, 4))) for name, formula in BINARY.items()})


@pytest.mark.parametrize("name", BINARY)
def test_binary_operator(binary: Results, name: str) -> None:
    compare(binary, name)


MOVES: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(8, -1),
    "reshape_of_a_permutation": lambda x: x.permute(2, 0, 1, 3).reshape(6, -1),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "transpose": lambda x: x.transpose(1, -1),
    "t": lambda x: x[0, 0].t(),
    "movedim": lambda x: x.movedim(1, 3),
    "squeeze": lambda x: x[:1].squeeze(0),
    "squeeze_all": lambda x: x[:1, :, :1].squeeze(),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "expand": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "repeat": lambda x: x[0].repeat(2, 1, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "split": lambda x: x.split(3, 2),
    "split_sizes": lambda x: x.split([1, 3], 1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "slice": lambda x: x[:, 1:3, ::2, -3:],
    "slice_beyond": lambda x: x[:, 1:99],
    "select": lambda x: x[:, -1, 2],
    "flip": lambda x: x.flip(1, -1),
    "roll": lambda x: x.roll(2, 3),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=2.5),
    "pad_cut": lambda x: F.pad(x, (-1, 2)),
    "pad_reflect": lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (2, 1, 1, 0), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (2, 1, 1, 0), mode="circular"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "glu": lambda x: F.glu(x, 1),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool_dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0), dilation=2),
    "max_pool_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_pool_of_one": lambda x: F.max_pool2d(x[0], 2),
    "max_pool_1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool_1d": lambda x: F.avg_pool1d(x[0], 2),
    "adaptive_avg_1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_avg_same": lambda x: F.adaptive_avg_pool2d(x, (6, 8)),
    "adaptive_avg_1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (2, 4)),
    "adaptive_max_1d": lambda x: F.adaptive_max_pool1d(x[0], 5, return_indices=True),
    "adaptive_max_1d_one": lambda x: F.adaptive_max_pool1d(x[0, 0], 1, return_indices=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_size": lambda x: F.interpolate(x, size=(9, 5)),
    "bilinear": lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"),
    "bilinear_factor": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "zeros": lambda x: (torch.zeros(2, 3), torch.zeros_like(x), x.new_zeros(3)),
    "ones": lambda x: (torch.ones(2, dtype=torch.int64), torch.ones_like(x), x.new_ones(3)),
    "full": lambda x: (torch.full((2,), 2.5), torch.full_like(x, 3), x.new_full((2,), 1)),
    "arange": lambda x: (torch.arange(5), torch.arange(2, 9, 3), torch.arange(0, 1, 0.25)),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 4)),
    "linspace": lambda x: torch.linspace(0, 1, 5),
    "scalar": lambda x: x + torch.tensor(2.0),
    "write_slice": lambda x: _written(x, lambda y: y[:, 1:3].mul_(2)),
    "write_steps": lambda x: _written(x, lambda y: y[:, :, ::2].copy_(y[:, :, 1::2])),
    "write_one": lambda x: _written(x, lambda y: y[:, -1].fill_(3)),
    "write_mask": lambda x: _written(x, lambda y: y.__setitem__(y > 0, 0.5)),
    "write_rows": lambda x: _written(x, lambda y: y.__setitem__(torch.tensor([1, 0]), y + 1)),
    "index": lambda x: x[:, torch.tensor([2, -1, 0])],
    "index_two": lambda x: x[torch.tensor([0, 1, -1]), torch.tensor([3, -2, 0])],
    "index_matrix": lambda x: x[torch.tensor([[0, 1], [1, 1]])],
    "index_select": lambda x: x.index_select(2, torch.tensor([5, 0])),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([3, 0]), x[:, :2]),
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]), torch.tensor([3, -1])), torch.ones(8)),
    "index_put_add": lambda x: x.index_put((torch.tensor([1, 1]),), torch.ones(8), accumulate=True),
}


def _written(x: Any, write: Callable[[Any], Any]) -> Any:
    y = x.clone()
    write(y)
    return y


@pytest.fixture(scope="module")
def moves() -> Results:
    return evaluated({name: (formula, (IMAGE,)) for name, formula in MOVES.items()})


@pytest.mark.parametrize("name", MOVES)
def test_shape_operator(moves: Results, name: str) -> None:
    compare(moves, name)


NETWORK: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "linear": (F.linear, ((2, 3, 4), (5, 4), (5,))),
    "linear_without_bias": (F.linear, ((2, 4), (5, 4))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
    "matmul_batches": (torch.matmul, ((2, 1, 3, 4), (3, 4, 5))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2)), ((2, 4, 6, 8), (6, 4, 3, 3), (6,))),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), ((2, 4, 6, 8), (6, 2, 2, 3))),
    "conv2d_depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), ((2, 4, 6, 8), (4, 1, 3, 3))),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), ((2, 4, 6, 8), (5, 4, 2, 3))),
    "conv2d_valid": (lambda x, w: F.conv2d(x, w, padding="valid"), ((2, 4, 6, 8), (5, 4, 2, 3))),
    "conv2d_of_one": (F.conv2d, ((4, 6, 8), (5, 4, 3, 3))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), ((2, 4, 9), (6, 4, 3), (6,))),
    "conv1d_same": (lambda x, w: F.conv1d(x, w, padding="same"), ((2, 4, 9), (6, 4, 4))),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), ((2, 4, 5, 6), (4, 3, 3, 3), (3,))),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), ((2, 4, 5), (4, 3, 3))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4, 5), w, b), ((3, 4, 5), (4, 5), (4, 5))),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (5,)), ((3, 4, 5),)),
    "layer_norm_bias": (lambda x, b: F.layer_norm(x, (5,), None, b), ((3, 4, 5), (5,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), ((3, 4, 5), (5,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((3, 4, 5, 2), (4,), (4,))),
    "instance_norm": (lambda x: F.instance_norm(x), ((3, 4, 5, 2),)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v * v), ((3, 4, 5, 2), (4,), (4,))),
    "prelu": (F.prelu, ((2, 4, 3), (4,))),
    "prelu_one": (F.prelu, ((2, 4, 3), (1,))),
    "attention": (F.scaled_dot_product_attention, ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5))),
    "attention_causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 3, 4, 8),) * 3),
    "attention_floats": (F.scaled_dot_product_attention, ((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (4, 6))),
    "attention_mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(4, 4, dtype=torch.bool).tril(-1)),
        ((2, 3, 4, 8),) * 3,
    ),
    "attention_scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), ((3, 4, 8),) * 3),
    "attention_grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((2, 6, 4, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
    ),
    "embedding": (lambda w: F.embedding(torch.tensor([[0, 3], [2, 2]]), w), ((5, 3),)),
    "gather": (lambda x: torch.gather(x, 1, PLACES), ((2, 3),)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, PLACES, 1), ((2, 3),)),
    "scatter": (lambda x, y: x.scatter(0, torch.tensor([[1, 0, 1]]), y), ((2, 3), (1, 3))),
    "scatter_value": (lambda x: x.scatter(1, torch.tensor([[1], [0]]), 2.5), ((2, 3),)),
    "scatter_add": (lambda x, y: x.scatter_add(1, PLACES, y), ((2, 3), (2, 3))),
    "scatter_reduce": (lambda x, y: x.scatter_reduce(1, PLACES, y, "amax"), ((2, 3), (2, 3))),
    **{
        f"scatter_reduce_without_self_{reduce}": (
            lambda x, y, reduce=reduce: x.scatter_reduce(1, PLACES[:, :2], y, reduce, include_self=False),
            ((2, 3), (2, 2)),
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    },
    "scatter_reduce_integers": (
        lambda x, y: (x * 9).int().scatter_reduce(0, PLACES[:1] * 0, (y * 9).int(), "amin", include_self=False),
        ((2, 3), (1, 3)),
    ),
    "one_hot": (lambda x: x + F.one_hot(PLACES[0], 3), ((3, 3),)),
}


@pytest.fixture(scope="module")
def network() -> Results:
    return evaluated(NETWORK)


@pytest.mark.parametrize("name", NETWORK)
def test_network_operator(network: Results, name: str) -> None:
    compare(network, name)


MIXED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "int_plus_float": (lambda i: i + 0.5, (INTS,)),
    "int_times_float_tensor": (lambda i, f: i * f, (INTS, torch.tensor([0.5, 1.5, 2.5]))),
    "int_divided": (lambda i: i / 2, (INTS,)),
    "int_floor_divided": (lambda i: i // 2, (INTS,)),
    "int_trunc_divided": (lambda i: torch.div(i, 2, rounding_mode="trunc"), (INTS,)),
    "int_remainder": (lambda i: i % 4, (INTS,)),
    "int_fmod": (lambda i: torch.fmod(i, 4), (INTS,)),
    "int_exp": (torch.exp, (INTS,)),
    "int_square": (lambda i: i**2, (INTS,)),
    "int_below_float": (lambda i: i < 2.5, (INTS,)),
    "int32_and_int64": (lambda i: i.int() + i, (INTS,)),
    "int_not": (lambda i: ~i, (INTS,)),
    "int_sum": (lambda i: i.int().sum(), (INTS,)),
    "bool_plus_bool": (lambda b: b + b, (BOOLS,)),
    "bool_times_bool": (lambda b: b * b, (BOOLS,)),
    "bool_plus_int": (lambda b: b + 1, (BOOLS,)),
    "bool_mask": (lambda b: (1.0 - b.float()) * -1e9, (BOOLS,)),
    "float_and_zero_dim_double": (lambda x, y: x * y, (ROW, torch.tensor(2.5, dtype=torch.float64))),
    "int_and_zero_dim_float": (lambda x, y: x * y, (INTS, torch.tensor(2.5))),
    "int_against_zero_dim_double": (lambda x, y: x > y, (INTS, torch.tensor(2.5, dtype=torch.float64))),
    "zero_dims": (lambda x, y: x + y, (torch.tensor(2), torch.tensor(2.5, dtype=torch.float64))),
    "double_and_float": (lambda x, y: x.double() + y, (ROW, ROW)),
    "where_of_two_types": (lambda b, i, f: torch.where(b, i, f), (BOOLS, INTS, torch.tensor([0.5, 1.5, 2.5]))),
    "cat_of_two_types": (lambda i, b: torch.cat([i, b]), (INTS, BOOLS)),
    "half": (lambda x: x.half() * 2 + 1, (ROW,)),
}


@pytest.fixture(scope="module")
def mixed() -> Results:
    return evaluated(MIXED)


@pytest.mark.parametrize("name", MIXED)
def test_type_promotion(mixed: Results, name: str) -> None:
    compare(mixed, name)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "nonzero": (lambda x: x.sum().nonzero(), ((3,),), "aten.nonzero.default: its operand is a number"),
    "random": (lambda x: x + torch.rand(3), ((3,),), "aten.rand.default: it draws random numbers"),
    "unique_rows": (lambda x: torch.unique(x, dim=0), ((3, 65),), "aten.unique_dim.default: it sorts slices of 65 elements"),
    "mask_added": (lambda x: x.index_put((x > 0,), x, accumulate=True), ((3,),), "writes through a mask in a way that is not supported"),
    "dropout": (lambda x: F.dropout(x, 0.5, training=True), ((3,),), "model.eval()"),
    "attention_dropout": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), ((1, 1, 3, 4),), "model.eval()"),
    "mode": (lambda x: x.mode(0).values, ((3,),), "aten.mode.default: there is no converter for this operator"),
    "large_source": (lambda x: x.scatter(1, torch.tensor([[1], [0]]), x), ((2, 3),), "differ in shape"),
    "complex": (lambda x: (x.to(torch.complex64) + 1).real, ((4,),), "tensors of complex64 cannot be imported"),
}


@pytest.fixture(scope="module")
def refusal() -> str:
    model = Formulas({name: (formula, shapes) for name, (formula, shapes, _) in REFUSED.items()})
    with pytest.raises(ModelImportError) as error:
        from_torch(model, ({name: draw(shapes) for name, (_, shapes, _) in REFUSED.items()},))
    return str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_one_error_lists_all_refusals(refusal: str, name: str) -> None:
    assert REFUSED[name][2] in refusal


def test_small_formulas_need_few_operators() -> None:
    def operators(formula: Callable[..., Any], *shapes: Any) -> list[str]:
        func = from_torch(Formulas({"f": (formula, shapes)}), ({"f": draw(shapes)},))["main"]
        return [b.operation.operator for b in all_bindings(func.body)]

    assert operators(lambda x: F.hardswish(F.silu(F.gelu(x.float()))), (3,)) == ["gelu", "silu", "hard_swish"]
    assert operators(lambda x, w: F.layer_norm(F.linear(x, w), (5,)), (2, 4), (5, 4)) == ["permute_dims", "matmul", "layer_norm"]
    assert operators(lambda q: F.scaled_dot_product_attention(q, q, q), (1, 2, 3, 4)) == [
        "permute_dims",
        "matmul",
        "multiply",
        "softmax",
        "matmul",
    ]


def test_every_registered_name_is_a_torch_operator() -> None:
    unknown = []
    for name in TORCH_OPERATORS:
        if name.startswith("aten."):
            _, packet, overload = name.split(".")
            if not hasattr(getattr(torch.ops.aten, packet, None), overload):
                unknown.append(name)
    assert unknown == []
