"""Weigh the samples of a cost model by the quality of their measurements.

The weight of disturbed samples was measured on 8192 clean programs of four operators (`experiments/studies/arena/pool.parquet`): models
were trained on 64 programs of an operator, a part of their times was multiplied by noise, and the held-out programs were ranked by their
true times.  Mean Spearman of the trees over three seeds, with weights 1, 0.25, 0.1 and 0 of the noisy samples:

| noise | 20 % noisy | 50 % noisy | 80 % noisy |
|---|---|---|---|
| as measured | 0.833 0.835 0.836 0.834 | 0.817 0.825 0.826 0.812 | 0.794 0.803 0.810 0.715 |
| by waiting | 0.818 0.827 0.830 0.834 | 0.740 0.760 0.791 0.812 | 0.771 0.766 0.770 0.715 |
| up to 3 times | 0.733 0.776 0.808 0.829 | 0.608 0.618 0.665 0.822 | 0.694 0.685 0.685 0.782 |

The noise "as measured" is the ratio of disturbed to clean times of the same program, in 239 pairs of search logs (median 1.02, 90th
percentile 1.17, largest 3.2); "by waiting" is 1 / (1 - waited) of disturbed records (median 1.2); the last one is log-uniform.  To drop the
disturbed samples is best if their times are wrong by factors, and worst if few clean ones are left and the noise is small.  The weight 0.1
is a compromise: it gains with noise as measured, where to drop samples loses up to 0.08, gains a part of what dropping gains with larger
noise, and loses at most 0.01, which is within the error of the means.  The network, trained on ranks, depends less on noise (one seed):
with 0.1 it lost 0.009, 0.014 and 0.006 by the noise as measured, and gained 0.006, 0.015 and 0.021 by waiting.
"""

from __future__ import annotations

import inspect

import numpy as np

from tunesmith.costmodel.models.model import CostModel, Features
from tunesmith.support.array_types import BoolArray, Float64Array, FloatArray, IntArray

DISTURBED_WEIGHT = 0.1
"""The weight of a disturbed sample, if a clean one has 1; see the module docstring."""


def sample_weights(clean: BoolArray) -> Float64Array:
    """The weight of each sample, float64 [N]: 1 for clean measurements, `DISTURBED_WEIGHT` for those that other processes disturbed."""
    return np.where(clean, 1.0, DISTURBED_WEIGHT)


def update_model(model: CostModel, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray) -> None:
    """Call `update` of a model, which may be a user's own, with weights if it has such a parameter."""
    if takes_weights(model):
        model.update(features, seconds, groups, weights=weights)
    else:
        model.update(features, seconds, groups)


def takes_weights(model: CostModel) -> bool:
    """Whether the `update` of a model has the parameter `weights`."""
    try:
        parameters = inspect.signature(model.update).parameters
    except ValueError:  # functions of C without a signature
        return False
    named = parameters.get("weights")
    if named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY):
        return True
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())
