"""List torch operators and modules that models use rarely, each with inputs, to be compared with torch.

`PROBES` maps a name to a module or function and its inputs.  Unlike the tables `torch_cases_*`, which vary the arguments of common
operators, every entry here is another operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.support.errors import MissingExtraError

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_probes") from error

_DRAWS = torch.Generator().manual_seed(13)


def _normal(*shape: int) -> Any:
    return torch.randn(shape, generator=_DRAWS)


def _whole(most: int, *shape: int) -> Any:
    return torch.randint(0, most, shape, generator=_DRAWS)


def _module(made: Callable[[], Any]) -> Any:
    """A module with weights drawn from a fixed seed, in evaluation mode; torch's global generator is unchanged."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return made().eval()


def _written_apart(x: Any, i: Any) -> Any:
    """A write at indices of axes that are not next to each other."""
    out = x.clone()
    out[:, i, :, i] = torch.tensor([[1.0], [2.0], [3.0]])[..., None]
    return out


ROWS, OTHER, SQUARE = _normal(4, 6), _normal(4, 6), _normal(5, 5)
IMAGE, VOLUME = _normal(2, 3, 8, 7), _normal(1, 2, 5, 6, 4)
WHOLE, SHIFTS = _whole(100, 3, 5), _whole(9, 3, 5)
SORTED = ROWS[0].sort().values
GRID = _normal(2, 4, 5, 2).tanh()
PLACES = torch.tensor([0, 2, 1])
BAGS = _whole(10, 3, 5)

PROBES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # ---- volumes and windows
    "conv3d": (_module(lambda: nn.Conv3d(2, 4, (3, 2, 3), 2, 1)), (VOLUME,)),
    "conv3d_same": (_module(lambda: nn.Conv3d(2, 4, 2, padding="same", groups=2)), (VOLUME,)),
    "conv_transpose3d": (_module(lambda: nn.ConvTranspose3d(2, 3, 3, 2, 1, 1)), (VOLUME,)),
    "avg_pool3d": (nn.AvgPool3d(2, 1, 1, count_include_pad=False), (VOLUME,)),
    "max_pool3d": (nn.MaxPool3d(3, 2, 1, ceil_mode=True), (VOLUME,)),
    "adaptive_avg_pool3d": (nn.AdaptiveAvgPool3d((3, 2, 1)), (VOLUME,)),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((3, 4)), (IMAGE,)),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d((5, 2)), (IMAGE,)),
    "max_pool2d_indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (IMAGE,)),
    "max_pool2d_dilated_indices": (lambda x: F.max_pool2d(x, 2, 2, 1, 2, return_indices=True), (IMAGE,)),
    "max_pool3d_indices": (lambda x: F.max_pool3d(x, 2, return_indices=True), (VOLUME,)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(8, 7)), (IMAGE,)),
    "avg_pool2d_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x.abs(), 3, 2), (IMAGE,)),
    "local_response_norm": (nn.LocalResponseNorm(3), (IMAGE,)),
    "unfold_axis": (lambda x: x.unfold(2, 3, 2), (IMAGE,)),
    "im2col": (nn.Unfold(3, 2, 1, 2), (IMAGE,)),
    "col2im": (nn.Fold((8, 7), (3, 2), 1, 1, (2, 1)), (_normal(2, 18, 32),)),
    "batch_norm_own_statistics": (_module(lambda: nn.BatchNorm2d(3, track_running_stats=False)), (IMAGE,)),
    "batch_norm_training": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    # ---- resampling
    "bicubic": (lambda x: F.interpolate(x, (11, 5), mode="bicubic", align_corners=True), (IMAGE,)),
    "trilinear": (lambda x: F.interpolate(x, (4, 7, 5), mode="trilinear"), (VOLUME,)),
    "nearest_exact": (lambda x: F.interpolate(x, (5, 9), mode="nearest-exact"), (IMAGE,)),
    "bilinear_factor": (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"), (IMAGE,)),
    "nearest_factor": (lambda x: F.interpolate(x, scale_factor=(2.7, 0.4)), (IMAGE,)),
    "antialias": (lambda x: F.interpolate(x, (4, 13), mode="bilinear", antialias=True), (IMAGE,)),
    "antialias_cubic": (lambda x: F.interpolate(x, (3, 5), mode="bicubic", antialias=True), (IMAGE,)),
    "area": (lambda x: F.interpolate(x, (3, 5), mode="area"), (IMAGE,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (IMAGE, GRID)),
    "grid_sample_nearest": (lambda x, g: F.grid_sample(x, 2 * g, "nearest", "border", align_corners=True), (IMAGE, GRID)),
    "grid_sample_bicubic": (lambda x, g: F.grid_sample(x, 2 * g, "bicubic", "reflection", align_corners=False), (IMAGE, GRID)),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=False), (_normal(2, 2, 3),)),
    # ---- order
    "topk": (lambda x: x.topk(3, 1), (ROWS,)),
    "topk_least": (lambda x: x.topk(2, 0, largest=False), (ROWS,)),
    "sort_descending": (lambda x: x.sort(0, descending=True), (ROWS,)),
    "sort_stable": (lambda x: torch.sort(x % 7, dim=1, stable=True), (WHOLE,)),
    "argsort": (lambda x: x.argsort(-1), (ROWS,)),
    "median": (lambda x: x.median(1), (ROWS,)),
    "nanmedian": (lambda x: torch.where(x > 1, torch.nan, x).nanmedian(0), (ROWS,)),
    "kthvalue": (lambda x: x.kthvalue(2, 1, keepdim=True), (ROWS,)),
    "quantile": (lambda x: x.quantile(0.3, 1), (ROWS,)),
    "searchsorted_rows": (lambda s, x: torch.searchsorted(s, x, right=True), (ROWS.sort(1).values, OTHER)),
    "bucketize": (lambda s, x: torch.bucketize(x, s, out_int32=True), (SORTED, OTHER)),
    "histc": (lambda x: torch.histc(x, 5, -1, 1), (ROWS,)),
    "isin": (lambda x: torch.isin(x, torch.tensor([3, 5, 42])), (WHOLE,)),
    # ---- cumulative
    "cumprod": (lambda x: x.cumprod(1), (ROWS,)),
    "cummax": (lambda x: x.cummax(0), (ROWS,)),
    "cummin": (lambda x: (x % 5).cummin(1), (WHOLE,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), (ROWS,)),
    "cumulative_trapezoid": (lambda x: torch.cumulative_trapezoid(x, dim=1), (ROWS,)),
    # ---- indices
    "index_last_axes": (lambda x, i: x[:, :, i, i], (IMAGE, PLACES)),
    "index_apart": (lambda x, i: x[:, i, :, i], (IMAGE, PLACES)),
    "index_put_apart": (_written_apart, (IMAGE, PLACES)),
    "index_put_add": (lambda x, i: x.index_put((torch.zeros_like(i), i % 2), x[:3, 0], accumulate=True), (ROWS, PLACES)),
    "scatter_mean": (lambda x, i: torch.ones(4, 6).scatter_reduce(1, i, x, "mean"), (ROWS, _whole(6, 4, 6))),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), (ROWS, OTHER)),
    "put": (lambda x, i: x.put(i, torch.tensor([1.0, 2.0, 3.0])), (ROWS, PLACES)),
    "embedding_bag_mean": (_module(lambda: nn.EmbeddingBag(10, 4)), (BAGS,)),
    "embedding_bag_max": (_module(lambda: nn.EmbeddingBag(10, 4, mode="max")), (BAGS[0], torch.tensor([0, 2, 2]))),
    "embedding_bag_weights": (lambda w, i: F.embedding_bag(i, w, mode="sum", per_sample_weights=w[0, 0] + i), (_normal(10, 4), BAGS)),
    "embedding_bag_padding": (lambda w, i: F.embedding_bag(i, w, mode="mean", padding_idx=3), (_normal(5, 4), BAGS % 5)),
    "embedding_bag_padding_max": (lambda w, i: F.embedding_bag(i, w, mode="max", padding_idx=3), (_normal(5, 4), BAGS % 5)),
    "index_reduce": (lambda x, i, y: x.index_reduce(0, i, y[:3], "amax"), (ROWS, PLACES, OTHER)),
    "index_reduce_mean": (lambda x, y: x.index_reduce(1, torch.tensor([5, 0, 5]), y[:, :3], "mean"), (ROWS, OTHER)),
    "scatter_multiplied": (lambda x, i: x.scatter(1, i[None] + 1, 2.5, reduce="multiply"), (ROWS, PLACES)),
    "diagonal": (lambda x: x.diagonal(1, 0, 1), (SQUARE,)),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y[0, :4], -1), (SQUARE, OTHER)),
    "trace": (torch.trace, (SQUARE,)),
    "triangle_indices": (lambda x: x[tuple(torch.tril_indices(4, 5, 1))], (SQUARE,)),
    # ---- elements
    **{name: (getattr(torch, name), (ROWS,)) for name in ("sinh", "cosh", "tan", "atan", "asinh", "erfc", "signbit", "lgamma", "digamma")},
    **{name: (getattr(torch, name), (ROWS.tanh(),)) for name in ("asin", "acos", "atanh", "erfinv")},
    "round_decimals": (lambda x: (torch.round(x, decimals=2), torch.round(x * 1000, decimals=-1)), (ROWS,)),
    "acosh": (lambda x: torch.acosh(x.abs() + 1), (ROWS,)),
    **{name: (getattr(torch, name), (ROWS, OTHER)) for name in ("atan2", "hypot", "copysign", "fmax", "fmin")},
    **{
        f"bitwise_{name}": (getattr(torch, f"bitwise_{name}"), (WHOLE, SHIFTS))
        for name in ("and", "or", "xor", "left_shift", "right_shift")
    },
    # ---- products and distances
    "cdist": (torch.cdist, (ROWS, OTHER[:3])),
    "cdist_1": (lambda a, b: torch.cdist(a, b, p=1.0), (ROWS, OTHER[:3])),
    "pdist": (lambda x: F.pdist(x, 3.0), (ROWS,)),
    "norm_3": (lambda x: x.norm(3, 1), (ROWS,)),
    "bilinear": (_module(lambda: nn.Bilinear(6, 6, 3)), (ROWS, OTHER)),
    "addbmm": (lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=0.5), (_normal(4, 3), _normal(2, 4, 5), _normal(2, 5, 3))),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, beta=3), (_normal(4), ROWS, _normal(6))),
    "rrelu": (nn.RReLU().eval(), (ROWS,)),
    "glu": (nn.GLU(1), (ROWS,)),
    "pixel_shuffle_one_image": (nn.PixelShuffle(2), (_normal(8, 3, 3),)),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), (ROWS,)),
}
"""Name -> module or function of tensors, and its inputs."""
