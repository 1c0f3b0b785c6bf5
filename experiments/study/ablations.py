"""Switches of an ablation: the same search without one of its ideas, made by wrapping what there is, never by a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.codegen.backends.backend import BACKENDS
from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import mod, product
from tunesmith.ir.target.target import Target
from tunesmith.measure.measurer import MeasurePolicy
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space.rules import fallback
from tunesmith.search.space.rules_table import Rule, find_rules
from tunesmith.search.space.sketch import collect
from tunesmith.support.errors import UserError

NEVER = 1e12
"""So many times the best is no candidate's time: records want finite numbers."""

Named = tuple[str, Callable[[Schedule], None]]


def without_racing(policy: MeasurePolicy) -> MeasurePolicy:
    """The policy under which no candidate is given up."""
    return replace(policy, race=replace(policy.race, give_up=NEVER))


def without_draft_model(kind: type[Sampler]) -> type[Sampler]:
    """The sampler, with its drafts ranked by chance.  It draws as many candidates as before and knows as little of each as of any.

    Raises (when it is made):
        UserError: the sampler drafts nothing: it has no attribute `drafter`.
    """
    construct: Any = kind.__init__

    @wraps(construct)  # so that it asks for what the sampler asks for
    def blind(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        drafter = getattr(self, "drafter", None)
        if drafter is None:
            raise UserError(f"the sampler {kind.__name__} has no draft model that could be switched off")
        drafter.analytic = [_Chance(kwargs.get("seed", 0), k) for k in range(len(drafter.sketches))]

    return type(f"{kind.__name__}WithoutDraftModel", (kind,), {"__init__": blind})


class _Chance:
    """In the place of an analytic model: equal rows get equal numbers, all others any."""

    def __init__(self, seed: int, sketch: int) -> None:
        self._model = RandomModel(seed=seed * 1009 + sketch)

    def seconds(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return 1.0 + self._model.score(rows.astype(np.float64))


def divisors_only(rules: Sequence[Rule] | None = None) -> tuple[Rule, ...]:
    """Rules whose sketches keep only the rows whose tiles divide what they tile, down to the last sampled factor.

    By default those of CPUs.  The sketches are the same, one constraint a tiling tighter; one whose tiles can never divide is left out.
    """
    given = find_rules(BACKENDS.get("llvm").rules) if rules is None else rules
    perfect = tuple([partial(_with_divisors, rule) for rule in given])
    return (*perfect, partial(_last_resort, perfect))


def _with_divisors(rule: Rule, func: PrimFunc, target: Target) -> list[Named]:
    return [(name, partial(_dividing, schedule)) for name, schedule in rule(func, target)]


def _last_resort(rules: Sequence[Rule], func: PrimFunc, target: Target) -> list[Named]:
    """The fallback, under the condition of `space_rules.generate`: no rule before has given a sketch."""
    if any(collect([named], func) for rule in rules for named in rule(func, target)):
        return []
    return _with_divisors(fallback.sketches, func, target)


def _dividing(schedule: Callable[[Schedule], None], s: Schedule) -> None:
    """Run `schedule`, and demand after each of its imperfect tilings that it is perfect."""
    imperfect = s.sample_tile

    def sample_tile(loop: LoopRV, n: int, *args: Any, **kwargs: Any) -> list[IntRV]:
        extent = s.loop(loop).extent
        factors = imperfect(loop, n, *args, **kwargs)
        s.step = "sample_tile"
        s.require("eq0", mod(extent, product([f.expr for f in factors])), "divides", f"the tiles of {loop!r} do not divide its extent")
        return factors

    vars(s)["sample_tile"] = sample_tile  # hides the primitive for this schedule alone
    schedule(s)
