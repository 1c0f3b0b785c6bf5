"""Define torch cases that move or reduce elements: negative and repeated dimensions, views of views, writes into views, extents of
0 and 1, indices that are unordered, negative, repeated or broadcast."""

from __future__ import annotations

import math
from typing import Any

from tunesmith.support.errors import MissingExtraError
from tunesmith.testing.torch_cases import CaseTable

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    raise MissingExtraError("torch", "torch", "tunesmith.testing.torch_cases_shapes") from error

CASES = CaseTable()
t = torch.tensor
CUBE = (3, 4, 5)
NANS = t([[1.0, math.nan, 3.0, -1.0], [math.inf, 2.0, -math.inf, 0.0], [-0.0, 0.0, -0.0, -0.0], [math.nan, math.nan, -math.inf, math.inf]])
TIES = t([[2.0, 5.0, 5.0, 2.0], [-1.0, -1.0, -1.0, -1.0], [0.0, -0.0, 0.0, -0.0]])


def _written(x: Any, write: Any) -> Any:
    y = x.clone()
    write(y)
    return y


# ---- reductions -------------------------------------------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, Any] = {
    "sum_last_kept": lambda x: x.sum(-1, keepdim=True),
    "sum_two": lambda x: x.sum((0, -1)),
    "sum_none": lambda x: x.sum(()),
    "sum_double": lambda x: x.sum(-1, dtype=torch.float64),
    "mean_two_kept": lambda x: x.mean((-1, 0), keepdim=True),
    "prod": lambda x: (x.prod(), x.prod(-1, keepdim=True)),
    "amax_all": lambda x: (x.amax(), x.amin(), x.amax((-1, 0)), x.amin(-2, keepdim=True)),
    "aminmax": lambda x: tuple(torch.aminmax(x, dim=-1)),
    "max_dim": lambda x: (*x.max(-1), *x.min(0, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(-1), x.argmin(0, keepdim=True), x.argmin()),
    "argmax_kept": lambda x: x.argmax(keepdim=True),
    "var": lambda x: (x.var(-1), x.var(0, unbiased=False), x.var(correction=2)),
    "var_half": lambda x: x.var(0, correction=0.5),
    "var_beyond": lambda x: x.var(0, correction=7),
    "var_one_kept": lambda x: x[:1].var(0, keepdim=True),
    "std": lambda x: (x.std(), x.std(-1, correction=1.5), x.std(0, correction=0, keepdim=True)),
    "norm": lambda x: (x.norm(), x.norm(dim=0), x.norm(1, -1), x.norm(math.inf, 0, keepdim=True), x.norm(-math.inf)),
    "norm_0": lambda x: torch.linalg.vector_norm(x, 0, dim=-1),
    "norm_3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "norm_minus": lambda x: torch.linalg.vector_norm(x.abs() + 0.5, -1.5, dim=-1),
    "normalize": lambda x: (F.normalize(x, dim=0), F.normalize(x, 1, -1, 0.5)),
    "logsumexp": lambda x: (x.logsumexp(0), x.logsumexp((0, 1)), x.logsumexp(-1, keepdim=True)),
    "softmax": lambda x: (x.softmax(0), x.softmax(-1), x.softmax(1, dtype=torch.float64)),
    "log_softmax": lambda x: (x.log_softmax(0), F.log_softmax(x, -1)),
    "softmin": lambda x: F.softmin(x, 0),
    "cumsum": lambda x: (x.cumsum(-1), x.cumsum(0)),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1).values,
    "any": lambda x: (x.any(), x.any(-1), x.all(0, keepdim=True), x.bool().all((0, 1))),
    "count_nonzero": lambda x: torch.count_nonzero(x, -1),
    "nansum": lambda x: x.nansum(-1),
    "nanmean": lambda x: x.nanmean(0),
    "median": lambda x: x.median(-1).values,
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(1, -1).values,
    "diff": lambda x: x.diff(dim=-1),
    "trapezoid": lambda x: torch.trapezoid(x, dim=0),
    "cov": lambda x: torch.cov(x.reshape(x.shape[0], -1)),
    "losses": lambda x: (F.mse_loss(x, x * 0.5), F.l1_loss(x, x + 1), F.smooth_l1_loss(x, x * 2), F.huber_loss(x, x * 2, delta=0.5)),
    "mean_all": lambda x: (x.mean(), x.mean(()), x.sum(0).mean(0)),
    "max_against": lambda x: x.amax(-1, keepdim=True).maximum(x),
}
_REFUSED = {
    "cov": "DataDependentOutputException",
}
for _name, _function in _REDUCTIONS.items():
    _options: Any = {"refused": _REFUSED.get(_name, "")}
    CASES.add(f"cube_{_name}", _function, CUBE, **_options)
    CASES.add(f"nans_{_name}", _function, NANS, signs=_name not in ("cumsum", "cummax", "max_against"), **_options)
    CASES.add(f"ties_{_name}", _function, TIES, signs=False, **_options)
    CASES.add(f"one_{_name}", _function, (1, 1, 1), refused="a result has no elements" if _name == "diff" else _REFUSED.get(_name, ""))
CASES.add("var_mean", lambda x: (*torch.var_mean(x, (0, 1), correction=3), *torch.std_mean(x, 0, correction=0, keepdim=True)), CUBE)
for _name in "sum_last_kept mean_two_kept prod amax_all max_dim argmax softmax log_softmax cumsum var norm logsumexp".split():
    CASES.add(f"half_{_name}", _REDUCTIONS[_name], (torch.randn(CUBE, generator=torch.Generator().manual_seed(2))).half())
    CASES.add(f"double_{_name}", _REDUCTIONS[_name], torch.randn(CUBE, generator=torch.Generator().manual_seed(2)).double())
CASES.add("scalar_sum", lambda x: (x.sum(), x.mean(), x.amax(), x.sum(0), x.amin(-1), x.prod()), t(2.5))
CASES.add("scalar_argmax", lambda x: (x.argmax(), *x.max(0), x.argmin(0)), t(2.5))
CASES.add("scalar_norm", lambda x: (x.norm(), x.var(correction=0), x.softmax(0), x.log_softmax(-1), x.cumsum(0), x.logsumexp(0)), t(-2.5))
CASES.add("scalar_var", lambda x: (x.var(), x.std()), t(-2.5))
CASES.add("scalar_any", lambda x: (x.any(), x.all(), x.any(0)), t(-2.5))
CASES.add("scalar_norm_1", lambda x: torch.linalg.vector_norm(x, 1), t(-2.5))
CASES.add(
    "softmax_hidden_rows", lambda x, m: x.masked_fill(m, -math.inf).softmax(-1), (2, 3), t([[True, True, True], [False, True, False]])
)
CASES.add("softmax_large", lambda x: (x * 1e30).softmax(-1), (2, 3))
CASES.add("logsumexp_hidden", lambda x: torch.logsumexp(x, 0), t([[-math.inf, math.inf], [-math.inf, 1.0]]))
CASES.add("mean_of_halves", lambda x: (x.mean(), x.sum(-1)), torch.full((2, 300), 300.0).half())
CASES.add("half_squares", lambda x: (x.var(0), x.std(1), x.norm(), x.norm(dim=1)), t([[300.0, -300.0], [250.0, 100.0]]).half())
CASES.add("variance_far_from_zero", lambda x: x.var(0), torch.arange(6.0)[:, None] + 1e4, tolerance=1e-4)

# ---- views ------------------------------------------------------------------------------------------------------------------------------

_VIEWS: dict[str, Any] = {
    "slices": lambda x: (x[:, ::2, 1:-1], x[-2:, -3:-1], x[..., None, 2:9], x[2:]),
    "select_minus": lambda x: (x[-1], x[:, -2], x[..., -1], x.select(-2, -1)),
    "narrow": lambda x: (x.narrow(-1, 1, 3), x.narrow(0, -2, 2)),
    "permuted": lambda x: (x.permute(2, 0, 1), x.permute(-1, -3, -2), x.transpose(-1, 0).reshape(5, -1), x.mT, x.movedim((0, 1), (-1, -2))),
    "permuted_view": lambda x: x.permute(2, 1, 0)[::2].transpose(0, 1).flatten(),
    "squeezed": lambda x: (x[:1].squeeze(), x[:, :1].squeeze(-2), x.squeeze(0), x[:1, :1].squeeze((0, -1)), x.unsqueeze(-2).unsqueeze(0)),
    "unfolded": lambda x: x.unfold(-1, 3, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (5, 2), 1),
    "flat": lambda x: (x.flatten(), x.flatten(-2), x.ravel(), x.reshape(-1), x.view(-1, 4).unflatten(0, (-1, 3))),
    "expanded": lambda x: (x[:, :1].expand(3, 7, 5), x[0, 0].expand(2, -1), x[:1, :1, :1].expand(2, 3, 4)),
    "repeated": lambda x: (x.repeat(1, 2, 1), x[0, 0].repeat(3, 2), x.tile((2,)), x.repeat_interleave(3, -1), x.repeat(2, 1, 1, 1)),
    "split": lambda x: (*x.split(2, -1), *x.chunk(3, 1), *x.tensor_split(2, -1), *x.split((1, 3), -2), *x.unbind(-1)),
    "rolled": lambda x: (x.roll(-1, -1), x.roll(7), x.roll((1, -2), (0, 2)), x.roll(100, 1)),
    "flipped": lambda x: (x.flip(-1), x.flip(()), x.fliplr(), x.flipud(), x.rot90(-1, (0, -1))),
    "triangles": lambda x: (x.tril(-1), x.triu(1), x.tril(9), x.triu(-9)),
    "diagonals": lambda x: (x.diagonal(1, -1, -2), x[0].diag(), x[0].diag(-1), x.diagonal()),
    "diag_embed": lambda x: (torch.diag_embed(x[0]), torch.diag(x[0, 0], 1)),
    "trace": lambda x: x[0].trace(),
    "stacked": lambda x: (torch.stack([x, x], -1), torch.hstack([x, x]), torch.vstack([x, x]), torch.dstack([x, x])),
    "joined": lambda x: (torch.cat([x, x[:1]]), torch.cat([x, x], -2), torch.cat([x])),
    "pads": lambda x: (F.pad(x, (0, 0, 1, 2)), F.pad(x, (-1, -2)), F.pad(x, (2, -1), value=1), F.pad(x, (0, 0, 0, 0, 1, 1))),
    "pad_inf": lambda x: (F.pad(x, (1, 0), value=-math.inf), F.pad(x, (0, 1), value=-1.5)),
    "pad_reflect": lambda x: (F.pad(x, (4, 1), mode="reflect"), F.pad(x, (2, 3, 3, 1), mode="reflect")),
    "pad_replicate": lambda x: (F.pad(x, (6, 0), mode="replicate"), F.pad(x, (1, 7, 0, 3), mode="replicate")),
    "pad_circular": lambda x: (F.pad(x, (5, 5), mode="circular"), F.pad(x, (1, 0, 4, 2), mode="circular")),
    "meshgrid": lambda x: (*torch.meshgrid(x[0, 0], x[0, :, 0], indexing="xy"), torch.cartesian_prod(x[0, 0], x[1, 0])),
    "einsum": lambda x: (torch.einsum("abc->ca", x), torch.einsum("abc,abd->cd", x, x), torch.einsum("aaj->aj", x[:, :3])),
    "tensordot": lambda x: torch.tensordot(x, x, ([0, 2], [0, 2])),
    "creation": lambda x: (torch.zeros_like(x, dtype=torch.int32), torch.full_like(x, 2), x.new_ones(2, 1), torch.empty_like(x).fill_(3)),
    "ranges": lambda x: (
        torch.arange(5, 0, -2),
        torch.arange(0.5, 3),
        torch.arange(0, 1, 0.1),
        torch.linspace(3, -1, 7),
    ),
    "linspace_one": lambda x: (torch.linspace(2, 5, 1), torch.linspace(0, 10, 4, dtype=torch.float64), torch.logspace(0, 2, 3)),
    "eye": lambda x: (torch.eye(2, 5), torch.eye(3, dtype=torch.int32)),
    "tri_indices": lambda x: (torch.tril_indices(3, 4, -1), torch.triu_indices(3, 3)),
    "one_hot": lambda x: F.one_hot(t([[0, 2], [1, 0]]), 4),
    "bucketize": lambda x: torch.bucketize(x, t([-1.0, 0.0, 1.0])),
    "pixel": lambda x: (F.pixel_shuffle(x.repeat(4, 1, 1)[None], 2), F.pixel_unshuffle(x[None, :, :, :4], 2)),
    "channel_shuffle": lambda x: F.channel_shuffle(x.permute(1, 0, 2)[None], 2),
    "fold": lambda x: F.unfold(x[None], (2, 3), padding=1, stride=(1, 2)),
    "cross": lambda x: torch.linalg.cross(x, x.flip(1), dim=0),
    "kron": lambda x: torch.kron(x[0, :2, :2], x[1, :2, :2]),
    "cdist": lambda x: torch.cdist(x, x.flip(1)),
    "cosine": lambda x: (F.cosine_similarity(x, x.flip(0), -1), F.pairwise_distance(x[0], x[1])),
    "block": lambda x: torch.block_diag(x[0, :2], x[1, :1]),
}
_REFUSED = {
    "as_strided": "aten.as_strided",
}
for _name, _function in _VIEWS.items():
    CASES.add(f"view_{_name}", _function, CUBE, refused=_REFUSED.get(_name, ""))
for _name, _function in {
    "slice": lambda x: (x[1:1], x[:, 3:2]),
    "repeat": lambda x: x.repeat(0, 1, 1),
    "split": lambda x: x.split((1, 0, 3), -2),
}.items():
    CASES.add(
        f"view_empty_{_name}", _function, CUBE, refused="the extent 0 is not positive" if _name == "split" else "a result has no elements"
    )
for _name in "slices permuted repeated rolled flipped triangles joined pads stacked split expanded".split():
    CASES.add(f"int_{_name}", _VIEWS[_name], torch.arange(60, dtype=torch.int32).reshape(CUBE))
    CASES.add(f"bool_{_name}", _VIEWS[_name], torch.arange(60).reshape(CUBE) % 3 == 0)

_WRITES: dict[str, Any] = {
    "slice": lambda y: y[:, 1:3].mul_(2),
    "stepped": lambda y: y[:, ::2, 1::2].fill_(7),
    "view_of_view": lambda y: y.transpose(0, 2)[1:3, -1].add_(10),
    "column": lambda y: y[..., -1].copy_(y[..., 0]),
    "number": lambda y: y.__setitem__((0, -1, 2), 5),
    "slice_of_slice": lambda y: y[1:][:, 2:].zero_(),
    "broadcast": lambda y: y.__setitem__((slice(None), 1), torch.arange(5.0)),
    "mask": lambda y: y.__setitem__(y > 0.5, -1.0),
    "mask_plus": lambda y: y.__setitem__(y < 0, y.sum()),
    "rows": lambda y: y.__setitem__(t([2, 0]), y[:2] * 3),
    "row_twice": lambda y: y.__setitem__((t([1, 1]), 0), 4.0),
    "elements": lambda y: y.__setitem__((t([0, -1]), t([1, -2]), t([4, 0])), t([8.0, 9.0])),
    "masked_fill": lambda y: y[1].masked_fill_(y[0] > 0, -math.inf),
    "diagonal": lambda y: y[0].fill_diagonal_(3.0),
    "diagonal_view": lambda y: y.diagonal(0, 1, 2).zero_(),
    "flat": lambda y: y.view(-1)[::7].neg_(),
    "swap": lambda y: y.copy_(y.flip(0)),
    "empty": lambda y: y[1:1].fill_(9),
    "int_index_none": lambda y: y.__setitem__((slice(None), t([0, 2]), 1), 1.5),
    "index_add": lambda y: y.index_add_(1, t([0, 0, 3]), torch.ones(3, 3, 5), alpha=2),
    "index_fill": lambda y: y.index_fill_(-1, t([4, 0]), -2.0),
    "index_copy": lambda y: y.index_copy_(-1, t([3, 1]), torch.ones(3, 4, 2)),
    "masked_scatter": lambda y: y.masked_scatter_(y > 0, torch.arange(60.0)),
    "scatter": lambda y: y.scatter_(-1, t([[[4, 0]]]), t([[[1.0, 2.0]]])),
    "put": lambda y: y.put_(t([3, -1]), t([1.0, 2.0])),
    "where": lambda y: torch.where(y > 0, y, t(0.0), out=None),
}
_REFUSED = {
    "diagonal": "could not decompose",
    "empty": "the extent 0 is not positive",
}
for _name, _write in _WRITES.items():
    CASES.add(f"write_{_name}", lambda x, write=_write: _written(x, write), CUBE, refused=_REFUSED.get(_name, ""))

# ---- indices ----------------------------------------------------------------------------------------------------------------------------

PLACES = t([[0, 2, 1, 1, 0], [1, 1, 0, 2, 2]])
_INDEXED: dict[str, Any] = {
    "one": lambda x: (x[t([2, 0, -1])], x[:, t([3, -4])], x[..., t([[4, 0], [-1, 1]])]),
    "two": lambda x: x[t([0, 2]), t([1, -1])],
    "two_last": lambda x: x[:, t([0, 2]), t([1, -1])],
    "two_broadcast": lambda x: x[t([[0], [2]]), t([1, -1, 3])],
    "apart": lambda x: x[t([0, 2]), :, t([1, -1])],
    "apart_number": lambda x: x[0, :, t([1, -1])],
    "three": lambda x: x[t([0, 2]), t([1, -1]), t([4, -5])],
    "number_tensor": lambda x: x[t(1)],
    "empty": lambda x: x[torch.zeros(0, dtype=torch.int64)],
    "none_between": lambda x: x[:, None, t([1, 0])],
    "list": lambda x: x[[2, 0], [1, 1]],
    "mask": lambda x: x[x > 0].sum(),
    "mask_known": lambda x: x[t([True, False, True])],
    "mask_rows": lambda x: x[:, t([True, False, True, True])],
    "int32": lambda x: x[t([2, 0], dtype=torch.int32)],
    "take": lambda x: torch.take(x, t([0, 59, -1])),
    "select": lambda x: (x.index_select(-1, t([4, 0, 0])), x.index_select(0, t(2)), x.index_select(1, t([3], dtype=torch.int32))),
    "gather": lambda x: (x.gather(-1, PLACES[None]), x.gather(0, t([[[2, 0]], [[1, 1]]])), torch.take_along_dim(x, PLACES[None, :1], 2)),
    "gather_flat": lambda x: torch.take_along_dim(x, t([3, 59, 0])),
    "scatter": lambda x: (x.scatter(-1, PLACES[None], -1.5), x.scatter(0, t([[[2, 0, 1, 1, 0]]]), torch.ones(1, 1, 5))),
    "scatter_wide_source": lambda x: x.scatter(1, t([[[3, 1]]]), x),
    "scatter_twice": lambda x: x.scatter_add(-1, t([[[1, 1, 1, 1, 1]]]).expand(3, 4, 5), torch.ones(3, 4, 5)),
    "scatter_reduce": lambda x: [
        x.scatter_reduce(-1, PLACES[None, :, :4] + 1, torch.full((1, 2, 4), 2.0), r) for r in ("sum", "prod", "amax", "amin")
    ],
    "scatter_reduce_apart": lambda x: x.scatter_reduce(-1, PLACES[None, :, :4], torch.full((1, 2, 4), 2.0), "sum", include_self=False),
    "scatter_reduce_mean": lambda x: x.scatter_reduce(-1, PLACES[None, :, :4], torch.full((1, 2, 4), 2.0), "mean"),
    "scatter_reduce_argument": lambda x: x.scatter(-1, PLACES[None, :, :4], 2.0, reduce="multiply"),
    "put": lambda x: x.index_put((t([0, -1]), t([1, 3])), t(7.0)),
    "put_twice": lambda x: x.index_put((t([1, 1, -2]),), t(1.0), accumulate=True),
    "put_broadcast": lambda x: x.index_put((t([[0], [2]]), t([1, -1])), torch.arange(5.0), accumulate=True),
    "put_axis": lambda x: _written(x, lambda y: y.__setitem__((slice(None), t([[1, 0], [2, -1]])), y[:, None, :2] * 2)),
    "put_axes": lambda x: _written(x, lambda y: y.__setitem__((slice(None), t([1, 0]), t([2, -1])), 1.0)),
    "put_apart": lambda x: _written(x, lambda y: y.__setitem__((t([1, 0]), slice(None), t([2, -1])), t([[1.0, 2, 3, 4], [5, 6, 7, 8]]))),
    "put_far": lambda x: _written(x, lambda y: y.__setitem__((slice(None), slice(None), t([[0, 1], [4, 3]])), torch.ones(3, 4, 2, 2))),
    "put_mask": lambda x: x.index_put((x > 0,), t(1.0), accumulate=True),
    "put_mask_rows": lambda x: x.index_put((t([True, False, True]),), t(1.0), accumulate=True),
    "put_mask_values": lambda x: x.index_put((t([True, False, True]),), torch.ones(2, 4, 5)),
    "put_mask_row_value": lambda x: x.index_put((t([True, False, True]),), torch.arange(5.0)),
    "put_mask_one": lambda x: x.index_put((x > 0,), t([2.5])),
    "put_mask_false": lambda x: x.index_put((x > 99,), t(1.0)),
    "add": lambda x: x.index_add(0, t([2, 2]), torch.ones(2, 4, 5), alpha=0.5),
    "reduce": lambda x: x.index_reduce(0, t([2, 2]), torch.ones(2, 4, 5), "prod"),
    "copy": lambda x: x.index_copy(-2, t([3, 0]), torch.ones(3, 2, 5)),
    "embedding": lambda x: (F.embedding(t([[1, 0], [2, 2]]), x[0]), F.embedding(t(1), x[0]), F.embedding(t([1]), x[0], padding_idx=1)),
    "embedding_bag": lambda x: F.embedding_bag(t([[1, 2], [0, 0]]), x[0], mode="sum"),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "argwhere_where": lambda x: torch.where(x > 0)[0],
    "searchsorted": lambda x: torch.searchsorted(t([0.0, 1.0]), x),
}
_REFUSED = {
    "empty": "a result has no elements",
    "scatter_wide_source": "differ in shape",
    "scatter_reduce_apart": "with include_self=True",
}
for _name, _function in _INDEXED.items():
    CASES.add(f"index_{_name}", _function, CUBE, refused=_REFUSED.get(_name, ""))
CASES.add("index_tensor_input", lambda x, i: (x[i], x[:, i], x.index_select(0, i)), CUBE, t([-1, 2, 0]).abs())
CASES.add("index_tensor_negative", lambda x, i: x[i], CUBE, t([-1, 2, -3]))
CASES.add("index_ints", lambda x, i: x[i], torch.arange(10), t([[-1, 2], [3, -10]]))
CASES.add("index_bools", lambda x, i: x[i], torch.arange(10) % 2 == 0, t([[-1, 2], [3, -10]]))
CASES.add("put_ints", lambda x, i: x.index_put((i,), t(5), accumulate=True), torch.arange(10), t([3, 3, -1]))
CASES.add("put_bools", lambda x, i: x.index_put((i,), t(True)), torch.arange(10) < 0, t([3, 3, -1]))
CASES.add("mask_input", lambda x, m: x.masked_fill(m, 0.5) + torch.where(m, x, 2), CUBE, t([[False], [True], [False], [True]]))
CASES.add("mask_false", lambda x, m: (x.masked_fill(m, 9.0), (x * m).sum()), CUBE, torch.zeros(4, 5, dtype=torch.bool))
