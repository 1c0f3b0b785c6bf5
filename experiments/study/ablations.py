"""Disable one component of a search for an ablation, by wrapping the original components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tunesmith.codegen.backends.backend import BACKENDS
from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import mod, product
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.samplers.drafting_sampler import DraftingSampler
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space.rules import fallback
from tunesmith.search.space.rules_table import Rule, find_rules
from tunesmith.search.space.sketch import collect
from tunesmith.support.array_types import Float64Array, Int64Array
from tunesmith.support.errors import UserError

NEVER = 1e12
"""A factor of the best time that no candidate reaches; finite, because records need finite numbers."""

NamedSchedule = tuple[str, Callable[[Schedule], None]]


def without_racing(policy: MeasurePolicy) -> MeasurePolicy:
    """The policy without early stopping of slow candidates."""
    return replace(policy, race=replace(policy.race, give_up=NEVER))


def without_draft_model(kind: type[Sampler]) -> type[Sampler]:
    """The sampler with randomly ranked drafts; it draws as many candidates as before.

    Raises:
        UserError: the sampler is not a `DraftingSampler`.
    """
    if not issubclass(kind, DraftingSampler):
        raise UserError(f"the sampler {kind.__name__} has no draft model to disable: it is not derived from DraftingSampler")

    def make_generator(self: DraftingSampler) -> ProposalGenerator:
        return ProposalGenerator(self.task, [_RandomDraftModel(self.seed, k) for k in range(len(self.task.space.sketches))])

    return type(f"{kind.__name__}WithoutDraftModel", (kind,), {"make_generator": make_generator})


class _RandomDraftModel:
    """Replaces an analytic model: random scores, equal for equal configurations."""

    def __init__(self, seed: int, sketch: int) -> None:
        self._model = RandomModel(seed=seed * 1009 + sketch)

    def seconds(self, rows: Int64Array) -> Float64Array:
        return 1.0 + self._model.score(rows.astype(np.float64))


def divisors_only(rules: Sequence[Rule] | None = None) -> tuple[Rule, ...]:
    """Rules whose sketches keep only configurations whose tiles divide their extent, down to the last sampled factor.

    The default is the rules of CPUs.  The sketches have one more constraint per tiling; a sketch whose tiles can never divide is dropped.
    """
    given = find_rules(BACKENDS.get("llvm").rules) if rules is None else rules
    perfect = tuple([partial(_with_divisors, rule) for rule in given])
    return (*perfect, partial(_last_resort, perfect))


def _with_divisors(rule: Rule, func: PrimFunc, target: Target) -> list[NamedSchedule]:
    return [(name, partial(_dividing, schedule)) for name, schedule in rule(func, target)]


def _last_resort(rules: Sequence[Rule], func: PrimFunc, target: Target) -> list[NamedSchedule]:
    """The fallback, under the condition of `rules_table.generate`: no earlier rule gives a sketch."""
    if any(collect([named], func) for rule in rules for named in rule(func, target)):
        return []
    return _with_divisors(fallback.sketches, func, target)


def _dividing(schedule: Callable[[Schedule], None], s: Schedule) -> None:
    """Run `schedule`, and require after each of its imperfect tilings that the tiles divide the extent."""
    imperfect = s.sample_tile

    def sample_tile(loop: LoopRV, n: int, *args: Any, **kwargs: Any) -> list[IntRV]:
        extent = s.loop(loop).extent
        factors = imperfect(loop, n, *args, **kwargs)
        s.step = "sample_tile"
        s.require("eq0", mod(extent, product([f.expr for f in factors])), "divides", f"the tiles of {loop!r} do not divide its extent")
        return factors

    vars(s)["sample_tile"] = sample_tile  # overrides the primitive for this schedule only
    schedule(s)
