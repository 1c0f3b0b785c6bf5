"""Check the scores of a cost model, which may be user code: one number for each program."""

from __future__ import annotations

import warnings

import numpy as np

from tunesmith.costmodel.models.model import CostModel, Features
from tunesmith.support.array_types import Float64Array
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import UserError


class ScoreWarning(UserWarning):
    """A cost model returned NaN or infinite scores."""


def checked_scores(model: CostModel, features: Features, count: int) -> Float64Array:
    """The model's scores of `count` programs, float64 [N].  NaN and infinity become lower than all others, with a warning.

    Raises:
        UserError: the scores are not numbers, or not one for each program.
    """
    given, name = model.score(features), type(model).__name__
    try:
        found = np.asarray(given)
        if found.dtype.kind not in "fiub":
            raise TypeError(f"elements of type {found.dtype}")
        scores = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        what = f"the cost model {name} returned a {type(given).__name__}; it must return an array of numbers, one for each program"
        raise UserError(f"{what}: {error}") from error
    if scores.shape != (count,):
        raise UserError(
            f"the cost model {name} returned scores of shape {list(scores.shape)} for {count} candidates; the shape must be [{count}]"
        )
    bad = ~np.isfinite(scores)
    if bad.any():
        what = f"the cost model returned NaN or infinity for {int(bad.sum())} of {count} candidates, which are ranked last ({name})"
        warnings.warn(what, ScoreWarning, stacklevel=stacklevel())
        scores = np.where(bad, scores[~bad].min(initial=0.0) - 1.0, scores)
    return scores
