"""Define torch layer cases with unusual arguments: convolution, pooling, resizing, norms, attention, recurrent layers, losses."""

from __future__ import annotations

import math
from typing import Any

from tunesmith.support.errors import MissingExtraError
from tunesmith.testing.torch_cases import CaseTable

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_cases_networks") from error

CASES = CaseTable()
t = torch.tensor
IMAGE, LINE = (2, 4, 7, 9), (2, 4, 11)


def seeded(make: Any, *args: Any, **kwargs: Any) -> Any:
    """A module with reproducible weights and non-trivial running statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = make(*args, **kwargs).eval()
        for name, tensor in module.named_buffers():
            if tensor.dtype == torch.float32:
                tensor.copy_(torch.rand_like(tensor) + (0.5 if "var" in name else 0.0))
    return module


# ---- convolutions -----------------------------------------------------------------------------------------------------------------------

_C = nn.Conv2d
_CONVOLUTIONS: dict[str, Any] = {
    "same": (4, 6, 3, {"padding": "same"}),
    "same_even": (4, 6, (2, 4), {"padding": "same"}),
    "same_dilated": (4, 6, (2, 3), {"padding": "same", "dilation": (3, 2)}),
    "groups": (4, 6, 3, {"groups": 2}),
    "depthwise": (4, 8, 3, {"groups": 4, "padding": 2}),
    "stride_beyond": (4, 3, 2, {"stride": (5, 4)}),
    "dilated": (4, 3, (3, 2), {"dilation": (2, 4), "padding": (0, 3)}),
    "wide_padding": (4, 3, 3, {"padding": 5}),
    "one_by_one": (4, 1, 1, {"bias": False}),
    "whole": (4, 5, (7, 9), {}),
    "reflect": (4, 3, 3, {"padding": 2, "padding_mode": "reflect"}),
    "replicate": (4, 3, 3, {"padding": (3, 1), "padding_mode": "replicate"}),
    "circular": (4, 3, (3, 4), {"padding": 1, "padding_mode": "circular"}),
    "circular_same": (4, 3, 3, {"padding": "same", "padding_mode": "circular"}),
}
_name: str
_options: Any
for _name, (_i, _o, _k, _options) in _CONVOLUTIONS.items():
    CASES.add(f"conv2d_{_name}", seeded(_C, _i, _o, _k, **_options), IMAGE)
for _name, (_i, _o, _k, _options) in {
    "plain": (4, 6, 3, {}),
    "same": (4, 6, 4, {"padding": "same", "dilation": 2}),
    "groups": (4, 8, 3, {"groups": 4, "stride": 3, "padding": 1}),
    "reflect": (4, 2, 3, {"padding": 4, "padding_mode": "reflect"}),
    "circular": (4, 2, 3, {"padding": 4, "padding_mode": "circular"}),
}.items():
    CASES.add(f"conv1d_{_name}", seeded(nn.Conv1d, _i, _o, _k, **_options), LINE)
    CASES.add(f"conv1d_{_name}_of_one", seeded(nn.Conv1d, _i, _o, _k, **_options), LINE[1:])
for _name, (_i, _o, _k, _options) in {
    "stride": (4, 3, 3, {"stride": 2}),
    "output_padding": (4, 3, 3, {"stride": 3, "padding": 1, "output_padding": (2, 1)}),
    "dilated_output_padding": (4, 3, 2, {"stride": 2, "dilation": 3, "output_padding": 2}),
    "groups": (4, 6, (2, 3), {"stride": (1, 2), "groups": 2, "padding": (1, 0)}),
    "depthwise": (4, 4, 4, {"stride": 2, "padding": 1, "groups": 4, "bias": False}),
    "wide_padding": (4, 3, 3, {"padding": 2}),
}.items():
    CASES.add(f"conv_transpose2d_{_name}", seeded(nn.ConvTranspose2d, _i, _o, _k, **_options), (2, 4, 4, 5))
CASES.add("conv_transpose1d", seeded(nn.ConvTranspose1d, 4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2), LINE)
CASES.add("conv_transpose1d_of_one", seeded(nn.ConvTranspose1d, 4, 6, 3, stride=3, padding=2), LINE[1:])
CASES.add("conv2d_of_one", seeded(_C, 4, 2, 3, padding=1), IMAGE[1:])
CASES.add("conv2d_double", seeded(_C, 4, 2, 3).double(), torch.ones(IMAGE).double())
CASES.add("conv2d_strided_weight", lambda x, w: F.conv2d(x, w.transpose(0, 1)), IMAGE, (4, 5, 2, 2))
CASES.add("conv2d_channels_last", seeded(_C, 4, 6, 3, padding=1), torch.randn(IMAGE).to(memory_format=torch.channels_last))
CASES.add("conv2d_empty_batch", seeded(_C, 4, 2, 3), torch.zeros(0, 4, 7, 9), refused="a result has no elements")
CASES.add("conv3d", seeded(nn.Conv3d, 2, 2, 2), (1, 2, 3, 4, 5))

# ---- pooling ----------------------------------------------------------------------------------------------------------------------------

_avg_pool: Any = F.avg_pool2d
for _name, _args, _options in (
    ("ceil", (3, 2), {"ceil_mode": True}),
    ("ceil_padded", (3, 2, 1), {"ceil_mode": True}),
    ("ceil_beyond", (2, 3, 1), {"ceil_mode": True}),
    ("ceil_odd", ((3, 2), (4, 3)), {"ceil_mode": True}),
    ("uneven", ((2, 5), (1, 4), (1, 2)), {}),
    ("whole", ((7, 9),), {}),
    ("one", (1,), {}),
):
    CASES.add(f"max_pool_{_name}", lambda x, a=_args, o=_options: F.max_pool2d(x, *a, **o), IMAGE)
    CASES.add(f"avg_pool_{_name}", lambda x, a=_args, o=_options: F.avg_pool2d(x, *a, **o), IMAGE)
    CASES.add(f"avg_pool_{_name}_without", lambda x, a=_args, o=_options: _avg_pool(x, *a, **o, count_include_pad=False), IMAGE)
    CASES.add(f"max_pool_{_name}_nan", lambda x, a=_args, o=_options: F.max_pool2d((x - 1).log(), *a, **o), IMAGE)
CASES.add("max_pool_dilated", lambda x: F.max_pool2d(x, (2, 3), 1, (1, 0), dilation=(3, 2)), IMAGE)
CASES.add("max_pool_dilated_ceil", lambda x: F.max_pool2d(x, 2, 2, 1, dilation=3, ceil_mode=True), IMAGE)
CASES.add("max_pool_low", lambda x: F.max_pool2d(x, 3, 2, 1), torch.full((1, 1, 4, 4), -math.inf))
CASES.add("max_pool_ints", lambda x: F.max_pool2d(x, 2, 1, 1), torch.arange(16).reshape(1, 1, 4, 4) - 20)
CASES.add("max_pool_places", lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE)
CASES.add("max_pool_1d", lambda x: (F.max_pool1d(x, 3, 2, 1, 2), F.max_pool1d(x, 4, 3, ceil_mode=True)), LINE)
CASES.add("avg_pool_1d", lambda x: (F.avg_pool1d(x, 3, 2, 1, True, False), F.avg_pool1d(x, 4, 3, ceil_mode=True)), LINE)
CASES.add("avg_pool_1d_of_one", lambda x: F.avg_pool1d(x, 3, 2, 1), LINE[1:])
CASES.add("avg_pool_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), IMAGE)
CASES.add("lp_pool", lambda x: F.lp_pool2d(x, 2, 3, 2), IMAGE)
CASES.add(
    "adaptive_avg", lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (7, 3)), F.adaptive_avg_pool2d(x, (None, 1))), IMAGE
)
CASES.add("adaptive_avg_uneven", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGE)
CASES.add("adaptive_avg_larger", lambda x: F.adaptive_avg_pool2d(x, (14, 9)), IMAGE)
CASES.add("adaptive_max", lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (7, 3))), IMAGE)
CASES.add("adaptive_1d", lambda x: (F.adaptive_avg_pool1d(x, 1), F.adaptive_max_pool1d(x, 11)), LINE)

# ---- resizing ---------------------------------------------------------------------------------------------------------------------------

for _size in ((1, 1), (14, 18), (3, 13), (82, 2), (7, 9), (8, 50)):
    for _mode in ("nearest", "nearest-exact"):
        CASES.add(f"resize_{_mode}_{_size[0]}", lambda x, s=_size, m=_mode: F.interpolate(x, s, mode=m), IMAGE)
    for _mode in ("bilinear", "bicubic"):
        for _corners in (False, True):
            CASES.add(
                f"resize_{_mode}_{_size[0]}{'_corners' if _corners else ''}",
                lambda x, s=_size, m=_mode, c=_corners: F.interpolate(x, s, mode=m, align_corners=c),
                IMAGE,
                tolerance=2e-5,
            )
CASES.add("resize_antialias", lambda x: F.interpolate(x, (3, 13), mode="bilinear", antialias=True), IMAGE)
for _old, _new in ((2, 82), (3, 41), (41, 82), (5, 123), (47, 61), (94, 61), (1, 5)):
    CASES.add(f"resize_row_{_old}_{_new}", lambda x, n=_new: F.interpolate(x, (1, n)), (1, 1, 1, _old))
    CASES.add(f"resize_line_{_old}_{_new}", lambda x, n=_new: F.interpolate(x, n), (1, 2, _old))
for _factor in (2.0, 0.5, 1.5, 1.3, (2.0, 0.4), 2.7):
    CASES.add(f"scale_nearest_{_factor}", lambda x, f=_factor: F.interpolate(x, scale_factor=f), IMAGE)
    CASES.add(f"scale_bilinear_{_factor}", lambda x, f=_factor: F.interpolate(x, scale_factor=f, mode="bilinear"), IMAGE)
    CASES.add(
        f"scale_recomputed_{_factor}",
        lambda x, f=_factor: F.interpolate(x, scale_factor=f, mode="bilinear", recompute_scale_factor=True),
        IMAGE,
    )
CASES.add("resize_linear", lambda x: (F.interpolate(x, 17, mode="linear"), F.interpolate(x, 5, mode="linear", align_corners=True)), LINE)
CASES.add("resize_area", lambda x: F.interpolate(x, (7, 3), mode="area"), IMAGE)
CASES.add("resize_3d", lambda x: F.interpolate(x, (4, 6, 5)), (1, 2, 2, 3, 4))
CASES.add("resize_ints", lambda x: F.interpolate(x, (5, 3)), torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4))
CASES.add("grid_sample", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), (1, 2, 4, 5), (1, 3, 3, 2))

# ---- norms ------------------------------------------------------------------------------------------------------------------------------

CASES.add("batch_norm", seeded(nn.BatchNorm2d, 4, eps=0.1), IMAGE)
CASES.add("batch_norm_plain", seeded(nn.BatchNorm2d, 4, affine=False), IMAGE)
CASES.add("batch_norm_1d", seeded(nn.BatchNorm1d, 4), (6, 4))
CASES.add("batch_norm_line", seeded(nn.BatchNorm1d, 4), LINE)
CASES.add("batch_norm_own", seeded(nn.BatchNorm2d, 4, track_running_stats=False), IMAGE)
CASES.add("layer_norm", seeded(nn.LayerNorm, (7, 9), eps=1e-2), IMAGE)
CASES.add("layer_norm_all", seeded(nn.LayerNorm, IMAGE), IMAGE)
CASES.add("layer_norm_without_bias", seeded(nn.LayerNorm, 9, bias=False), IMAGE)
CASES.add("layer_norm_one", lambda x: F.layer_norm(x, (1,)), (3, 1))
CASES.add("layer_norm_constant", lambda x: F.layer_norm(x, (4,)), torch.full((2, 4), 1e4))
CASES.add("rms_norm", seeded(nn.RMSNorm, (7, 9)), IMAGE)
CASES.add("rms_norm_half", lambda x: F.rms_norm(x, (5,)), torch.ones(2, 5).half() * 3)
CASES.add("group_norm", seeded(nn.GroupNorm, 2, 4), IMAGE)
CASES.add("group_norm_each", seeded(nn.GroupNorm, 4, 4, affine=False), (2, 4, 3))
CASES.add("group_norm_flat", seeded(nn.GroupNorm, 2, 4), (3, 4))
CASES.add("instance_norm", seeded(nn.InstanceNorm2d, 4, affine=True), IMAGE)
CASES.add("instance_norm_tracked", seeded(nn.InstanceNorm1d, 4, track_running_stats=True), LINE)
CASES.add("instance_norm_of_one", seeded(nn.InstanceNorm2d, 4), IMAGE[1:])
CASES.add("local_response_norm", seeded(nn.LocalResponseNorm, 2), IMAGE)
CASES.add("weight_norm", seeded(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))), (2, 5))
CASES.add("spectral_norm", seeded(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3))), (2, 5), tolerance=1e-4)

# ---- attention --------------------------------------------------------------------------------------------------------------------------

_Q, _K, _V = (2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)
_sdpa = F.scaled_dot_product_attention
_MASK = torch.ones(4, 6, dtype=torch.bool).tril(1)
_MASK[2] = False
_FLOATS = torch.where(_MASK, 0.25, -math.inf)
CASES.add("attention_hidden_row", lambda q, k, v: _sdpa(q, k, v, _MASK), _Q, _K, _V)
CASES.add("attention_all_hidden", lambda q, k, v: _sdpa(q, k, v, torch.zeros(4, 6, dtype=torch.bool)), _Q, _K, _V)
CASES.add("attention_minus_inf_row", lambda q, k, v: _sdpa(q, k, v, _FLOATS), _Q, _K, _V)
CASES.add("attention_mask_input", _sdpa, _Q, _K, _V, _MASK)
CASES.add("attention_floats_input", _sdpa, _Q, _K, _V, _FLOATS)
CASES.add("attention_mask_batches", lambda q, k, v, m: _sdpa(q, k, v, m > 0), _Q, _K, _V, (2, 1, 1, 6))
CASES.add("attention_mask_finite", lambda q, k, v: _sdpa(q, k, v, torch.where(_MASK, 0.0, -1e9)), _Q, _K, _V)
CASES.add("attention_causal_long", lambda q, k, v: _sdpa(q, k, v, is_causal=True), _Q, _K, _V)
CASES.add("attention_causal_short", lambda q, k, v: _sdpa(q, k, v, is_causal=True), _K, _Q, (2, 3, 4, 5))
CASES.add("attention_scale_minus", lambda q, k, v: _sdpa(q, k, v, scale=-0.5), _Q, _K, _V)
CASES.add("attention_scale_0", lambda q, k, v: _sdpa(q, k, v, scale=0.0), _Q, _K, _V)
CASES.add("attention_three", _sdpa, _Q[1:], _K[1:], _V[1:])
CASES.add("attention_broadcast", _sdpa, (2, 1, 4, 8), (1, 3, 6, 8), (1, 3, 6, 5))
CASES.add("attention_grouped", lambda q, k, v: _sdpa(q, k, v, _MASK, enable_gqa=True), (2, 6, 4, 8), _K, _V)
CASES.add("attention_double", lambda q, k: _sdpa(q.double(), k.double(), k.double(), _MASK), _Q, _K)
CASES.add("attention_half", lambda q, k: _sdpa(q.half(), k.half(), k.half(), _MASK), _Q, _K, tolerance=1e-2)
CASES.add("attention_large", lambda q, k, v: _sdpa(q * 1e4, k * 1e4, v), _Q, _K, _V, tolerance=1e-3)
CASES.add("attention_nan_hidden", lambda q, k, v: _sdpa(q, k / (k.cumsum(2) > -99), v, _MASK), _Q, _K, _V)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention with its options."""

    def __init__(self, options: Any, masks: Any) -> None:
        super().__init__()
        self.inner, self.masks = nn.MultiheadAttention(8, 2, **options), masks

    def forward(self, x: Any) -> Any:
        """Self-attention on x."""
        return self.inner(x, x, x, **self.masks)


_HIDDEN = t([[False, False, True], [True, True, True]])
_HIDDEN_SOME = t([[False, False, True], [True, False, True]])  # in entirely masked rows torch's fast path gives NaN, export gives zeros
for _name, _options, _masks in (
    ("plain", {}, {}),
    ("first", {"batch_first": True}, {"need_weights": False}),
    ("hidden_keys", {"batch_first": True}, {"key_padding_mask": _HIDDEN}),
    ("hidden_keys_weightless", {"batch_first": True}, {"key_padding_mask": _HIDDEN_SOME, "need_weights": False}),
    ("mask", {"batch_first": True, "bias": False}, {"attn_mask": torch.ones(3, 3).triu(1).bool(), "average_attn_weights": False}),
    ("extra", {"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}, {}),
):
    CASES.add(f"multihead_{_name}", seeded(SelfAttention, _options, _masks), (2, 3, 8))
CASES.add("encoder_layer", seeded(nn.TransformerEncoderLayer, 8, 2, 16, activation="gelu", batch_first=True, norm_first=True), (2, 3, 8))
CASES.add("decoder_layer", seeded(nn.TransformerDecoderLayer, 8, 2, 16), (3, 2, 8), (4, 2, 8))

# ---- other layers -----------------------------------------------------------------------------------------------------------------------

CASES.add("linear_vector", seeded(nn.Linear, 5, 3), (5,))
CASES.add("linear_wide", seeded(nn.Linear, 5, 1, bias=False), (2, 1, 3, 5))
CASES.add("bilinear", seeded(nn.Bilinear, 5, 4, 3), (2, 5), (2, 4))
CASES.add(
    "addmm", lambda c, a, b: (torch.addmm(c, a, b, beta=0, alpha=-1), torch.addmm(c, a, b, beta=2)), t([math.nan, 1.0, 2.0]), (2, 4), (4, 3)
)
CASES.add("addmm_ints", lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), *[torch.arange(4).reshape(2, 2) - i for i in range(3)])
CASES.add("matmul_ints", lambda a, b: (a @ b, a[0] @ b, a @ b[:, 0]), torch.arange(6).reshape(2, 3), torch.arange(12).reshape(3, 4))
CASES.add("matmul_broadcast", torch.matmul, (3, 1, 2, 4), (5, 4, 3))
CASES.add("matmul_vector", lambda a, b: (a @ b, b @ a.mT, b @ b), (2, 3, 4), (4,))
CASES.add("matmul_inf", torch.matmul, t([[math.inf, 1.0], [0.0, 0.0]]), t([[1.0, 0.0], [-math.inf, math.nan]]))
CASES.add("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (1, 3), (2, 4, 5), (2, 5, 3))
CASES.add("addbmm", lambda c, a, b: torch.addbmm(c, a, b), (4, 3), (2, 4, 5), (2, 5, 3))
CASES.add("addmv", lambda c, a, b: torch.addmv(c, a, b, beta=3, alpha=0.5), (4,), (4, 5), (5,))
CASES.add("addr", lambda c, a, b: torch.addr(c, a, b), (4, 5), (4,), (5,))
CASES.add("prelu", seeded(nn.PReLU, 4, 0.3), IMAGE)
CASES.add("prelu_vector", seeded(nn.PReLU, 1, -0.3), (5,))
CASES.add("prelu_matrix", seeded(nn.PReLU, 4), (3, 4))
CASES.add("glu", lambda x: (F.glu(x, 1), F.glu(x[..., :8])), IMAGE)
CASES.add("softmax_2d", nn.Softmax2d(), IMAGE)
CASES.add("fold_unfold", lambda x: F.fold(F.unfold(x, 3, 2, 1, 2), (7, 9), 3, 2, 1, 2), IMAGE)
CASES.add("dropouts", nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.9), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.2)), IMAGE)
CASES.add("embedding_padding", seeded(nn.Embedding, 6, 3, padding_idx=0), t([[0, 5], [1, 0]]))
CASES.add("embedding_norm", seeded(nn.Embedding, 6, 3, max_norm=0.5), t([[0, 5], [1, 0]]), refused="aten.embedding_renorm")
CASES.add("one_layer_lstm", seeded(nn.LSTM, 3, 4), (5, 2, 3))
CASES.add("lstm_both_ways", seeded(nn.LSTM, 3, 4, 2, batch_first=True, bidirectional=True, proj_size=2), (2, 3, 3))
CASES.add("gru", seeded(nn.GRU, 3, 4, bias=False, bidirectional=True), (4, 2, 3))
CASES.add("rnn_relu", seeded(nn.RNN, 3, 4, nonlinearity="relu"), (4, 3))
CASES.add("lstm_cell", seeded(nn.LSTMCell, 3, 4), (2, 3))
CASES.add("gru_cell", seeded(nn.GRUCell, 3, 4), (2, 3))
CASES.add("cross_entropy", lambda x: F.cross_entropy(x, t([1, -100, 2]), ignore_index=-100), (3, 4))
CASES.add("cross_entropy_smooth", lambda x: F.cross_entropy(x, t([1, 0, 2]), weight=t([1.0, 0.5, 2.0, 0.0]), label_smoothing=0.1), (3, 4))
CASES.add("nll_sum", lambda x: F.nll_loss(x.log_softmax(1), t([1, 0, 3]), reduction="sum"), (3, 4))
CASES.add(
    "binary_losses",
    lambda x: (F.binary_cross_entropy_with_logits(x, (x > 0).float()), F.binary_cross_entropy(x.sigmoid(), x.tanh() ** 2)),
    (3, 4),
)
CASES.add("margins", lambda x: (F.hinge_embedding_loss(x, x.sign()), F.margin_ranking_loss(x, -x, x.sign(), margin=0.1)), (3, 4))
CASES.add("kl", lambda x: F.kl_div(x.log_softmax(1), x.flip(1).softmax(1), reduction="batchmean"), (3, 4))
CASES.add("triplet", lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0), p=2.0), (3, 4))
CASES.add("gumbel_free", lambda x: F.softmax(x / 0.5, -1).argmax(-1), (3, 4))
CASES.add("random", lambda x: x + torch.rand_like(x) * 0, (3,), refused="random numbers")
CASES.add("item", lambda x: x * x[0].item(), (3,))
CASES.add("unique", lambda x: torch.unique(x).sum(), (3,))
CASES.add("bfloat16", lambda x: (x.bfloat16() + 1).float(), (3,))
CASES.add("complex", lambda x: torch.view_as_real(torch.fft.fft(x)), (4,), refused="aten._fft_r2c")
