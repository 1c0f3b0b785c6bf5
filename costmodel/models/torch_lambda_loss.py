"""Compute the LambdaRank loss: pairs of programs of one task, weighted by the change of NDCG when swapped.

For a list with relevances y and scores s, sorted by score, G = (2^y - 1) / maxDCG and D(rank) = log2(1 + rank):

    loss = - sum over pairs with y_i > y_j of |1/D_i - 1/D_j| |G_i - G_j| log2(sigmoid(sigma (s_i - s_j)))

TenSet trains its MLP with this form (LambdaLoss, scheme lambdaRank: Wang et al., CIKM 2018), after Burges (2010); LightGBM's gradients
are those of the same loss.  Relevance is throughput relative to the best of the task, so y is in [0, 1].
"""

from __future__ import annotations

import torch

SIGMA = 1.0
_TINY = 1e-10


def lambda_rank_loss(
    scores: torch.Tensor, relevance: torch.Tensor, present: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The loss of several lists: the sum over the lists divided by their number of programs.

    Args:
        scores: [lists, n].
        relevance: [lists, n], at least 0.
        present: bool [lists, n]; False for padding, which is ignored.
        weights: [lists, n], the weights of the programs: a pair has the smaller one of its two.  By default all are 1.
    """
    order = torch.where(present, scores, scores.new_tensor(-torch.inf)).argsort(dim=1, descending=True, stable=True)
    s, y, there = scores.gather(1, order), relevance.gather(1, order), present.gather(1, order)
    y = torch.where(there, y, torch.zeros_like(y))
    discount = 1.0 / torch.log2(torch.arange(2, s.shape[1] + 2, dtype=s.dtype))
    gain = torch.exp2(y) - 1.0
    ideal = (gain.sort(dim=1, descending=True).values * discount).sum(dim=1).clamp(min=_TINY)
    gain = gain / ideal[:, None]
    weight = (discount[None, :, None] - discount[None, None, :]).abs() * (gain[:, :, None] - gain[:, None, :]).abs()
    if weights is not None:
        w = weights.gather(1, order)
        weight = weight * torch.minimum(w[:, :, None], w[:, None, :])
    pairs = (y[:, :, None] > y[:, None, :]) & there[:, :, None] & there[:, None, :]
    difference = torch.where(pairs, s[:, :, None] - s[:, None, :], torch.zeros_like(weight))
    each = -weight * torch.nn.functional.logsigmoid(SIGMA * difference) / torch.log(s.new_tensor(2.0))
    return torch.where(pairs, each, torch.zeros_like(each)).sum() / present.sum().clamp(min=1)
